"""The official clients against a running server, and every example of the interface's description.

    THESPIS_BUILD=build/release .clients/bin/python -m pytest -q tests/long/test_clients.py

needs the packages of requirements-clients.txt. The clients are used as their users use them, unchanged.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import wave

import pytest

openai = pytest.importorskip("openai")
fishaudio = pytest.importorskip("fishaudio")
fish_legacy = pytest.importorskip("fish_audio_sdk")
pytest.importorskip("soundfile")

import numpy as np  # noqa: E402
import ormsgpack  # noqa: E402
from conftest import ROOT, program  # noqa: E402
from serving import Server, decode, events, pcm, wav_samples  # noqa: E402

TEXT = "The bell rang twice."
FORMATS = ["mp3", "opus", "flac", "wav", "pcm"] + (["aac"] if shutil.which("ffmpeg") else [])
OPENAI_VOICES = "alloy ash ballad coral echo fable onyx nova sage shimmer verse marin cedar".split()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(program("thespis"), tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(api_key="any", base_url=server.base + "/v1", max_retries=0)


@pytest.fixture  # one for each event loop
def aclient(server):
    return openai.AsyncOpenAI(api_key="any", base_url=server.base + "/v1", max_retries=0)


@pytest.fixture(scope="module")
def fish(server):
    return fishaudio.FishAudio(api_key="any", base_url=server.base)


@pytest.fixture(scope="module")
def clip(server) -> bytes:
    """A recording to clone: 44.1 kHz WAV of about two seconds."""
    return server.speech(input="The stage is set, and every word is spoken live.", response_format="wav", seed=3, max_new_tokens=60)[1]


@pytest.fixture(scope="module")
def plain(server):
    """The samples of TEXT with seed 7, as every lossless way must give them."""
    return wav_samples(server.speech(input=TEXT, response_format="wav", seed=7)[1])


def curl(server, path: str, *arguments: str) -> tuple[int, dict, bytes]:
    command = ["curl", "-sS", "-D", "-", *arguments, server.base + path]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    head, body = done.stdout.split(b"\r\n\r\n", 1)
    while head.split(b" ")[1] == b"100":
        head, body = body.split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    return int(lines[0].split()[1]), {k.lower(): v for k, v in (x.split(": ", 1) for x in lines[1:])}, body


def curl_json(server, path: str, body: str, *arguments: str):
    return curl(server, path, "-H", "Content-Type: application/json", "-d", body, *arguments)


# ---- openai: speech ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_openai_whole(client, plain, format):
    answer = client.audio.speech.create(model="tts-1", voice="alloy", input=TEXT, response_format=format, extra_body={"seed": 7})
    check_sound(answer.content, format, plain)


@pytest.mark.parametrize("format", FORMATS)
def test_openai_streaming_file(client, plain, format, tmp_path):
    with client.audio.speech.with_streaming_response.create(
        model="drama-3", voice="alloy", input=TEXT, response_format=format, extra_body={"seed": 7}
    ) as answer:
        answer.stream_to_file(tmp_path / "speech")
    check_sound((tmp_path / "speech").read_bytes(), format, plain)


@pytest.mark.parametrize("format", FORMATS)
def test_openai_async_streaming(aclient, plain, format):
    async def speak() -> bytes:
        async with aclient.audio.speech.with_streaming_response.create(
            model="drama-3", voice="alloy", input=TEXT, response_format=format, extra_body={"seed": 7, "stream": True}
        ) as answer:
            assert answer.headers["transfer-encoding"] == "chunked"
            return b"".join([piece async for piece in answer.iter_bytes()])

    check_sound(asyncio.run(speak()), format, plain)


def check_sound(data: bytes, format: str, plain: np.ndarray) -> None:
    """Lossless ones are the very samples, the others as long and like them."""
    seconds = len(plain) / 44100
    if format == "pcm":  # which is 24 kHz for this interface's clients
        assert abs(len(data) / 2 / 24000 - seconds) < 0.001
        return
    once = {"wav": b"RIFF", "flac": b"fLaC", "opus": b"OpusHead"}.get(format)
    assert once is None or data.count(once) == 1
    if format == "wav":
        assert np.array_equal(wav_samples(data), plain)
        return
    samples, rate = decode(data, len(plain))
    if format == "flac":
        assert rate == 44100 and np.array_equal(np.round(samples * 32768).astype(np.int16), plain)
    elif format == "opus":
        assert rate == 48000 and len(samples) == round(len(plain) * 48000 / 44100)
    else:
        assert rate == 44100 and 0 <= len(samples) - len(plain) < 4 * 1152  # mp3, aac: the encoder's delay, whole blocks
    loud = lambda x: np.sqrt(np.mean(np.square(x)))  # noqa: E731
    assert abs(loud(samples) * np.sqrt(len(samples) / rate / seconds) / loud(plain / 32767) - 1) < 0.1


def test_openai_default_is_mp3(client):
    answer = client.audio.speech.create(model="tts-1-hd", voice="nova", input="Hi.")
    assert answer.response.headers["content-type"] == "audio/mpeg"
    assert decode(answer.content)[1] == 44100


def test_openai_async_whole(aclient, plain):
    async def speak():
        return (await aclient.audio.speech.create(model="x", voice="alloy", input=TEXT, response_format="wav", extra_body={"seed": 7})).content

    assert np.array_equal(wav_samples(asyncio.run(speak())), plain)


def test_openai_many_at_once(aclient, plain):
    """The same bytes with others beside it."""

    async def speak(text, seed):
        body = {"seed": seed}
        return (await aclient.audio.speech.create(model="x", voice="alloy", input=text, response_format="wav", extra_body=body)).content

    async def all_at_once():
        return await asyncio.gather(speak(TEXT, 7), *(speak(f"Number {i} is here.", i) for i in range(7)))

    assert np.array_equal(wav_samples(asyncio.run(all_at_once())[0]), plain)


@pytest.mark.parametrize("voice", OPENAI_VOICES)
def test_openai_voices(client, voice):
    client.audio.speech.create(model="tts-1", voice=voice, input="Hi.", response_format="pcm", extra_body={"max_new_tokens": 8})


def test_openai_voice_object(client, plain):
    answer = client.audio.speech.create(
        model="tts-1", voice={"id": "alloy"}, input=TEXT, response_format="wav", extra_body={"seed": 7}
    )
    assert np.array_equal(wav_samples(answer.content), plain)


def test_openai_headers(client):
    answer = client.audio.speech.with_raw_response.create(
        model="tts-1", voice="alloy", input=TEXT, response_format="wav", extra_body={"seed": 7}
    )
    head = answer.headers
    assert head["x-seed"] == "7" and head["x-finish-reason"] in ("stop", "length") and head["x-request-id"]
    frames = int(head["x-completion-tokens"])
    assert int(head["content-length"]) == 44 + frames * 4096
    assert int(head["x-prompt-tokens"]) > 0 and float(head["x-engine-time"]) > 0


def test_openai_drawn_seed_repeats(client):
    ask = dict(model="tts-1", voice="alloy", input="Hi there.", response_format="wav")
    first = client.audio.speech.with_raw_response.create(**ask)
    seed = int(first.headers["x-seed"])
    again = client.audio.speech.create(**ask, extra_body={"seed": seed})
    assert first.content == again.content


def test_openai_large_seed(client):
    seed = 2**63 - 1
    answer = client.audio.speech.with_raw_response.create(
        model="x", voice="alloy", input="Hi.", response_format="wav", extra_body={"seed": seed, "max_new_tokens": 4}
    )
    assert answer.headers["x-seed"] == str(seed)


@pytest.mark.parametrize("format", [None, "pcm", "mp3", "wav", "flac", "opus"])
def test_openai_sse(client, server, format, plain):
    extra = {"response_format": format} if format else {}
    with client.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="alloy", input=TEXT, stream_format="sse", extra_body={"seed": 7, "sample_rate": 44100} if format in (None, "pcm") else {"seed": 7}, **extra
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = events(answer.read())
    assert [e["type"] for e in found[:-1]] == ["speech.audio.delta"] * (len(found) - 1)
    done = found[-1]
    assert done["type"] == "speech.audio.done"
    usage = done["usage"]
    assert usage["input_tokens"] + usage["output_tokens"] == usage["total_tokens"]
    data = b"".join(base64.b64decode(e["audio"], validate=True) for e in found[:-1])
    if format in (None, "pcm"):
        assert all(len(base64.b64decode(e["audio"])) % 2 == 0 for e in found[:-1])
        assert np.array_equal(pcm(data), plain)
    else:
        check_sound(data, format, plain)


def test_openai_sse_async(aclient):
    async def speak():
        async with aclient.audio.speech.with_streaming_response.create(
            model="x", voice="alloy", input=TEXT, stream_format="sse"
        ) as answer:
            return [line async for line in answer.iter_lines() if line]

    lines = asyncio.run(speak())
    assert json.loads(lines[-1].removeprefix("data: "))["type"] == "speech.audio.done"


def test_openai_speed(client):
    assert client.audio.speech.create(model="x", voice="alloy", input="Hi.", speed=1.0).content
    for speed in (0.25, 4.0):
        try:
            client.audio.speech.create(model="x", voice="alloy", input="Hi.", speed=speed, response_format="pcm")
        except openai.BadRequestError as error:
            assert error.param == "speed"
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(model="x", voice="alloy", input="Hi.", speed=9)
    assert caught.value.param == "speed"


@pytest.mark.parametrize("rate", [8000, 16000, 24000, 48000])
def test_openai_pcm_rates(client, plain, rate):
    answer = client.audio.speech.with_raw_response.create(
        model="x", voice="alloy", input=TEXT, response_format="pcm", extra_body={"sample_rate": rate, "seed": 7}
    )
    assert abs(len(answer.content) / 2 / rate - len(plain) / 44100) < 0.001


# ---- openai: errors, models, voices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, param, words",
    [
        ({"input": "   "}, "input", "non-empty"),
        ({"input": "😀🎉"}, "input", ""),
        ({"input": "a <|im_end|> b"}, "input", "<|im_end|>"),
        ({"input": "a <|speaker:16|> b"}, "input", "<|speaker:16|>"),
        ({"input": "x" * 200000}, "input", ""),
        ({"voice": "nobody"}, "voice", "nobody"),
                ({"response_format": "midi"}, "response_format", "mp3"),
        ({"stream_format": "xml"}, "stream_format", ""),
        ({"instructions": "Whisper."}, "instructions", "brackets"),
        ({"extra_body": {"tone": "warm"}}, "tone", "unknown speech request field: tone"),
        ({"extra_body": {"top_k": 30.0}}, "top_k", ""),
        ({"extra_body": {"top_p": 0}}, "top_p", ""),
        ({"extra_body": {"max_new_tokens": 2049}}, "max_new_tokens", ""),
        ({"extra_body": {"seed": -1}}, "seed", ""),
        ({"extra_body": {"seed": 2**63}}, None, ""),  # no JSON reader holds it: the position is told
        ({"extra_body": {"temperature": "1.0"}}, "temperature", ""),
        ({"extra_body": {"stream": 1}}, "stream", ""),
        ({"extra_body": {"sample_rate": 96000}}, "sample_rate", ""),
        ({"extra_body": {"repetition_penalty": 1.2}}, "repetition_penalty", ""),
        ({"extra_body": {"language": "en"}}, "language", "not supported"),
    ],
)
def test_openai_refusals(client, fields, param, words):
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(**{"model": "tts-1", "voice": "alloy", "input": "Hi.", **fields})
    assert (param is None or caught.value.param == param) and words in caught.value.message
    assert caught.value.type == "invalid_request_error"


def test_openai_models(client):
    models = client.models.list().data
    assert len(models) == 1 and models[0].object == "model"
    assert client.models.retrieve(models[0].id).id == models[0].id
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nothing")
    assert caught.value.code == "model_not_found"


def test_openai_voice_store(client, server, clip):
    voice = client.audio.voices.create(name="Otto", audio_sample=("otto.wav", clip, "audio/wav"), consent="yes")
    assert voice.object == "audio.voice" and voice.type == "audio_sample" and voice.name.lower() == "otto"
    listed = server.call("GET", "/v1/audio/voices")[2]
    assert any(v["name"].lower() == "otto" for v in json.loads(listed)["uploaded_voices"])
    ask = dict(model="x", input="Hi there.", response_format="wav", extra_body={"seed": 5})
    first = client.audio.speech.create(voice="otto", **ask).content
    assert client.audio.speech.create(voice={"id": voice.id}, **ask).content == first
    assert client.audio.speech.create(voice="alloy", **ask).content != first
    assert client.audio.voices.delete("OTTO").deleted
    with pytest.raises(openai.NotFoundError):
        client.audio.voices.delete("Otto")
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.speech.create(voice="otto", **ask)
    assert caught.value.param == "voice"
    with pytest.raises(openai.BadRequestError):
        client.audio.voices.create(name="Prompted", prompt="A warm voice.", type="prompt")


def test_openai_cut_body_raises(server, tmp_path):
    """A server that is told twice to end cuts its streams; no client takes that for a whole answer."""
    with Server(program("thespis"), tmp_path) as other:
        client = openai.OpenAI(api_key="any", base_url=other.base + "/v1", max_retries=0)
        long = " ".join(f"This is sentence number {i}, and it goes on." for i in range(200))
        with pytest.raises(Exception):
            with client.audio.speech.with_streaming_response.create(
                model="x", voice="alloy", input=long, response_format="pcm"
            ) as answer:
                for i, _ in enumerate(answer.iter_bytes()):
                    if i == 1:
                        other.killed = True
                        other.process.send_signal(signal.SIGTERM)
                        time.sleep(0.2)
                        other.process.send_signal(signal.SIGTERM)


# ---- fish: the package fishaudio ------------------------------------------------------------------------------------------------


def fish_pcm(server, **fields) -> np.ndarray:
    """TEXT with the SDK's drawing values, seed 7."""
    body = {"text": TEXT, "format": "pcm", "seed": 7, **fields}
    status, headers, data = server.call("POST", "/v1/tts", ormsgpack.packb(body), {"Content-Type": "application/msgpack"})
    assert status == 200, data
    assert headers["x-sample-rate"] == "44100"
    return pcm(data)


