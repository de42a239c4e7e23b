"""Damaged requests, byte by byte: HTTP, JSON, MessagePack and forms, from fixed seeds, over many connections at once.

    THESPIS_BUILD=build/asan .clients/bin/python -m pytest -q tests/long/test_damage.py

A sanitizer build (asan, tsan) is what this is for: the server must not crash, hang or leak, and must speak as before afterwards.
THESPIS_DAMAGED says how many requests (default 10000), THESPIS_SEED where the draw begins.
"""

from __future__ import annotations

import base64
import json
import os
import random
import socket
import threading
import time

import numpy as np
import pytest
from conftest import program

pytest.importorskip("ormsgpack")
import ormsgpack  # noqa: E402
from serving import Server, wav_samples  # noqa: E402

COUNT = int(os.environ.get("THESPIS_DAMAGED", "10000"))
SEED = int(os.environ.get("THESPIS_SEED", "1"))
PATIENCE = 30.0  # seconds until a connection without an end counts as hanging; the server's own limits are 2
WORDS = [b"\x00", b"\r\n", b"\r\n\r\n", b"\n", b"%00", b"%2e%2e/", b"\xff" * 8, b"\xc0\x80", b"\xed\xa0\x80", b"{", b"[" * 64, b"}", b'"',
         b"\\u0000", b"\\ud800", b"1e999", b"-0", b"9223372036854775808", b"18446744073709551616", b"null", b"true", b"NaN", b"\xdc\xff\xff",
         b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc9\x00\x00\x00\x10\x01",
         b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n",
         b"Content-Length: 99999999999999999999\r\n", b"Expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/2.0", b"--edge--", b"--edge\r\n",
         b"<|im_end|>", b"<|speaker:3|>", b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"filename=\"\"", b"Connection: close\r\n"]  # fmt: skip


