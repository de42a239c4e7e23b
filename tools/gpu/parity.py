#!/usr/bin/env python3
"""The CUDA backend against the CPU backend's bf16, by the limits of tools/oracle/acceptance.py.

    parity.py --thespis PROGRAM --checkpoint CKPT --work DIR [--rows N] [--labels N] [--text TEXT]

The CPU runs a request teacher-forced and hands out every intermediate. The CUDA backend then runs
each layer alone from the CPU's inputs (`local`, `codes`) and the whole request (`picks`). Prints one
JSON object and exits 1 when a limit is broken. Picks that differ are listed with both margins.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import types

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent


def load_acceptance():
    """acceptance.py without the reference models that its other half needs."""
    oracle = types.ModuleType("oracle")
    oracle.cosine = lambda b, a: torch.nn.functional.cosine_similarity(b.double(), a.double(), dim=-1)
    reference = types.ModuleType("drama3_ref")
    sys.modules["oracle"], sys.modules["drama3_ref"] = oracle, reference
    sys.path.insert(0, str(HERE.parent / "oracle"))
    import acceptance

    return acceptance


def run(*command: str) -> None:
    # exit 1 without a message on standard error: picks differ, which is judged here
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode > 1 or done.stderr.strip():
        sys.exit(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")



def tensors(folder: pathlib.Path) -> dict:
    return {path.stem: torch.from_numpy(np.load(path)) for path in folder.glob("*.npy")}


def make_request(args, work: pathlib.Path, inspected: dict) -> None:
    """A text with a made-up reference of --rows frames, and --labels frames to force."""
    rng = np.random.default_rng(5)
    books, size = inspected["tower"]["codebooks"], inspected["tower"]["codebook_size"]
    np.save(work / "reference.npy", rng.integers(0, size, (books, args.rows)).astype(np.int64))
    request = {"text": args.text, "references": [{"transcript": "We asked over twenty people.", "codes": "reference.npy"}]}
    (work / "request.json").write_text(json.dumps(request))
    labels = np.zeros((args.labels, 1 + books), np.int64)
    labels[:, 1:] = rng.integers(0, size, (args.labels, books))
    labels[:, 0] = inspected["semantic_start"] + labels[:, 1]
    np.save(work / "labels.npy", labels)


def add_layer_inputs(folder: pathlib.Path) -> None:
    def array(name):
        return np.load(folder / f"{name}.npy")

    def shifted(first, layers):
        return np.concatenate([first[None], layers[:-1]])

    np.save(folder / "backbone_layer_inputs.npy", shifted(array("embeds"), array("backbone_layers")))
    np.save(folder / "tower_layer_inputs.npy", shifted(array("backbone_final"), array("tower_layers")))
    total, kept = array("inputs").shape[0], array("moe_inputs").shape[1]
    np.save(folder / "moe_rows.npy", np.arange(total - kept, total))


def margins(a: dict, b: dict, ulp) -> list:
    """Each differing pick: how far the CPU's best logit is above the CUDA pick's, and the other way round, in bf16 steps."""
    found = []
    for key in ("candidate_logits", "code_logits"):
        want, got = a[key].double().flatten(0, -2), b[key].double().flatten(0, -2)
        ours, theirs = want.argmax(-1), got.argmax(-1)
        for i in torch.nonzero(ours != theirs).flatten().tolist():
            step_a, step_b = ulp(want[i].max()), ulp(got[i].max())
            found.append({"array": key, "row": i,
                          "cpu_margin": round(float((want[i].max() - want[i, theirs[i]]) / step_a), 2),
                          "cuda_margin": round(float((got[i].max() - got[i, ours[i]]) / step_b), 2)})
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--thespis", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--rows", type=int, default=21)
    parser.add_argument("--labels", type=int, default=24)
    parser.add_argument("--text", default="[sighs] Fine. If we miss it, it's on you.")
    parser.add_argument("--keep", action="store_true", help="keep the arrays")
    args = parser.parse_args()
    acceptance = load_acceptance()
    work = pathlib.Path(args.work)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    inspected = json.loads(subprocess.run([args.thespis, "inspect", "checkpoint", "--json", args.checkpoint],
                                          capture_output=True, text=True, check=True).stdout)
    make_request(args, work, inspected)
    check = [args.thespis, "check", args.checkpoint, str(work / "request.json")]
    forced = ["--frames", str(work / "labels.npy")]
    run(*check, *forced, "--backend", "cpu", "--precision", "bf16", "--out", str(work / "cpu"))
    add_layer_inputs(work / "cpu")
    run(*check, "--backend", "cuda", "--layer-local", str(work / "cpu"), "--out", str(work / "local"))
    run(*check, *forced, "--backend", "cuda", "--out", str(work / "cuda"))
    a, b, c = (tensors(work / name) for name in ("cpu", "local", "cuda"))
    result = {"local": acceptance.local(a, b, b.get("moe_experts"))["summary"],
              "picks": acceptance.picks(a, c)}
    if "moe_input_codes" in a:
        result["codes"] = acceptance.codes(a, b)
    result["differing"] = margins(a, c, acceptance.bf16_ulp)
    if not args.keep:
        shutil.rmtree(work)
    print(json.dumps(result, indent=1))
    sys.exit(int(not all(part["pass"] for part in result.values() if isinstance(part, dict))))


if __name__ == "__main__":
    main()