def test_fish_route_is_the_same_speech(server, plain):
    assert np.array_equal(fish_pcm(server), plain)
    assert np.array_equal(fish_pcm(server, streaming=False), plain)


def test_fish_convert_default_mp3(fish):
    data = fish.tts.convert(text="Hi.")
    assert decode(data)[1] == 44100


@pytest.mark.parametrize("format", ["mp3", "wav", "pcm", "opus"])
def test_fish_formats(fish, format):
    data = fish.tts.convert(text=TEXT, format=format)
    if format == "wav":
        assert len(wav_samples(data)) % 2048 == 0
    elif format == "pcm":
        assert len(data) % 4096 == 0
    else:
        assert decode(data)[1] == (48000 if format == "opus" else 44100)


def test_fish_stream(fish):
    pieces = list(fish.tts.stream(text="The stage is set, and every word is spoken live.", format="pcm"))
    assert sum(map(len, pieces)) % 4096 == 0


@pytest.mark.parametrize("latency", ["normal", "balanced"])
def test_fish_latency(fish, latency):
    assert fish.tts.convert(text="Hi.", latency=latency, format="wav")[:4] == b"RIFF"


def test_fish_references(fish, clip):
    reference = fishaudio.types.ReferenceAudio(audio=clip, text="The stage is set, and every word is spoken live.")
    assert decode(fish.tts.convert(text="Hi.", references=[reference]))[1] == 44100
    assert decode(fish.tts.convert(text="Hi.", references=[reference, reference]))[1] == 44100


