"""Makes tests/vectors/audio: bursts of noise and torchaudio's resampling of them to 44.1 kHz, and a table of output lengths.

    python tools/audio/make_vectors.py tests/vectors/audio

Needs torch and torchaudio (2.x). Rates whose ratio to 44,100 does not reduce, such as 44,101, are left out on purpose: the dense kernel
that torchaudio builds for them takes tens of gigabytes.
"""
import math
import sys

import numpy as np
import torch
import torchaudio.functional as F

RATES = [8000, 11025, 16000, 22050, 24000, 32000, 48000, 96000]
OUTPUTS = 1800


def length_of(count, rate):
    """The length that torchaudio's function form cuts its result to."""
    divisor = math.gcd(rate, 44100)
    o, n = rate // divisor, 44100 // divisor
    return min(int(torch.ceil(torch.as_tensor(n * count / o)).long()), (count // o + 1) * n)


def main():
    folder = sys.argv[1]
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(20240607)
    for rate in RATES:
        count = OUTPUTS * rate // 44100 + 3
        x = torch.rand(1, count, generator=generator) * 1.8 - 0.9
        y = F.resample(x, rate, 44100)
        assert y.shape[1] == length_of(count, rate)
        np.save(f"{folder}/resample_{rate}_in.npy", x[0].numpy())
        np.save(f"{folder}/resample_{rate}_out.npy", y[0].numpy())
    real = torch.zeros(1, 1300007)
    assert F.resample(real, 24000, 44100).shape[1] == length_of(1300007, 24000)
    rng = np.random.default_rng(5)
    rows = []
    for rate in RATES + [44101, 44099, 1000, 768000, 12345]:
        counts = [1, 2, 3, rate, rate + 1, 60 * rate] + list(rng.integers(1, 5000, 6)) + list(1300000 + np.arange(12))
        rows += [(rate, int(c), length_of(int(c), rate)) for c in counts]
    np.save(f"{folder}/resample_lengths.npy", np.array(rows, dtype="<i4"))


main()
