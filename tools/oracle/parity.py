#!/usr/bin/env python3
"""Measures Thespis against the oracle and writes the table of docs/parity.md (scripts/parity calls this).

    THESPIS_BUILD=build/release python parity.py --work FOLDER --out docs/parity.md [--only tiny,codec,text]

Every result goes to FOLDER/results.json as soon as it is there; a second call with the same commit and FOLDER goes on
where the first one stopped. Limits are acceptance.py's and tests/long/test_parity.py's; exit status 1 when one is missed.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools" / "oracle"), str(ROOT / "tests" / "long")]

import numpy as np
import torch

import acceptance
import cases
import conftest
import drama3_ref as ref
import oracle
import test_parity as long_tests

STAGE = ROOT / "models" / "stage"
RUNS = [*long_tests.RUNS, ("stage", 0, "plain", 11), ("stage", 0, "clone", 12)]
CODECS = ["tiny", "small", "wide-heads", "odd", "stage"]
LEAST_PICKS = 250
FREE_FRAMES = 40
PARTS = ("tokenizer, against tokenizers", "prompt rows, against build_prompt_rows", "sampler, against the wheel's kernels",
         "resampler, against torchaudio", "the oracle's own sampler")
ARRAYS = ("embeds", "backbone_layers", "backbone_final", "tower_layers")


def checkpoint_of(work: pathlib.Path, preset: str, seed: int) -> str:
    if preset == "stage":
        return str(STAGE)
    folder = str(work / f"{preset}-{seed}")
    cases.make_checkpoint(str(conftest.BUILD / "make_checkpoint"), preset, seed, folder)
    return folder


def where_worst(want: dict, got: dict) -> str:
    """The array, layer and row of the largest 1 - cosine."""
    worst, place = -1.0, ""
    for name in ARRAYS:
        error = 1 - oracle.cosine(got[name], want[name])
        at = np.unravel_index(int(error.argmax()), error.shape)
        if float(error.max()) > worst:
            layer = f" {at[0]}" if error.dim() == 2 else ""
            worst, place = float(error.max()), f"{name.removesuffix('s')}{layer}, row {at[-1]}"
    return place


class Run:
    """One request on one checkpoint, in the five ways of acceptance.py; models are loaded once each."""

    def __init__(self, thespis, reference, checkpoint: str, name: str, label_seed: int, folder: pathlib.Path) -> None:
        self.thespis, self.reference, self.checkpoint, self.folder = thespis, reference, checkpoint, folder
        self.path = cases.write_request(name, reference.config, str(folder), FREE_FRAMES)
        self.request, self.rows = reference.rows(self.path)
        books = reference.config["audio_decoder_config"]["num_codebooks"]
        frames = max(long_tests.FORCED_FRAMES, -(-LEAST_PICKS // books) - 1)
        self.labels = cases.labels_of(reference.model("fp32", False), frames, label_seed)
        self.labels_path = str(folder / "labels.npy")
        np.save(self.labels_path, self.labels.numpy().astype("<i8"))

    def check(self, name: str, *more) -> dict:
        out = self.folder / name
        self.thespis("check", self.checkpoint, self.path, "--threads", 1, "--out", out, *more)
        return long_tests.arrays(out)

    def measure(self) -> dict:
        result = {"rows": len(self.rows), "labels": len(self.labels)}
        free = self.free_running()  # the model that made the labels is still loaded
        exact = self.exact()
        codes = self.expert_codes()
        return result | free | exact | codes | self.rounded()

    def free_running(self) -> dict:
        frames, margins = cases.generate(self.reference.model("fp32", False), self.rows, self.request, FREE_FRAMES)
        want = frames.numpy()
        want[want[:, 0] == self.reference.config["eos_token_id"], 1:] = 0
        got = self.check("free", "--precision", "f32", "--no-act-quant", "--generate", "--max-frames", FREE_FRAMES)
        got, prompt = got["frames"].numpy(), got["rows"].numpy()
        clear = next((i for i, margin in enumerate(margins) if margin < long_tests.CLEAR_RACE), len(want))
        both = min(len(want), len(got))
        differs = (got[:both] != want[:both]).any(1)
        equal = int(differs.argmax()) if differs.any() else both
        return {"prompt_equal": bool(np.array_equal(prompt, self.rows.numpy())), "free_frames": len(want),
                "free_equal": equal, "free_clear": clear,
                "free_pass": equal >= clear and (clear < len(want) or len(got) == len(want))}

    def exact(self) -> dict:
        want = oracle.run_forced(self.reference.model("fp64", False), self.rows, self.labels)
        got = self.check("exact", "--precision", "f32", "--no-act-quant", "--frames", self.labels_path)
        result = acceptance.exact(want, got)
        equal = total = 0
        for name in ("candidate_logits", "code_logits"):
            same = want[name].argmax(-1) == got[name].argmax(-1)
            equal, total = equal + int(same.sum()), total + same.numel()
        return {"exact_row": result["row"], "exact_where": where_worst(want, got), "exact_logit": result["logit"],
                "exact_picks": [equal, total], "exact_pass": result["pass"]}

    def local(self, mode: str, precision: str):
        want = oracle.run_layer_local(self.reference.model(mode, True), self.rows, self.labels, 1 << 30)
        long_tests.write(self.folder / f"given-{mode}", want)
        got = self.check(f"local-{mode}", "--precision", precision, "--frames", self.labels_path, "--layer-local",
                         self.folder / f"given-{mode}")
        return want, got

    def expert_codes(self) -> dict:
        result = acceptance.codes(*self.local("fp32", "f32"))
        return {"codes_equal": result["equal"], "codes_steps": result["steps"], "codes_pass": result["pass"]}

    def rounded(self) -> dict:
        want, got = self.local("bf16", "bf16")
        local = acceptance.local(want, got, got.get("moe_experts"))["summary"]
        picks = acceptance.picks(want, self.check("picks", "--precision", "bf16", "--frames", self.labels_path))
        values = {f"{part}_{key}": local[part][key] for part in ("backbone", "tower") for key in acceptance.LOCAL[part]}
        return values | {"heads_ulps": max(head["ulps"] for head in local["heads"].values()),
                         "other_experts": local["other_experts"], "wrong_experts": local["wrong_experts"],
                         "local_pass": local["pass"], "picks_equal": picks["equal"], "picks_count": picks["count"],
                         "picks_ulps": max(picks["ulps"], default=0), "picks_pass": picks["pass"]}


def measure_codec(thespis, checkpoint: str, sglang_omni: str, folder: pathlib.Path) -> dict:
    from scipy.io import wavfile

    codec, ratios, shares, first = cases.Codec(checkpoint, sglang_omni), [], [], True
    for frames in (1, 5, 70):
        codes = codec.random_codes(frames, 5 + frames)
        np.save(folder / "in.npy", codes.astype("<i8"))
        thespis("check", checkpoint, "--threads", 1, "--codec", folder / "in.npy", "--out", folder / "decoded")
        ratios.append(long_tests.snr(np.load(folder / "decoded/waveform.npy"), codec.decode(codes)))
    for samples in (1, 2047, 2049, 100_000):
        wave = long_tests.speechlike(samples, samples)
        wavfile.write(folder / "in.wav", 44100, wave)
        thespis("encode", folder / "in.wav", "--codec", os.path.join(checkpoint, "codec.pth"), "--out", folder / "out.npy")
        got, want = np.load(folder / "out.npy"), codec.encode(wave)
        first = first and np.array_equal(got[0], want[0])
        shares.append([int((got == want).sum()), want.size])
    equal, total = np.sum(shares, 0)
    return {"decode_snr": [round(ratio, 1) for ratio in ratios], "encode_equal": [int(equal), int(total)], "encode_first": first,
            "pass": min(ratios) >= long_tests.DECODE_SNR and first and all(a / b >= 0.995 for a, b in shares)}


# ------------------------------------------------------------------------------------ text, sampler, resampler
def output_of(*command) -> tuple[int, str]:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def measure_tokenizer(strings: int) -> dict:
    code, text = output_of(sys.executable, ROOT / "tools/text/check_tokenizer.py", "--program", conftest.BUILD / "test_text_vectors",
                           "--strings", strings)
    counts = [(int(a), int(b)) for a, b in re.findall(r"(\d+) strings, (\d+) differ", text)]
    return {"compared": sum(a for a, _ in counts), "differ": sum(b for _, b in counts), "pass": code == 0 and bool(counts),
            "what": "strings (every code point in several contexts, random strings; four tokenizers)"}


def measure_prompt(sglang_omni: str) -> dict:
    code, text = output_of(sys.executable, ROOT / "tools/text/check_prompt.py", "--oracle", ROOT / "tools/oracle", "--sglang-omni",
                           sglang_omni, "--program", conftest.BUILD / "test_text_vectors", "--requests", 1000)
    counts = [(int(a), int(b)) for a, b in re.findall(r"(\d+) requests,.*?(\d+) differ", text)]
    return {"compared": sum(a for a, _ in counts), "differ": sum(b for _, b in counts), "pass": code == 0 and bool(counts),
            "what": "prompts of random requests"}


def measure_committed(name: str, compared: int, what: str) -> dict:
    """A unit test over committed outputs of the third-party code; it stops at the first difference."""
    code, text = output_of(conftest.BUILD / name)
    return {"compared": compared, "differ": 0 if code == 0 else text[-300:], "pass": code == 0, "what": what}


def measure_oracle_sampler(sglang_omni: str) -> dict:
    code, text = output_of(sys.executable, ROOT / "tools/oracle/check_sampler.py", "--sglang-omni", sglang_omni, "--trials", 8)
    found = re.search(r"(\d+) draws", text)
    return {"compared": int(found[1]) if found else 0, "differ": 0 if code == 0 else text[-300:], "pass": code == 0,
            "what": "draws of the oracle's numpy copy against the wheel's kernels, so that the free-running column rests on them"}


# --------------------------------------------------------------------------------------------------- the table
def lines_of_network(results: dict) -> list[str]:
    lines = ["| checkpoint, request | rows + labels | exact: worst 1 - cosine | where | largest logit error | picks equal "
             "| free frames equal (by clear races) | e4m3 codes equal | bf16 picks equal (worst ulps) | passes |",
             "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, r in results.items():
        passed = all(r[key] for key in ("prompt_equal", "exact_pass", "free_pass", "codes_pass", "local_pass", "picks_pass"))
        lines.append(
            f"| {name} | {r['rows']} + {r['labels']} | {r['exact_row']:.1e} | {r['exact_where']} | {r['exact_logit']:.1e} "
            f"| {r['exact_picks'][0]} of {r['exact_picks'][1]} | {r['free_equal']} of {r['free_frames']} ({r['free_clear']}) "
            f"| {100 * r['codes_equal']:.4f} % | {100 * r['picks_equal']:.1f} % of {r['picks_count']} ({r['picks_ulps']:g}) "
            f"| {'yes' if passed else '**no**'} |")
    return lines


def lines_of_local(results: dict) -> list[str]:
    lines = ["| checkpoint, request | backbone: worst row | mean median | mean equal | tower: worst row | mean median | mean equal "
             "| heads, ulps | other experts | passes |", "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, r in results.items():
        cells = [f"{r[f'{part}_worst']:.4f} | {r[f'{part}_mean_median']:.5f} | {100 * r[f'{part}_mean_equal']:.1f} %"
                 for part in ("backbone", "tower")]
        lines.append(f"| {name} | {' | '.join(cells)} | {r['heads_ulps']:g} | {100 * r['other_experts']:.2f} % "
                     f"| {'yes' if r['local_pass'] else '**no**'} |")
    return lines


def lines_of_codec(results: dict) -> list[str]:
    lines = ["| codec of | decode SNR at 1, 5, 70 frames, dB | encode: codes equal | first codebook | passes |", "| --- | --- | --- | --- | --- |"]
    for name, r in results.items():
        lines.append(f"| {name} | {', '.join(map(str, r['decode_snr']))} | {r['encode_equal'][0]} of {r['encode_equal'][1]} "
                     f"| {'equal' if r['encode_first'] else 'differs'} | {'yes' if r['pass'] else '**no**'} |")
    return lines


def lines_of_rest(results: dict) -> list[str]:
    lines = ["| part | compared | differ |", "| --- | --- | --- |"]
    return lines + [f"| {name} | {r['compared']} {r['what']} | {r['differ']} |" for name, r in results.items()]


def versions() -> str:
    names = ("torch", "transformers", "tokenizers", "numpy", "triton", "descript-audio-codec")
    found = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join([f"Python {sys.version.split()[0]}", *found, "sglang-omni 0.1.9"])


def processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as handle:
        found = re.search(r"model name\s*: (.*)", handle.read())
    return found[1] if found else "unknown processor"


HEAD = """# Parity with third-party code