@pytest.mark.parametrize("bitrate", [64, 128, 192])
def test_fish_mp3_bitrates(fish, bitrate):
    config = fishaudio.types.TTSConfig(mp3_bitrate=bitrate, format="mp3")
    data = fish.tts.convert(text=TEXT, config=config)
    seconds = len(decode(data)[0]) / 44100
    assert abs(len(data) * 8 / seconds / 1000 / bitrate - 1) < 0.05


@pytest.mark.parametrize("bitrate", [-1000, 24, 32, 48, 64])
def test_fish_opus_bitrates(fish, bitrate):
    config = fishaudio.types.TTSConfig(opus_bitrate=bitrate, format="opus")
    assert decode(fish.tts.convert(text="Hi.", config=config))[1] == 48000


@pytest.mark.parametrize("format, rate", [("wav", 24000), ("pcm", 16000), ("mp3", 32000), ("mp3", 8000)])
def test_fish_sample_rates(fish, format, rate):
    config = fishaudio.types.TTSConfig(sample_rate=rate, format=format)
    data = fish.tts.convert(text="Hi.", config=config)
    if format == "pcm":
        assert len(data) > rate // 10
    elif format == "wav":
        assert int.from_bytes(data[24:28], "little") == rate
    else:
        assert decode(data)[1] == rate


