"""Draws of the reference's Triton kernels as test vectors for the sampler in C.

    python make_sampler_vectors.py [--sglang-omni DIR] OUT

Writes OUT/logits.npy (all logit rows end to end, bf16 bits as uint16), OUT/logits_f32.npy
(rows that are no bf16 values) and OUT/draws.tsv, one draw a line; its first line names the
columns. `margin` is the race's best over its second best by the numpy copy of the kernels.
Takes minutes: the interpreter runs every kernel operation in numpy.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import triton_sampler

import numpy as np
import torch

import drama3_ref as ref

UNLIMITED = 2**31 - 1
COLUMNS = ("head type offset count temperature top_k top_p seed step row stream eos "
           "semantic_start window drawn redrawn path kept margin").split()


class Rows:
    """Logit rows of both types, each stored once."""

    def __init__(self) -> None:
        self.flat = {"bf16": [], "f32": []}
        self.used = {"bf16": 0, "f32": 0}

    def add(self, tensor: torch.Tensor):
        kind = "bf16" if tensor.dtype == torch.bfloat16 else "f32"
        values = (tensor.view(torch.int16).numpy().view(np.uint16) if kind == "bf16"
                  else tensor.numpy())
        offset = self.used[kind]
        self.flat[kind].append(values)
        self.used[kind] += len(values)
        return kind, offset

    def save(self, folder: str) -> None:
        np.save(os.path.join(folder, "logits.npy"), np.concatenate(self.flat["bf16"]))
        np.save(os.path.join(folder, "logits_f32.npy"), np.concatenate(self.flat["f32"]))


def logit_row(rng, trial: int, size: int) -> torch.Tensor:
    """Random rows of several widths; some tie at the top, hold zeros of both signs, -inf, or
    one candidate that leaves no other in the race."""
    kind = trial % 6
    logits = (rng.standard_normal(size) * (0.2, 0.6, 1.0, 2.5)[trial % 4]).astype(np.float32)
    if kind == 1:
        logits = np.round(logits * 2) / 2
    elif kind == 2:  # the best are zeros of both signs
        logits = np.where(logits > 0.1, np.where(rng.random(size) < 0.5, -0.0, 0.0), logits)
    elif kind == 3:
        logits[rng.integers(size)] = 30.0
    elif kind == 4:
        logits[rng.random(size) < 0.5] = -np.inf
    return torch.from_numpy(logits.astype(np.float32)).to(
        torch.float32 if kind == 5 else torch.bfloat16)


def knobs(rng, trial: int) -> tuple:
    # top_p 1 is left out: there we keep every candidate, the kernels what rounding leaves.
    wide = trial % 2 == 0
    top_k = rng.choice([33, 40, UNLIMITED] if wide else [1, 2, 5, 30, 31, 32])
    return (
        float(np.float32(rng.choice([0.0, 0.7, 0.8, 1.0, 1.3, 3.0]))), int(top_k),
        float(np.float32(rng.choice([0.9, 0.95, 0.99] if wide else [0.1, 0.5, 0.8, 0.9]))),
        int(rng.integers(0, 2**63)), int(rng.choice([1, 2, 7, 1500, 2**32 - 1, 2**32 + 5])),
    )


class Vectors:
    def __init__(self, sglang_omni: str) -> None:
        self.kernels = triton_sampler.Kernels(sglang_omni)
        self.rng = np.random.default_rng(20)
        self.rows, self.lines, self.differences = Rows(), [], 0

    def line(self, draw: ref.Draw, drawn: int, **values) -> None:
        values |= {"drawn": drawn, "path": draw.path, "kept": draw.kept,
                   "margin": f"{min(draw.margin, 1e9):.7g}"}
        self.lines.append("\t".join(str(values.get(name, "-")) for name in COLUMNS))
        if len(self.lines) % 20 == 0:
            print(len(self.lines), "draws", flush=True)

    def differs(self, draw: ref.Draw) -> None:
        self.differences += 1
        print("the numpy copy draws otherwise; margin", draw.margin)

    def codes(self, trial: int) -> None:
        """Code heads: a batch of one to three rows, one crossing rule each trial."""
        size = int(self.rng.choice([64, 100, 128, 256, 1024], p=[0.4, 0.2, 0.2, 0.15, 0.05]))
        batch = torch.stack([logit_row(self.rng, trial, size) for _ in range(1 + trial % 3)])
        temperature, top_k, top_p, seed, step = knobs(self.rng, trial)
        stream, keep = int(self.rng.integers(0, 11)), bool(self.rng.random() < 0.4)
        codes = self.kernels.draw_code(
            batch, temperature, top_k, top_p, seed, step, stream, keep)
        for row, (logits, code) in enumerate(zip(batch, codes)):
            kind, offset = self.rows.add(logits)
            draw = ref.Draw(logits.float().numpy(), temperature, top_k, top_p, seed, step,
                            stream, keep, row)
            if draw.index != code:
                self.differs(draw)
            self.line(draw, code, head="keep" if keep else "exclude", type=kind,
                      offset=offset, count=size, temperature=temperature, top_k=top_k,
                      top_p=top_p, seed=seed, step=step, row=row, stream=stream)

    def main(self, trial: int) -> None:
        """Main heads: eos below or above the band, the first draw in the window or not."""
        size = int(self.rng.choice([65, 80, 257, 1025], p=[0.4, 0.3, 0.2, 0.1]))
        logits = logit_row(self.rng, trial, size)
        temperature, top_k, top_p, seed, step = knobs(self.rng, trial)
        start, below = 200, trial % 3 != 0
        eos = 7 if below else start + size + 50
        band = list(range(start, start + size - 1))
        candidates = torch.tensor([eos] + band if below else band + [eos])
        scores = logits.float().numpy()
        draw = ref.Draw(scores, temperature, top_k, top_p, seed, step, 0, True)
        window = self.rng.integers(start, start + size - 1, 16)
        window[: trial % 5] = -1
        if trial % 4:  # the first draw repeats (an end of speech in the window counts nothing)
            window[self.rng.integers(16)] = int(candidates[draw.index])
        token, code = self.kernels.draw_main(
            logits[None], candidates, torch.from_numpy(window)[None], temperature, top_k,
            top_p, seed, step, start, size - 1)
        first = int(candidates[draw.index])
        redrawn = first != eos and first in window
        again = ref.Draw(scores, 1.0, 30, 0.95, seed, step, 1, True)
        expected = int(candidates[again.index]) if redrawn else first
        assert code == min(max(token - start, 0), size - 2)
        if token != expected:
            self.differs(again if redrawn else draw)
        kind, offset = self.rows.add(logits)
        self.line(again if redrawn else draw, token, head="main", type=kind, offset=offset,
                  count=size, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
                  step=step, row=0, stream=0, eos=eos, semantic_start=start,
                  window=",".join(map(str, window)), redrawn=int(redrawn))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sglang-omni", default=ref.sglang_omni_folder())
    parser.add_argument("--code-trials", type=int, default=84)
    parser.add_argument("--main-trials", type=int, default=60)
    parser.add_argument("out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started, vectors = time.time(), Vectors(args.sglang_omni)
    for trial in range(args.code_trials):
        vectors.codes(trial)
    for trial in range(args.main_trials):
        vectors.main(trial)
    os.makedirs(args.out, exist_ok=True)
    vectors.rows.save(args.out)
    with open(os.path.join(args.out, "draws.tsv"), "w", encoding="ascii") as handle:
        handle.write("\n".join(["\t".join(COLUMNS), *vectors.lines]) + "\n")
    print(f"{len(vectors.lines)} draws, the numpy copy differs in {vectors.differences}, "
          f"{time.time() - started:.0f} s")
    sys.exit(vectors.differences != 0)


if __name__ == "__main__":
    main()
