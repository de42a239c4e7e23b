"""Compare every draw of the reference's kernels with drama3_ref.Draw (numpy).

    python check_sampler.py [--sglang-omni DIR] [--trials 40]
"""

from __future__ import annotations

import argparse
import sys

import triton_sampler

import numpy as np
import torch

import drama3_ref as ref


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sglang-omni", default=ref.sglang_omni_folder())
    parser.add_argument("--trials", type=int, default=40)
    args = parser.parse_args()
    kernels = triton_sampler.Kernels(args.sglang_omni)
    rng = np.random.default_rng(0)
    worst_margin, mismatches, count = np.inf, 0, 0
    for trial in range(args.trials):
        size = int(rng.choice([64, 1024, 1025]))
        logits = (rng.standard_normal(size) * rng.choice([0.3, 1.0, 2.5])).astype(np.float32)
        if trial % 5 == 0:  # ties, as bf16 logits give
            logits = np.round(logits * 4) / 4
        tensor = torch.from_numpy(logits).to(torch.bfloat16 if trial % 2 else torch.float32)
        logits = tensor.float().numpy()
        knobs = (
            float(rng.choice([1e-6, 0.7, 1.0, 1.3])),
            int(rng.choice([1, 5, 30, 32, 33, 200, 2**31 - 1])),
            float(rng.choice([0.1, 0.5, 0.9, 0.95, 1.0])),
            int(rng.integers(0, 2**63)),
            int(rng.choice([1, 7, 2**32 + 5])),
        )
        for keep in (False, True):
            draw = ref.Draw(logits, *knobs, 4, keep)
            got = kernels.draw_code(tensor[None], *knobs, 4, keep)[0]
            count += 1
            worst_margin = min(worst_margin, draw.margin)
            if got != draw.index:
                mismatches += 1
                print("head", size, knobs, keep, draw.path, got, draw.index, draw.margin)
        if size == 1025:  # the main head: one candidate more than a power of two
            seed, step = knobs[3:]
            candidates = torch.arange(5, 5 + size)
            first = ref.Draw(logits, *knobs, 0, True).index
            again = ref.Draw(logits, 1.0, 30, 0.95, seed, step, 1, True).index
            window = torch.full((1, 16), -1)
            repeat = trial % 3 == 0
            if repeat:
                window[0, 3] = 5 + first
            got = kernels.draw_main(tensor[None], candidates, window, *knobs, 6, size - 1)
            expected = 5 + (again if repeat and first >= 1 else first)
            count += 1
            if got != (expected, max(expected - 6, 0)):
                mismatches += 1
                print("main", got, expected, repeat)
    print(f"{count} draws, {mismatches} differences, smallest race margin {worst_margin:.6f}")
    sys.exit(mismatches != 0)


if __name__ == "__main__":
    main()