`make parity` measures everything here anew and writes this file (`tools/oracle/parity.py`); nothing in it is typed by hand.
Each line runs `thespis` and the oracle (`tools/oracle`) on the same checkpoint and request. The checkpoints come from
`make_checkpoint` and the number behind the shape is the seed; `stage` is `models/stage`.

| | |
| --- | --- |
| commit | {commit} |
| date | {date} |
| machine | {machine}; instruction set {isa} |
| oracle | {versions} |
| not run | {missing} |
| missed limits | {failed} |

"""

NETWORK = """## Network

*Exact*: f32 without quantised expert inputs, teacher-forced, the prompt in one piece and then a row a step, against the oracle
in fp64. Limits: 1 - cosine of every row of every layer <= 1e-8, logits within 1e-4 of the largest, picks equal wherever
the oracle's best two are more than 1e-3 apart. *Free frames*: drawn freely by both; they must be equal up to the first draw whose two
best races are nearer than 1.001 (its frame is in brackets; the number of frames where there is none). *e4m3 codes*: quantised
expert inputs from the oracle's own activations; at least 99.8 %, one step at most. *bf16 picks*: the bf16 precision end to
end; at least 94 % equal, the others at most 32 bf16 steps behind. Prompt rows are equal in every line that passes.

"""

LOCAL = """
## bf16, layer by layer