def message(method: str, path: str, type: str = "", body: bytes = b"", chunked: bool = False, extra: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{extra}"
    if type:
        head += f"Content-Type: {type}\r\n"
    if chunked:
        cut = len(body) // 2
        pieces = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in (body[:cut], body[cut:]) if p)
        return (head + "Transfer-Encoding: chunked\r\n\r\n").encode() + pieces + b"0\r\n\r\n"
    return (head + f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def form(**fields) -> bytes:
    out = b""
    for name, value in fields.items():
        file = f'; filename="{name}.wav"\r\nContent-Type: audio/wav' if isinstance(value, bytes) else ""
        head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        out += head.encode() + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
    return out + b"--edge--\r\n"


def well_formed(clip: bytes) -> list[bytes]:
    data = base64.b64encode(clip).decode()
    multipart = "multipart/form-data; boundary=edge"
    speech = {"input": "Hi.", "voice": {"id": "alloy"}, "response_format": "pcm", "max_new_tokens": 2, "seed": 1, "temperature": 0.5}
    cloned = {**speech, "stream": True, "references": [{"data": data, "media_type": "audio/wav", "text": "Hm."}]}
    tts = {"text": "Hi.", "format": "opus", "max_new_tokens": 2, "streaming": True, "prosody": {"speed": 1.0, "volume": -3},
           "chunk_length": 200, "latency": "balanced", "reference_id": None, "top_p": 0.7}  # fmt: skip
    batch = {"items": [{"input": "One."}, {"input": "Two.", "seed": 2}], "max_new_tokens": 2, "response_format": "flac"}
    j = "application/json"
    return [
        message("POST", "/v1/audio/speech", j, json.dumps(speech).encode()),
        message("POST", "/v1/audio/speech", j, json.dumps({**speech, "stream_format": "sse"}).encode(), chunked=True),
        message("POST", "/v1/audio/speech", j, json.dumps(cloned).encode()),
        message("POST", "/v1/audio/speech", j, json.dumps({**speech, "references": [{"vq_codes": [[1, 2]] * 10}]}).encode()),
        message("POST", "/v1/audio/speech/batch", j, json.dumps(batch).encode()),
        message("POST", "/v1/tts", j, json.dumps(tts).encode(), extra="Expect: 100-continue\r\n"),
        message("POST", "/v1/tts", "application/msgpack", ormsgpack.packb(tts)),
        message("POST", "/v1/tts", "application/msgpack", ormsgpack.packb({**tts, "references": [{"audio": clip, "text": "Hm."}]})),
        message("POST", "/v1/tts", multipart, form(text="Hi.", format="mp3", max_new_tokens="2", streaming="true")),
        message("POST", "/v1/tts", "application/x-www-form-urlencoded", b"text=Hi.&format=wav&max_new_tokens=2"),
        message("POST", "/v1/audio/voices", multipart, form(name="damaged", consent="yes", ref_text="Hm.", audio_sample=clip)),
        message("POST", "/v1/references/add", multipart, form(id="damaged2", text="Hm.", audio=clip)),
        message("DELETE", "/v1/references/delete", j, b'{"reference_id":"damaged2"}'),
        message("POST", "/v1/references/update", j, b'{"old_reference_id":"damaged2","new_reference_id":"damaged"}'),
        message("DELETE", "/v1/audio/voices/damaged"),
        message("GET", "/v1/audio/voices?names_only=true", extra="Authorization: Bearer k\r\nX-Request-Id: a\r\n"),
        message("GET", "/metrics") + message("GET", "/health") + message("GET", "/v1/models/drama-3"),
        message("OPTIONS", "/v1/tts", extra="Origin: http://x\r\nAccess-Control-Request-Method: POST\r\n"),
    ]


def damage(draw: random.Random, whole: bytes, others: list[bytes]) -> bytes:
    data = bytearray(whole)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        at = draw.randrange(len(data) + 1)
        # Half of it where HTTP is: there are few of its bytes beside a recording's.
        if draw.random() < 0.5:
            at = draw.randrange(min(len(data), 400) + 1)
        end = min(len(data), at + draw.choice((1, 1, 2, 4, 16, 200)))
        kind = draw.randrange(8)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = draw.randrange(256)
        elif kind == 2:
            data[at:at] = draw.choice(WORDS)
        elif kind == 3:
            data[at:end] = draw.choice(WORDS)
        elif kind == 4:
            del data[at:end]
        elif kind == 5:
            data[at:at] = data[at:end] * draw.choice((1, 2, 50))
        elif kind == 6:
            del data[at:]
        else:
            other = draw.choice(others)
            begin = draw.randrange(len(other))
            data[at:end] = other[begin : begin + draw.choice((4, 30, 300))]
    return bytes(data)


class Attack:
    def __init__(self, server: Server, messages: list[bytes]) -> None:
        self.server, self.messages = server, messages
        self.lock, self.next, self.wrong, self.statuses = threading.Lock(), 0, [], {}

    def run(self) -> None:
        while True:
            with self.lock:
                number = self.next
                self.next += 1
                if number >= COUNT or len(self.wrong) > 5:
                    return
            draw = random.Random(SEED * 1_000_003 + number)
            data = damage(draw, draw.choice(self.messages), self.messages)
            try:
                self.send(draw, data)
            except Exception as error:  # noqa: BLE001: whatever it is, it is told with its number
                with self.lock:
                    self.wrong.append(f"request {number}: {error!r}: {data[:300]!r}")

    def send(self, draw: random.Random, data: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE) as s:
            begun = time.monotonic()
            try:
                cut = draw.randrange(len(data) + 1) if draw.random() < 0.2 else len(data)
                s.sendall(data[:cut])
                s.sendall(data[cut:])
                if draw.random() < 0.8:
                    s.shutdown(socket.SHUT_WR)
                elif draw.random() < 0.5:
                    return  # gone without a word
            except OSError:
                pass  # refused before it was read
            answer = b""
            try:
                while piece := s.recv(65536):
                    answer = answer or piece
                    if time.monotonic() - begun > PATIENCE:
                        raise AssertionError("an answer without an end")
            except ConnectionError:
                pass
            except TimeoutError:
                raise AssertionError("no answer and no end") from None
        if answer and not answer.startswith(b"HTTP/1."):
            raise AssertionError(f"no HTTP: {answer[:100]!r}")
        with self.lock:
            status = answer[9:12].decode(errors="replace")
            self.statuses[status] = self.statuses.get(status, 0) + 1


def test_damaged_requests(tmp_path):
    options = ["--lanes", "4", "--max-audio-seconds", "1", "--body-timeout", "2", "--idle-timeout", "2", "--write-timeout", "2", "--allow-half-close"]
    with Server(program("thespis"), tmp_path, *options) as server:
        clip = server.speech(input="The stage is set.", response_format="wav", seed=3, max_new_tokens=14)[1]
        before = server.speech(input="Hi.", response_format="wav", seed=7, max_new_tokens=8)[1]
        attack = Attack(server, well_formed(clip))
        threads = [threading.Thread(target=attack.run) for _ in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not attack.wrong, "\n".join(attack.wrong) + server.log()
        assert server.process.poll() is None, server.log()
        print(dict(sorted(attack.statuses.items())))
        assert attack.statuses.get("200", 0) > COUNT / 100 and attack.statuses.get("400", 0) > COUNT / 100
        assert not {"500", "503"} & set(attack.statuses)
        until = time.monotonic() + 20
        while server.metric("thespis_requests_running") > 1 or server.metric("thespis_lanes_active") > 0:
            assert time.monotonic() < until, "requests are left running"
            time.sleep(0.1)
        after = server.speech(input="Hi.", response_format="wav", seed=7, max_new_tokens=8)[1]
        assert np.array_equal(wav_samples(before), wav_samples(after))
    assert "Sanitizer" not in server.log(), server.log()
