#!/usr/bin/env python3
"""Speak from Python through libthespis.so, with nothing but the standard library.

    examples/speak.py CHECKPOINT "Hello there." out.wav [SEED]

THESPIS_LIBRARY names the library where the system does not find it: THESPIS_LIBRARY=build/release/libthespis.so.0
"""
import array
import ctypes
import os
import sys
import wave

RANDOM_SEED = 2**64 - 1


class Error(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("message", ctypes.c_char * 500)]


# The structs of thespis.h. The library compares `size` with its own and refuses another: a field that is missing here is told, not lived with.
class EngineOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("checkpoint", ctypes.c_char_p), ("codec", ctypes.c_char_p), ("backend", ctypes.c_int),
        ("precision", ctypes.c_int), ("isa", ctypes.c_int), ("device", ctypes.c_int), ("threads", ctypes.c_int), ("lanes", ctypes.c_int),
        ("max_rows", ctypes.c_int), ("prefill_rows", ctypes.c_int), ("voice_slots", ctypes.c_int), ("act_quant", ctypes.c_int),
        ("progress", ctypes.c_void_p), ("progress_context", ctypes.c_void_p)]


class RequestOptions(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t), ("text", ctypes.c_char_p), ("text_bytes", ctypes.c_size_t), ("voice", ctypes.c_void_p),
        ("history", ctypes.c_void_p), ("history_count", ctypes.c_size_t), ("temperature", ctypes.c_float), ("top_p", ctypes.c_float),
        ("top_k", ctypes.c_int32), ("seed", ctypes.c_uint64), ("greedy", ctypes.c_int), ("max_frames", ctypes.c_int),
        ("first_chunk", ctypes.c_int), ("chunk", ctypes.c_int), ("strict_text", ctypes.c_int), ("granularity", ctypes.c_int),
        ("chunk_bytes", ctypes.c_int), ("no_history", ctypes.c_int), ("guard", ctypes.c_int), ("group", ctypes.c_uint64),
        ("live", ctypes.c_int)]


library = ctypes.CDLL(os.environ.get("THESPIS_LIBRARY", "libthespis.so.0"))
for name in ("thespis_request_free", "thespis_engine_close"):
    getattr(library, name).argtypes = [ctypes.c_void_p]
    getattr(library, name).restype = None
library.thespis_engine_open.argtypes = [ctypes.POINTER(EngineOptions), ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(Error)]
library.thespis_request_start.argtypes = [
    ctypes.c_void_p, ctypes.POINTER(RequestOptions), ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(Error)]
library.thespis_request_read.argtypes = [
    ctypes.c_void_p, ctypes.POINTER(ctypes.c_float), ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(Error)]


def call(function, *arguments):
    """Calls a function whose last argument is the error, and raises it."""
    error = Error()
    if function(*arguments, ctypes.byref(error)) != 0:
        raise RuntimeError(error.message.decode())


def speak(checkpoint, text, seed=RANDOM_SEED):
    """Yields blocks of samples, floats in [-1, 1], as they are made."""
    options, ask = EngineOptions(), RequestOptions()
    engine, request = ctypes.c_void_p(), ctypes.c_void_p()
    library.thespis_engine_options_init(ctypes.byref(options))
    options.checkpoint = os.fsencode(checkpoint)
    call(library.thespis_engine_open, ctypes.byref(options), ctypes.byref(engine))
    try:
        library.thespis_request_options_init(ctypes.byref(ask))
        ask.text = text.encode()
        ask.text_bytes = len(ask.text)
        ask.seed = seed
        call(library.thespis_request_start, engine, ctypes.byref(ask), ctypes.byref(request))
        samples, count = (ctypes.c_float * 4096)(), ctypes.c_size_t(1)
        while count.value > 0:
            call(library.thespis_request_read, request, samples, len(samples), ctypes.byref(count))
            yield samples[:count.value]
    finally:
        library.thespis_request_free(request)
        library.thespis_engine_close(engine)


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit("usage: speak.py CHECKPOINT TEXT OUT.wav [SEED]")
    seed = int(sys.argv[4]) if len(sys.argv) == 5 else RANDOM_SEED
    with wave.open(sys.argv[3], "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(44100)
        for block in speak(sys.argv[1], sys.argv[2], seed):
            out.writeframes(array.array("h", (int(x * 32767) for x in block)).tobytes())


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as failure:
        sys.exit(f"speak.py: {failure}")