Each layer alone on the oracle's inputs, half of the rows together and the rest one by one. A row's error is relative to what the
layer adds (tower: puts out). Limits: backbone worst 0.12, mean median 0.0015, at least 80 % of values equal to the bit; tower 0.01, 0.0022,
75 %; heads one ulp; other experts only at near-ties and in at most 1 % of rows. `tools/oracle/README.md` says where the limits come from.

"""

CODEC = """
## Codec

f32 against the third-party codec in fp32. Limits: 100 dB; the first codebook equal, at least 99.5 % of all codes.

"""

REST = """
## Text, sampler, resampler

"""


def render(results: dict, missing: list[str], failed: list[str], about: dict) -> str:
    head = HEAD.format(commit=about["commit"], date=about["date"], machine=processor(), isa=about["isa"], versions=versions(),
                       missing="; ".join(missing) or "nothing", failed="; ".join(failed) or "none")
    parts = [head + NETWORK, "\n".join(lines_of_network(results["network"])), "\n" + LOCAL + "\n".join(lines_of_local(results["network"])),
             "\n" + CODEC + "\n".join(lines_of_codec(results["codec"])), "\n" + REST + "\n".join(lines_of_rest(results["rest"]))]
    return "".join(parts) + "\n"


def missed(results: dict) -> list[str]:
    wrong = [f"{name}: {key.removesuffix('_pass').removesuffix('_equal')}" for name, r in results["network"].items()
             for key in ("prompt_equal", "exact_pass", "free_pass", "codes_pass", "local_pass", "picks_pass") if not r[key]]
    return wrong + [f"{part} {name}" for part in ("codec", "rest") for name, r in results[part].items() if not r["pass"]]


class Results:
    """What was measured so far, kept in a file that belongs to one commit."""

    def __init__(self, path: pathlib.Path, commit: str) -> None:
        self.path = path
        self.data = {"commit": commit, "network": {}, "codec": {}, "rest": {}}
        if path.exists():
            old = json.loads(path.read_text())
            self.data = old if old["commit"] == commit else self.data

    def measure(self, part: str, name: str, function) -> None:
        if name in self.data[part]:
            return
        started = time.time()
        self.data[part][name] = function()
        self.path.write_text(json.dumps(self.data, indent=1))
        print(f"{part} {name}: {time.time() - started:.0f} s", flush=True)


def commit_of_tree() -> str:
    code, text = output_of("git", "-C", ROOT, "describe", "--always", "--dirty=, with changes", "--abbrev=12")
    return text.strip() if code == 0 else "unknown"


def measure_network(results: Results, thespis, work: pathlib.Path, sglang_omni: str, wanted) -> None:
    key = reference = None
    for preset, seed, name, label_seed in RUNS:
        title = f"{preset} {seed}, {name}" if preset != "stage" else f"stage, {name}"
        if not wanted(preset) or title in results.data["network"]:
            continue
        checkpoint = checkpoint_of(work, preset, seed)
        if key != checkpoint:
            key, reference = checkpoint, cases.Reference(checkpoint, sglang_omni)
        folder = work / f"{preset}-{seed}-{name}"
        results.measure("network", title,
                        lambda: Run(thespis, reference, checkpoint, name, label_seed, folder).measure())
        shutil.rmtree(folder)


def measure_codecs(results: Results, thespis, work: pathlib.Path, sglang_omni: str, wanted) -> None:
    for preset in CODECS if wanted("codec") else []:
        folder = work / f"{preset}-codec"
        folder.mkdir(exist_ok=True)
        results.measure("codec", preset,
                        lambda: measure_codec(thespis, checkpoint_of(work, preset, 1), sglang_omni, folder))


def measure_rest(results: Results, sglang_omni: str, strings: int, wanted) -> None:
    if not wanted("text"):
        return
    results.measure("rest", PARTS[1], lambda: measure_prompt(sglang_omni))
    draws = len((ROOT / "tests/vectors/sampler/draws.tsv").read_text().splitlines()) - 1  # a heading
    results.measure("rest", PARTS[2], lambda: measure_committed(
        "test_reference_draws", draws, "committed draws of the interpreted kernels (`test_reference_draws`)"))
    rates = len(list((ROOT / "tests/vectors/audio").glob("resample_*_in.npy")))
    results.measure("rest", PARTS[3], lambda: measure_committed(
        "test_resample", rates, "committed rates, each >= 135 dB and of equal length (`test_resample`)"))
    results.measure("rest", PARTS[4], lambda: measure_oracle_sampler(sglang_omni))
    results.measure("rest", PARTS[0], lambda: measure_tokenizer(strings))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", required=True, help="folder for checkpoints and results.json (about 1 GB)")
    parser.add_argument("--out", default=str(ROOT / "docs" / "parity.md"))
    parser.add_argument("--only", help="presets, codec, text; comma-separated")
    parser.add_argument("--strings", type=int, default=100_000, help="random strings for the tokenizers [100000]")
    parser.add_argument("--sglang-omni", default=ref.sglang_omni_folder())
    args = parser.parse_args()
    torch.set_num_threads(1)
    work = pathlib.Path(args.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    only = set(args.only.split(",")) if args.only else None
    wanted = lambda name: only is None or name in only  # noqa: E731
    thespis = conftest.Thespis(str(conftest.BUILD / "thespis"))
    results = Results(work / "results.json", commit_of_tree())
    measure_network(results, thespis, work, args.sglang_omni, wanted)
    measure_codecs(results, thespis, work, args.sglang_omni, wanted)
    measure_rest(results, args.sglang_omni, args.strings, wanted)
    data = results.data
    expected = [f"{preset} {seed}, {name}" if preset != "stage" else f"stage, {name}" for preset, seed, name, _ in RUNS]
    missing = [name for name in expected if name not in data["network"]]
    missing += [f"codec of {name}" for name in CODECS if name not in data["codec"]]
    missing += [name for name in PARTS if name not in data["rest"]]
    missing.append("the published checkpoint (38.7 GiB; only its shapes are compared, in real-heads)")
    failed = missed(data)
    isa = "avx2" if re.search(r"\bavx2\b", pathlib.Path("/proc/cpuinfo").read_text()) else "portable"
    about = {"commit": data["commit"], "date": datetime.date.today().isoformat(), "isa": isa}
    pathlib.Path(args.out).write_text(render(data, missing, failed, about), encoding="utf-8")
    for line in failed:
        print("missed limit:", line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
