#!/usr/bin/env python3
"""Test vectors of the codec from the third-party one: what it makes of codes and of a short signal.

    python make_codec_vectors.py --sglang-omni SO --checkpoint models/stage --out tests/vectors/codec/stage

Writes signal.npy [N] f32, a synthetic voice of 12 frames and a bit; encoded.npy [13, books] i32, its codes; codes.npy [12, books] i32, eight
of those frames, then four of random codes, some past their books' ends; samples.npy [12 * 2048] f32, those decoded; and
stages.npy [12 * D] f32, the output of the post transformer. All in fp32 on the CPU.
"""

import argparse
import os

import numpy as np
import torch

import drama3_ref as ref


def voice(count: int) -> np.ndarray:
    """Harmonics of a gliding pitch under three moving formants, a hiss, and a silence."""
    rng = np.random.default_rng(11)
    t = np.arange(count) / 44100.0
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(2 * np.pi * 1.7 * t)) / 44100.0
    wave = np.zeros(count)
    for k in range(1, 40):
        loud = sum(np.exp(-(((k * 125 - f) / w) ** 2)) for f, w in
                   ((600 + 300 * np.sin(9 * t), 200), (1500 + 500 * np.cos(7 * t), 300), (2700, 400)))
        wave += loud * np.sin(k * phase) / np.sqrt(k)
    wave = 0.15 * wave + 0.02 * rng.standard_normal(count) * (np.sin(2 * np.pi * 3 * t) > 0.5)
    wave[count // 2: count // 2 + 3000] = 0
    return wave.astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sglang-omni", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.set_num_threads(1)
    codec = ref.load_codec(args.checkpoint, args.sglang_omni)
    signal = voice(12 * 2048 + 700)
    with torch.no_grad():
        encoded = codec.encode(torch.from_numpy(signal)[None], torch.tensor([len(signal)]))[0][0]
        codes = encoded[:, :8].clone()
        rng = np.random.default_rng(12)
        heights = [q.codebook.weight.shape[0] for q in
                   list(codec.quantizer.semantic_quantizer.quantizers) + list(codec.quantizer.quantizer.quantizers)]
        drawn = np.stack([rng.integers(0, h, 4) for h in heights])
        drawn[:, 3] = np.array(heights) + np.arange(len(heights))  # taken as the last entry
        codes = torch.cat([codes, torch.from_numpy(drawn)], 1)
        stages = []
        hook = codec.quantizer.post_module.register_forward_hook(lambda _m, _i, o: stages.append(o[0]))
        # from_indices clamps in place
        samples = codec.from_indices(codes[None].clone())[0, 0]
        hook.remove()
    post = stages[0].numpy()
    post = post if post.shape[0] == codes.shape[1] else post.T
    np.save(os.path.join(args.out, "signal.npy"), signal)
    np.save(os.path.join(args.out, "encoded.npy"), np.ascontiguousarray(encoded.T.numpy().astype(np.int32)))
    np.save(os.path.join(args.out, "codes.npy"), np.ascontiguousarray(codes.T.numpy().astype(np.int32)))
    np.save(os.path.join(args.out, "samples.npy"), samples.numpy().astype(np.float32))
    np.save(os.path.join(args.out, "stages.npy"), np.ascontiguousarray(post.astype(np.float32)))


if __name__ == "__main__":
    main()