def test_fish_config(fish):
    config = fishaudio.types.TTSConfig(
        format="wav", chunk_length=100, temperature=0.9, top_p=0.95, max_new_tokens=20, condition_on_previous_chunks=False
    )
    assert len(wav_samples(fish.tts.convert(text=TEXT, config=config))) == 20 * 2048
    with pytest.raises(fishaudio.exceptions.APIError) as caught:
        fish.tts.convert(text="Hi.", config=fishaudio.types.TTSConfig(top_p=0.0))
    assert caught.value.status == 400 and "top_p" in caught.value.message


def test_fish_volume(server):
    loud, quiet = fish_pcm(server), fish_pcm(server, prosody={"volume": -20})
    assert len(loud) == len(quiet)
    assert abs(np.abs(quiet).max() / np.abs(loud).max() - 0.1) < 0.01


def test_fish_errors(fish):
    with pytest.raises(fishaudio.exceptions.NotFoundError) as caught:
        fish.tts.convert(text="Hi.", reference_id="nobody")
    assert "nobody" in caught.value.message
    with pytest.raises(fishaudio.exceptions.APIError) as caught:
        fish.tts.convert(text="   ")
    assert caught.value.status == 400 and caught.value.message


def test_fish_async(server):
    async def speak():
        async with fishaudio.AsyncFishAudio(api_key="x", base_url=server.base) as client:
            whole = await client.tts.convert(text="Hi.")
            stream = await client.tts.stream(text="Hi.", format="pcm")
            return whole, b"".join([piece async for piece in stream])

    whole, streamed = asyncio.run(speak())
    assert decode(whole)[1] == 44100 and len(streamed) % 4096 == 0


