"""What the long tests stand on, and why they are skipped where it is missing.

    THESPIS_BUILD=build .venv/bin/python -m pytest tests/long

THESPIS_BUILD is the folder of the built programs (default: build). The oracle's environment is the
Python that runs pytest: tools/oracle/setup makes one. -rs prints the reasons of skipped tests.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("THESPIS_BUILD", ROOT / "build"))
if not BUILD.is_absolute():
    BUILD = ROOT / BUILD
sys.path.insert(0, str(ROOT / "tools" / "oracle"))


def program(name: str) -> str:
    path = BUILD / name
    if not path.exists():
        pytest.skip(f"{path} is not built; set THESPIS_BUILD to the build folder")
    return str(path)


class Thespis:
    """The program under test; a failure shows its last words."""

    def __init__(self, path: str) -> None:
        self.path = path

    def run(self, *arguments) -> subprocess.CompletedProcess:
        command = [self.path, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=1800)

    def __call__(self, *arguments) -> subprocess.CompletedProcess:
        done = self.run(*arguments)
        assert done.returncode == 0, f"{' '.join(done.args)}\n{done.stdout}{done.stderr}"
        return done


@pytest.fixture(scope="session")
def thespis() -> Thespis:
    return Thespis(program("thespis"))


@pytest.fixture(scope="session")
def make_checkpoint() -> str:
    return program("make_checkpoint")


@pytest.fixture(scope="session")
def sglang_omni() -> str:
    """Folder of the unpacked reference; skips where the oracle cannot run."""
    for name in ("torch", "transformers", "tokenizers", "safetensors", "scipy", "einops", "dac"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the oracle's environment lacks {name}; tools/oracle/setup makes one")
    import torch

    import drama3_ref

    folder = drama3_ref.sglang_omni_folder()
    if not os.path.isdir(os.path.join(folder, "sglang_omni")):
        pytest.skip(f"no unpacked sglang-omni in {folder}; tools/oracle/setup puts it there, "
                    "THESPIS_SGLANG_OMNI names another folder")
    torch.set_num_threads(1)
    return folder
