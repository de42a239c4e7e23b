"""The server against its own OpenAPI document: schemathesis makes requests of every kind, good and bad, and looks at each answer.

    THESPIS_BUILD=build/release .clients/bin/python -m pytest -q tests/long/test_contract.py

THESPIS_EXAMPLES says how many requests of each operation (default 60). The server speaks at most 5 seconds, or it would take hours.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import program
from serving import Server

# A text has rules that a schema cannot say (something to speak, no special tokens), so what is refused proves nothing there.
LEFT_OUT = "positive_data_acceptance"

# A batch answers 200 with an error for each bad item, also when that comes from what the items share.
SETTINGS = """
[[operations]]
include-path = "/v1/audio/speech/batch"
checks.negative_data_rejection.enabled = false
"""


def test_schemathesis(tmp_path):
    tool = shutil.which("st", path=str(pathlib.Path(sys.executable).parent))
    if tool is None:
        pytest.skip("schemathesis is not installed: tests/long/requirements-clients.txt")
    with Server(program("thespis"), tmp_path, "--api-key", "k", "--metrics-key", "--max-audio-seconds", "5") as server:
        command = [tool, "run", server.base + "/openapi.json", "-H", "Authorization: Bearer k", "--no-color"]
        command += ["--exclude-checks", LEFT_OUT, "--max-examples", os.environ.get("THESPIS_EXAMPLES", "60")]
        command += ["--generation-deterministic", "--continue-on-failure", "--request-timeout", "60"]
        (tmp_path / "schemathesis.toml").write_text(SETTINGS)
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=1800)
        assert done.returncode == 0, done.stdout[-6000:]
        assert server.process.poll() is None
        assert server.call("GET", "/health")[0] == 200