# ---- fish: the package fish_audio_sdk -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["speech-1.5", "s1", "s2-pro"])
def test_legacy(server, backend):
    data = b"".join(fish_legacy.Session("x", base_url=server.base).tts(fish_legacy.TTSRequest(text="Hi."), backend=backend))
    assert decode(data)[1] == 44100


@pytest.mark.parametrize("format", ["wav", "pcm", "mp3"])
def test_legacy_formats(server, format):
    request = fish_legacy.TTSRequest(text="Hi.", format=format)
    assert len(b"".join(fish_legacy.Session("x", base_url=server.base).tts(request))) > 1000


def test_legacy_references(server, clip):
    reference = fish_legacy.ReferenceAudio(audio=clip, text="The stage is set, and every word is spoken live.")
    request = fish_legacy.TTSRequest(text="Hi.", references=[reference], format="wav")
    assert b"".join(fish_legacy.Session("x", base_url=server.base).tts(request))[:4] == b"RIFF"


def test_legacy_async(server):
    async def speak():
        session = fish_legacy.Session("x", base_url=server.base)
        return b"".join([piece async for piece in session.tts.awaitable(fish_legacy.TTSRequest(text="Hi."))])

    assert decode(asyncio.run(speak()))[1] == 44100


def test_legacy_errors(server):
    session = fish_legacy.Session("x", base_url=server.base)
    with pytest.raises(fish_legacy.exceptions.HttpCodeErr) as caught:
        list(session.tts(fish_legacy.TTSRequest(text="Hi.", reference_id="nobody")))
    assert caught.value.status == 404
    # Calls that read the body pass its keys on as arguments: exactly status and message.
    with pytest.raises(fish_legacy.exceptions.HttpCodeErr) as caught:
        session.get_api_credit()
    assert caught.value.status == 404


def test_fish_store(server, clip):
    def form(**fields):
        parts, mark = b"", "x-y-z"
        for name, value in fields.items():
            file = f'; filename="{name}.wav"\r\nContent-Type: audio/wav' if isinstance(value, bytes) else ""
            body = value if isinstance(value, bytes) else value.encode()
            parts += f'--{mark}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + body + b"\r\n"
        return parts + f"--{mark}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={mark}"}

    def ask(method, path, body=None):
        status, _, data = server.call(method, path, body)
        return status, json.loads(data)

    body, head = form(id="fishy", audio=clip, text="The stage is set, and every word is spoken live.")
    status, _, data = server.call("POST", "/v1/references/add", body, head)
    assert status == 200 and json.loads(data)["reference_id"] == "fishy"
    assert server.call("POST", "/v1/references/add", body, head)[0] == 409
    status, listed = ask("GET", "/v1/references/list?format=json")
    assert status == 200 and "fishy" in listed["reference_ids"]
    client = fishaudio.FishAudio(api_key="x", base_url=server.base)
    assert client.tts.convert(text="Hi.", reference_id="fishy", format="wav")[:4] == b"RIFF"
    assert ask("POST", "/v1/references/update?format=json", {"old_reference_id": "fishy", "new_reference_id": "scaly"})[0] == 200
    assert client.tts.convert(text="Hi.", reference_id="scaly", format="wav")[:4] == b"RIFF"
    assert ask("DELETE", "/v1/references/delete?format=json", {"reference_id": "scaly"})[0] == 200
    assert ask("DELETE", "/v1/references/delete?format=json", {"reference_id": "scaly"})[0] == 404


# ---- curl: the examples of the interface's description --------------------------------------------------------------------------


def test_example_1_wav(server, tmp_path):
    body = '{"model":"drama-3","input":"Hello there.","voice":"alloy","response_format":"wav","seed":7}'
    status, head, first = curl_json(server, "/v1/audio/speech", body)
    assert status == 200 and head["content-type"] == "audio/wav" and head["x-seed"] == "7"
    assert head["content-disposition"] == 'attachment; filename="speech.wav"'
    assert curl_json(server, "/v1/audio/speech", body)[2] == first
    with wave.open(io.BytesIO(first)) as file:
        assert file.getnframes() * 2 + 44 == len(first) == int(head["content-length"])


