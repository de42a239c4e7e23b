"""A running `thespis serve` for tests: started on a free port, ready, its log kept, ended and its exit status looked at."""

from __future__ import annotations

import http.client
import io
import json
import pathlib
import re
import signal
import socket
import subprocess
import time

import numpy as np
import soundfile


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """`with Server(program, folder, "--lanes", "4") as server:`"""

    def __init__(self, program: str, folder: pathlib.Path, *options: str) -> None:
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.log_path = folder / f"serve-{self.port}.log"
        self.killed = False  # set by a test that ends it in its own way
        self.voices = folder / f"voices-{self.port}"
        self.command = [program, "serve", "--port", str(self.port), "--voices", str(self.voices), "--drain-delay", "0", *options]

    def __enter__(self) -> "Server":
        self.log_file = self.log_path.open("wb")
        self.process = subprocess.Popen(self.command, stdout=self.log_file, stderr=subprocess.STDOUT)
        try:
            self.wait_for("/ready", 200)
        except Exception:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def wait_for(self, path: str, status: int, seconds: float = 120) -> None:
        until = time.monotonic() + seconds
        seen = None
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log()}")
            try:
                seen = self.call("GET", path)[0]
                if seen == status:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"{path} gives {seen}, not {status}:\n{self.log()}")

    def __exit__(self, kind, value, trace) -> None:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self.log_file.close()
        if kind is None and not self.killed:
            assert status == 0, f"the server ended with {status}:\n{self.log()}"

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")[-4000:]

    def call(self, method: str, path: str, body=None, headers=None):
        """(status, headers in lower case, bytes). A dict is sent as JSON."""
        headers = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def speech(self, **fields):
        """POST /v1/audio/speech that must give 200: (headers, bytes)."""
        status, headers, body = self.call("POST", "/v1/audio/speech", {"model": "drama-3", "voice": "default", **fields})
        assert status == 200, body
        return headers, body

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's lines that have these labels."""
        text = self.call("GET", "/metrics")[2].decode()
        total, seen = 0.0, False
        for line in text.splitlines():
            if not re.match(re.escape(name) + r"[ {]", line):
                continue
            if all(f'{key}="{value}"' in line for key, value in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
                seen = True
        assert seen or labels, f"no metric {name}"
        return total


def decode(data: bytes, count: int = 0):
    """(float samples, rate) of a whole sound file in memory. Python's soundfile cannot read a FLAC that knows no length, as streams
    do not: there the caller's count is written into it, and must be right."""
    if data[:2] in (b"\xff\xf1", b"\xff\xf9"):  # AAC, which libsndfile does not read
        command = "ffmpeg -v error -i - -f wav -".split()
        data = subprocess.run(command, input=data, capture_output=True, check=True).stdout
        return pcm(data[data.index(b"data") + 8 :]).astype(np.float32) / 32768, int.from_bytes(data[24:28], "little")
    if data[:4] == b"fLaC" and data[22:26] == bytes(4) and data[21] & 15 == 0:
        data = data[:22] + count.to_bytes(4, "big") + data[26:]
    return soundfile.read(io.BytesIO(data), dtype="float32")


def pcm(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2")


def wav_samples(data: bytes) -> np.ndarray:
    assert data[:4] == b"RIFF" and data[8:16] == b"WAVEfmt " and data[36:40] == b"data"
    return pcm(data[44:])


def events(body: bytes) -> list[dict]:
    """The JSON of an event stream in which each event is one data: line."""
    assert body.endswith(b"\n\n")
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        assert block.startswith("data: ") and "\n" not in block
        found.append(json.loads(block[6:]))
    return found
