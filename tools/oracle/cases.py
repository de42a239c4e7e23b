"""Checkpoints, requests and labels that the committed vectors and the long tests share."""

from __future__ import annotations

import gc
import json
import os
import subprocess

import numpy as np
import torch

import drama3_ref as ref
import oracle

# Every corner of the network is in one of these shapes (make_checkpoint --help says which).
PRESETS = ("tiny", "small", "wide-heads", "odd", "edges", "real-heads")

REQUESTS = {
    "plain": {"text": "Hello there, world.", "seed": 1},
    "clone": {
        "text": "[sighs] It's <|speaker:1|> fine!",
        "references": [{"transcript": "  <|speaker:1|> One, two.", "codes": (5, 7)}],
        "seed": 42, "temperature": 0.8, "top_p": 0.95, "top_k": 200,
    },
    "long": {
        "text": "We asked over twenty people; nobody knew. Why? If we miss it, it's on you: all "
                "of it, every single day, until the clock on the wall stops at half past nine.",
        "references": [
            {"transcript": "Fresh snow covered the road.", "codes": (21, 3)},
            {"transcript": "Three.", "codes": (9, 4)},
        ],
        "seed": 2**63 - 1, "temperature": 1.3, "top_p": 0.8,
    },
}


def make_checkpoint(tool: str, preset: str, seed: int, folder: str) -> None:
    """Writes the checkpoint unless the folder already holds it (tests share them)."""
    done = os.path.join(folder, "config.json")
    if not os.path.exists(done):
        subprocess.run([tool, "--preset", preset, "--seed", str(seed), folder], check=True,
                       stdout=subprocess.DEVNULL)


def write_request(name: str, config: dict, folder: str, max_frames: int) -> str:
    """request.json and its references' codes, as .npy files beside it; the path."""
    os.makedirs(folder, exist_ok=True)
    request = json.loads(json.dumps(REQUESTS[name]))
    request["max_frames"] = max_frames
    for index, reference in enumerate(request.get("references", [])):
        frames, seed = reference["codes"]
        reference["codes"] = f"reference_{index}.npy"
        np.save(os.path.join(folder, reference["codes"]),
                oracle.random_codes(config, frames, seed).astype("<i4"))
    path = os.path.join(folder, "request.json")
    with open(path, "w", encoding="utf-8") as handle:
        json.dump(request, handle, indent=1)
        handle.write("\n")
    return path


def labels_of(model, frames: int, seed: int) -> torch.Tensor:
    """[frames + 1, 1 + codebooks]: random frames, then the end-of-speech row."""
    config = model.config
    codes = oracle.random_codes(model.checkpoint.config_dict, frames, seed)
    rows = np.concatenate([codes[:1] + config.semantic_start_token_id, codes]).T
    eos = np.zeros((1, rows.shape[1]), rows.dtype)
    eos[0, 0] = config.eos_token_id
    return torch.from_numpy(np.concatenate([rows, eos]).copy())


def generate(model, rows, request: dict, max_frames: int, greedy: bool = False):
    """(frames, for each frame the smallest race margin of the draws that count)."""
    frames, log = oracle.run_generate(
        model, rows, seed=request.get("seed", 1), temperature=request.get("temperature", 1.0),
        top_p=request.get("top_p", 0.9), top_k=request.get("top_k"), max_frames=max_frames,
        greedy=greedy)
    margins = np.full(len(frames), np.inf)
    for draw in log:
        if draw.get("ras_used", True):
            margins[draw["step"] - 1] = min(margins[draw["step"] - 1], draw["race_margin"])
    return frames, margins


class Reference:
    """One checkpoint under the oracle; one model is alive at a time, they are large."""

    def __init__(self, checkpoint: str, sglang_omni: str) -> None:
        self.checkpoint, self.sglang_omni, self.models = checkpoint, sglang_omni, {}
        with open(os.path.join(checkpoint, "config.json"), encoding="utf-8") as handle:
            self.config = json.load(handle)

    def model(self, mode: str, act_quant: bool):
        key = mode, act_quant
        if key not in self.models:
            self.models.clear()
            gc.collect()  # modules hold each other: without this two models are in memory
            self.models[key] = ref.Model(self.checkpoint, self.sglang_omni, mode, act_quant)
        return self.models[key]

    def rows(self, path: str):
        request, references = oracle.load_request(path, self.config)
        return request, ref.prompt_rows(self.checkpoint, self.sglang_omni, request["text"],
                                        references)


class Codec:
    """The checkpoint's codec under the oracle."""

    def __init__(self, checkpoint: str, sglang_omni: str) -> None:
        with open(os.path.join(checkpoint, "config.json"), encoding="utf-8") as handle:
            self.config = json.load(handle)
        self.whole = ref.load_codec(checkpoint, sglang_omni)
        self.folded = ref.load_codec(checkpoint, sglang_omni)
        self.folded.fold_weight_norm()

    def random_codes(self, frames: int, seed: int) -> np.ndarray:
        """[codebooks, frames], also past the ends of the residual books, as heads can draw."""
        return oracle.random_codes(self.config, frames, seed)

    @torch.no_grad()
    def decode(self, codes: np.ndarray) -> np.ndarray:
        # from_indices clamps its argument in place.
        return self.folded.from_indices(torch.from_numpy(codes.copy())[None])[0, 0].numpy()

    @torch.no_grad()
    def encode(self, wave: np.ndarray) -> np.ndarray:
        audio = torch.from_numpy(wave)[None]
        return self.whole.encode(audio, torch.tensor([audio.shape[1]]))[0][0].numpy()