def test_example_2_pcm(server):
    body = '{"model":"drama-3","input":"Hello there.","voice":"default","response_format":"pcm","sample_rate":44100,"stream":true}'
    status, head, data = curl_json(server, "/v1/audio/speech", body, "-N")
    assert status == 200 and head["transfer-encoding"] == "chunked" and "content-length" not in head
    assert head["x-sample-rate"] == "44100" and head["x-channels"] == "1" and head["x-bit-depth"] == "16"
    assert head["cache-control"] == "no-store" and head["x-accel-buffering"] == "no"
    outcome = json.loads(curl(server, "/v1/audio/speech/" + head["x-request-id"])[2])
    assert outcome["finish_reason"] == "stop"
    assert len(data) == outcome["usage"]["completion_tokens"] * 4096
    status, _, data = curl(server, "/v1/audio/speech/unheard-of")
    assert status == 404


def test_example_3_sse(server):
    sse = curl_json(server, "/v1/audio/speech", '{"input":"Hi.","voice":"default","stream_format":"sse","seed":4}', "-N")
    raw = curl_json(server, "/v1/audio/speech", '{"input":"Hi.","voice":"default","response_format":"pcm","stream":true,"seed":4}')
    found = events(sse[2])
    assert sum(e["type"] == "speech.audio.done" for e in found) == 1
    assert b"".join(base64.b64decode(e["audio"]) for e in found[:-1]) == raw[2]


# Example 4 is test_openai_streaming_file.


@pytest.mark.parametrize(
    "body, param, words",
    [
        ('{"input":"   ","voice":"default"}', "input", "input must be a non-empty string"),
        ('{"input":"a <|im_end|> b","voice":"default"}', "input", "<|im_end|>"),
        ('{"input":"Hi.","voice":"nobody"}', "voice", "unknown voice"),
        ('{"input":"Hi.","tone":"warm"}', "tone", "unknown speech request field: tone"),
        ('{"input":"Hi.","top_k":30.0}', "top_k", ""),
        ('{"input":"Hi.","top_p":0}', "top_p", ""),
        ('{"input":"Hi.","max_new_tokens":2049}', "max_new_tokens", ""),
        ('{"input":"Hi.","speed":5}', "speed", ""),
        ('{"input":', None, "must be valid JSON"),
        ("[]", None, "must be a JSON object"),
        ('{"input":"Hi.","input":"Ho."}', None, ""),
        ('{"input":"Hi.","seed":NaN}', None, "must be valid JSON"),
        ('{"input":"H\\u0000i."}', None, ""),
        ('{"voice":"default"}', "input", ""),
        ('{"input":7}', "input", ""),
        ('{"input":"Hi.","ref_text":"alone"}', "ref_text", ""),
    ],
)
def test_examples_5_to_8_and_13(server, body, param, words):
    status, _, data = curl_json(server, "/v1/audio/speech", body)
    error = json.loads(data)["error"]
    assert status == 400 and error["type"] == "invalid_request_error" and error["code"] == 400
    assert set(error) == {"message", "type", "param", "code"}
    assert words in error["message"] and (param is None or error["param"] == param)


def test_example_5_exactly(server):
    data = curl_json(server, "/v1/audio/speech", '{"input":"   ","voice":"default"}')[2]
    assert json.loads(data) == {
        "error": {"message": "input must be a non-empty string", "type": "invalid_request_error", "param": "input", "code": 400}
    }


def test_example_9_clone(server, clip):
    reference = {"data": base64.b64encode(clip).decode(), "media_type": "audio/wav", "text": "The stage is set."}
    ask = {"input": "New words.", "voice": "default", "references": [reference], "response_format": "wav", "seed": 2}
    first = server.speech(**ask)[1]
    hits = server.metric("thespis_voice_cache_hits_total")
    assert server.speech(**ask)[1] == first
    assert server.metric("thespis_voice_cache_hits_total") == hits + 1
    url = "data:audio/x-wav;base64," + reference["data"]
    assert server.speech(**{**ask, "references": [{"audio": url, "text": "The stage is set."}]})[1] == first
    assert server.speech(**{**ask, "references": None}, ref_audio=url, ref_text="The stage is set.")[1] == first
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(2 * 8000 * 90))
    long = {"data": base64.b64encode(buffer.getvalue()).decode(), "text": "Silence."}
    status, _, data = server.call("POST", "/v1/audio/speech", {**ask, "references": [long]})
    message = json.loads(data)["error"]["message"]
    assert status == 400 and message.startswith("references.0: ") and "90" in message and "60" in message


