"""Regenerate the committed vectors of the network and of the codec.

    python make_vectors.py --tool BUILD/make_checkpoint [--sglang-omni DIR] [--out DIR]
        [PRESET ...]

tests/vectors/lm/PRESET-REQUEST holds request.json (with the preset and seed that make_checkpoint takes) and, for
a prompt of P rows and n labels, T = P + n - 1:

    rows [P, W], labels [n, W], kept_rows [R]     the rows of which the layers are kept
    embeds, backbone_final [R, H], backbone_layers [L, R, H], tower_layers [M, R, H]
    candidate_logits [n, C], logit_labels [k], code_logits [k, books - 1, V]
                                                  fp64 without activation quantisation
    moe_inputs, moe_input_codes, moe_input_scales [L, 2, H or H / 128]
                                                  bf16, what each layer's experts were fed
    frames [f, W], margins [f]                    free-running, fp32, no activation quantisation;
                                                  margin = the frame's closest race

tests/vectors/codec/PRESET holds codec.json (codec and seed for make_checkpoint) and

    frames [books, 140]                           longer than the 128 frames the codec looks back
    kept_frames [k], waveform [k, 2048]           the samples of some frames of the whole decode:
                                                  a decode in chunks must give them too
    recording [samples] int16, codes [books, ceil(samples / 2048)]
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import tempfile
import time

import numpy as np
import torch

import cases
import drama3_ref as ref
import oracle

HERE = pathlib.Path(__file__).resolve().parent
CODE_LOGIT_BYTES = 150_000  # of one case
CASES = {
    "tiny": ("plain", "clone"), "small": ("plain",), "wide-heads": ("clone",),
    "odd": ("clone",), "edges": ("plain",), "real-heads": ("plain",),
}
# What make_checkpoint calls the codecs of these presets; alone they are the same bytes.
CODECS = {"tiny": "oracle-tiny", "wide-heads": "oracle-wide-heads", "odd": "odd"}
KEPT_FRAMES = (0, 1, 3, 4, 9, 10, 63, 64, 127, 128, 129, 139)  # where chunks begin and end
LABELS = 5  # and the end of speech
FRAMES = 12


def save(folder: str, name: str, value, dtype: str) -> None:
    if isinstance(value, torch.Tensor):
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    np.save(os.path.join(folder, name + ".npy"), np.ascontiguousarray(value).astype(dtype))


def lm_case(reference: cases.Reference, preset: str, seed: int, name: str, folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    path = cases.write_request(name, reference.config, folder, FRAMES)
    request, rows = reference.rows(path)
    exact = reference.model("fp64", False)
    labels = cases.labels_of(exact, LABELS, 11)
    result = oracle.run_forced(exact, rows, labels)
    count, total = len(rows), len(rows) + len(labels) - 1
    some_rows = {0, 1, 63, 64, count // 2, count - 2, count - 1, count, total - 1}
    kept = sorted(some_rows & set(range(total)))
    save(folder, "rows", rows, "<i4")
    save(folder, "labels", labels, "<i4")
    save(folder, "kept_rows", np.array(kept), "<i4")
    for key in ("embeds", "backbone_final"):
        save(folder, key, result[key][kept], "<f4")
    for key in ("backbone_layers", "tower_layers"):
        save(folder, key, result[key][:, kept], "<f4")
    save(folder, "candidate_logits", result["candidate_logits"], "<f4")
    one = result["code_logits"][0].numel() * 4
    some = max(1, min(len(labels), CODE_LOGIT_BYTES // one))
    chosen = np.linspace(0, len(labels) - 1, some).astype(int) if some > 1 else np.array([0])
    save(folder, "logit_labels", chosen, "<i4")
    save(folder, "code_logits", result["code_logits"][chosen], "<f4")

    rounded = oracle.run_layer_local(reference.model("bf16", True), rows, labels, 2)
    save(folder, "moe_inputs", rounded["moe_inputs"], "<f4")
    save(folder, "moe_input_codes", rounded["moe_input_codes"], "|u1")
    save(folder, "moe_input_scales", rounded["moe_input_scales"], "<f4")

    frames, margins = cases.generate(reference.model("fp32", False), rows, request, FRAMES)
    save(folder, "frames", frames, "<i4")
    save(folder, "margins", margins, "<f4")
    with open(path, encoding="utf-8") as handle:
        request = json.load(handle)
    request |= {"preset": preset, "checkpoint_seed": seed}
    with open(path, "w", encoding="utf-8") as handle:
        json.dump(request, handle, indent=1)
        handle.write("\n")
    size = sum(entry.stat().st_size for entry in os.scandir(folder))
    print(f"{os.path.basename(folder)}: {count} rows, {len(labels)} labels, {len(frames)} frames, "
          f"closest race {margins.min():.4f}, {size} bytes", flush=True)


def tone(samples: int) -> np.ndarray:
    """int16: a gliding harmonic tone that breathes, with a little noise, as a voice would."""
    rng = np.random.default_rng(3)
    time_ = np.arange(samples) / 44100
    phase = 2 * np.pi * np.cumsum(120 + 60 * np.sin(2 * np.pi * 1.3 * time_)) / 44100
    wave = sum(np.sin(k * phase) / k for k in range(1, 12))
    wave = 0.2 * wave * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time_))
    return np.round((wave + 0.01 * rng.standard_normal(samples)) * 32767).astype(np.int16)


def codec_case(checkpoint: str, sglang_omni: str, preset: str, seed: int, folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    codec = cases.Codec(checkpoint, sglang_omni)
    frames = codec.random_codes(KEPT_FRAMES[-1] + 1, 9)
    wave = codec.decode(frames).reshape(-1, 2048)
    recording = tone(14_000)
    save(folder, "frames", frames, "<i2")
    save(folder, "kept_frames", np.array(KEPT_FRAMES), "<i4")
    save(folder, "waveform", wave[list(KEPT_FRAMES)], "<f4")
    save(folder, "recording", recording, "<i2")
    save(folder, "codes", codec.encode(recording.astype(np.float32) / 32768), "<i2")
    with open(os.path.join(folder, "codec.json"), "w", encoding="utf-8") as handle:
        json.dump({"codec": CODECS[preset], "seed": seed}, handle, indent=1)
        handle.write("\n")
    size = sum(entry.stat().st_size for entry in os.scandir(folder))
    print(f"codec/{preset}: {size} bytes, largest sample {np.abs(wave).max():.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tool", required=True, help="the built make_checkpoint")
    parser.add_argument("--sglang-omni", default=ref.sglang_omni_folder())
    parser.add_argument("--out", default=str(HERE.parents[1] / "tests/vectors"))
    parser.add_argument("--checkpoint", help="use this one instead of making it (one preset)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("presets", nargs="*", default=list(CASES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for preset in args.presets:
        started = time.time()
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint = args.checkpoint or os.path.join(scratch, preset)
            if not args.checkpoint:
                cases.make_checkpoint(args.tool, preset, args.seed, checkpoint)
            reference = cases.Reference(checkpoint, args.sglang_omni)
            for name in CASES[preset]:
                lm_case(reference, preset, args.seed, name,
                        os.path.join(args.out, "lm", f"{preset}-{name}"))
            if preset in CODECS:
                codec_case(checkpoint, args.sglang_omni, preset, args.seed,
                           os.path.join(args.out, "codec", preset))
        print(f"{preset}: {time.time() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