@pytest.mark.parametrize(
    "reference, words",
    [
        ({"data": "UklGR*", "text": "x"}, "position 5"),
        ({"data": base64.b64encode(b"\x1a\x45\xdf\xa3webm" * 20).decode(), "text": "x"}, "WebM"),
        ({"audio_path": "/etc/passwd", "text": "x"}, ""),
        ({"audio_path": "file:///etc/passwd", "text": "x"}, ""),
        ({"ref_audio": "http://127.0.0.1/x.wav", "text": "x"}, ""),
        ({"data": "UklGRg==", "media_type": "text/plain", "text": "x"}, "audio/"),
        ({"text": "x"}, ""),
        ({"data": "UklGRg==", "pitch": 3}, "pitch"),
    ],
)
def test_references_refused(server, reference, words):
    status, _, data = server.call("POST", "/v1/audio/speech", {"input": "Hi.", "references": [reference]})
    error = json.loads(data)["error"]
    assert status == 400 and error["message"].startswith("references.0") or error["param"].startswith("references.0")
    assert status == 400 and words in error["message"], error


def test_example_10_voices(server, clip, tmp_path):
    (tmp_path / "clip.wav").write_bytes(clip)
    form = ["-F", "name=anna", "-F", "consent=yes", "-F", "ref_text=What the clip says.", "-F", f"audio_sample=@{tmp_path}/clip.wav"]
    status, _, data = curl(server, "/v1/audio/voices", *form)
    voice = json.loads(data)
    assert status == 200 and voice["object"] == "audio.voice" and "warning" not in voice
    assert curl_json(server, "/v1/audio/speech", '{"input":"Hi.","voice":"Anna"}')[0] == 200
    status, _, data = curl(server, "/v1/audio/voices", *form)
    assert status == 200 and json.loads(data)["warning"]
    form[1] = "name=default"
    assert curl(server, "/v1/audio/voices", *form)[0] == 400
    listed = json.loads(curl(server, "/v1/audio/voices")[2])
    assert "default" in listed["voices"] and "anna" in listed["voices"] and listed["object"] == "list"
    names = json.loads(curl(server, "/v1/audio/voices?names_only=true")[2])
    assert "anna" in names["uploaded_voice_names"]
    status, _, data = curl(server, "/v1/audio/voices/anna", "-X", "DELETE")
    assert status == 200 and json.loads(data)["success"] and json.loads(data)["deleted"]
    assert curl(server, "/v1/audio/voices/anna", "-X", "DELETE")[0] == 404


# Example 11 is test_fish_references, test_fish_errors and test_legacy.


def test_example_12_keys(tmp_path):
    with Server(program("thespis"), tmp_path, "--api-key", "k") as locked:
        status, head, data = locked.call("POST", "/v1/audio/speech", {"input": "Hi."})
        assert status == 401 and json.loads(data)["error"]["code"] == "invalid_api_key"
        assert head["www-authenticate"].startswith("Bearer")
        status, _, data = locked.call("POST", "/v1/tts", {"text": "Hi."})
        assert status == 401 and set(json.loads(data)) == {"status", "message"}
        assert locked.call("GET", "/health")[0] == 200 and locked.call("GET", "/v1/health")[0] == 200
        assert locked.call("GET", "/v1/models", headers={"Authorization": "bearer k"})[0] == 200
        assert locked.call("GET", "/v1/models", headers={"Authorization": "Bearer k2"})[0] == 401
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(api_key="wrong", base_url=locked.base + "/v1").models.list()
        assert openai.OpenAI(api_key="k", base_url=locked.base + "/v1").models.list().data
        with pytest.raises(fishaudio.exceptions.AuthenticationError):
            fishaudio.FishAudio(api_key="wrong", base_url=locked.base).tts.convert(text="Hi.")


def test_example_12_full_queue(tmp_path):
    with Server(program("thespis"), tmp_path, "--lanes", "1", "--queue", "1") as small:
        seen, lock = [], threading.Lock()
        long = "Every evening the old theatre opens its doors, and every evening somebody tells a story from far away. " * 4

        def ask():
            status, head, data = small.call("POST", "/v1/audio/speech", {"input": long, "voice": "default"})
            with lock:
                seen.append((status, head, data))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        refused = [x for x in seen if x[0] != 200]
        assert any(x[0] == 200 for x in seen) and refused
        for status, head, data in refused:
            error = json.loads(data)["error"]
            assert status == 429 and int(head["retry-after"]) >= 1
            assert error["type"] == "rate_limit_error" and error["code"] == "queue_full"
            assert error["message"] == "The request queue is full."


def test_example_12_client_leaves(server, plain):
    before = server.metric("thespis_finish_total", reason="cancelled")
    body = json.dumps({"input": "Every evening the old theatre opens its doors. " * 20, "voice": "default", "response_format": "pcm"})
    head = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as gone:
        gone.sendall((head + body).encode())
        while len(gone.recv(65536)) < 4096:
            pass
    until = time.monotonic() + 5
    while server.metric("thespis_requests_running") > 0 and time.monotonic() < until:
        time.sleep(0.02)
    assert server.metric("thespis_requests_running") == 0
    assert server.metric("thespis_finish_total", reason="cancelled") == before + 1
    assert np.array_equal(wav_samples(server.speech(input=TEXT, response_format="wav", seed=7)[1]), plain)


def test_example_13_methods(server):
    status, head, _ = curl(server, "/v1/audio/speech")
    assert status == 405 and head["allow"] == "POST"
    for path in ("/nothing", "//v1/models", "/v1/models/", "/v1/audio/speech/"):
        assert curl(server, path, "--path-as-is")[0] == 404
    status, head, data = server.call("HEAD", "/v1/models")
    assert status == 200 and data == b""


def test_streamed_wav(server, plain):
    head, data = server.speech(input=TEXT, seed=7, response_format="wav", stream=True)
    assert data[4:8] == data[40:44] == b"\xff\xff\xff\xff" and np.array_equal(pcm(data[44:]), plain)
    if shutil.which("ffprobe"):
        done = subprocess.run(["ffprobe", "-v", "error", "-"], input=data, capture_output=True)
        assert done.returncode == 0


def test_json_tts_and_forms(server, plain):
    status, _, data = server.call("POST", "/v1/tts", {"text": TEXT, "format": "wav", "seed": 7, "streaming": False})
    assert status == 200 and np.array_equal(wav_samples(data), plain)
    status, head, data = curl(server, "/v1/tts", "-F", f"text={TEXT}", "-F", "format=wav", "-F", "seed=7", "-F", "streaming=false")
    assert status == 200 and np.array_equal(wav_samples(data), plain)
    assert head["content-disposition"].replace('"', "") == "attachment; filename=audio.wav"
    assert server.call("POST", "/v1/tts", b"text", {"Content-Type": "text/csv"})[0] == 415


def test_batch(server, plain):
    body = {"voice": "default", "response_format": "wav", "seed": 7, "items": [{"input": TEXT}, {"input": " "}, {"input": TEXT, "seed": 8}]}
    status, _, data = server.call("POST", "/v1/audio/speech/batch", body)
    answer = json.loads(data)
    assert status == 200 and (answer["total"], answer["succeeded"], answer["failed"]) == (3, 2, 1)
    first, second, third = answer["results"]
    assert np.array_equal(wav_samples(base64.b64decode(first["audio_data"])), plain)
    assert second["status"] == "error" and second["error"]["param"] == "items.1.input"
    assert third["status"] == "success" and third["audio_data"] != first["audio_data"]


def test_program_and_server_agree(server, thespis, plain, tmp_path):
    for ending in ("wav", "flac", "mp3", "opus", "aac"):
        out = tmp_path / f"a.{ending}"
        thespis("speak", "--seed", 7, "--out", out, TEXT)
        data = server.speech(input=TEXT, seed=7, response_format=ending, stream=False)[1]
        assert out.read_bytes() == data, ending


def test_openai_retries_after_429(tmp_path):
    """The client waits as Retry-After says, and gets its answer."""
    with Server(program("thespis"), tmp_path, "--lanes", "1", "--queue", "1") as small:
        client = openai.OpenAI(api_key="x", base_url=small.base + "/v1", max_retries=8)

        def ask(done):
            done.append(client.audio.speech.create(model="x", voice="alloy", input="One, two, three.", response_format="pcm").content)

        done: list = []
        threads = [threading.Thread(target=ask, args=(done,)) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert len(done) == 4 and all(done)


@pytest.mark.parametrize("name", ["curl.sh", "openai_client.py", "fish_client.py", "speak.mjs"])
def test_examples_over_http(server, tmp_path, name):
    """examples/http as they are; each writes sound into the folder it is run in."""
    runner = {"py": [sys.executable], "mjs": ["node"], "sh": ["sh"]}[name.split(".")[1]]
    if shutil.which(runner[0]) is None:
        pytest.skip(f"no {runner[0]} here")
    script = ROOT / "examples" / "http" / name
    done = subprocess.run([*runner, script, server.base], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(file.stat().st_size > 1000 for file in tmp_path.iterdir()) and list(tmp_path.iterdir())
