"""The reference's Triton sampling kernels, run in Triton's CPU interpreter.

Import this before anything that imports triton: the interpreter is chosen at import.
"""

from __future__ import annotations

import os
import types
import warnings

os.environ["TRITON_INTERPRET"] = "1"
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import drama3_ref as ref  # noqa: E402

MINIMUM_TEMPERATURE = 1e-5


def constexpr_add(self, other):
    # The interpreter's constexpr + tensor would wrap the tensor in a constexpr.
    if isinstance(other, tl.tensor):
        return other + self.value
    return tl.constexpr(self.value + getattr(other, "value", other))


tl.constexpr.__add__ = constexpr_add


@triton.jit
def stand_in_exp(x):
    return tl.exp(x)


@triton.jit
def stand_in_log(x):
    return tl.log(x)


class Kernels:
    """draw_code and draw_main call the kernels on logits of one row or several."""

    def __init__(self, sglang_omni: str) -> None:
        ref.install_stubs(sglang_omni)
        self.kernels = ref.drama3("sampling_kernels")
        selection = ref.drama3("sampling_selection")
        # The interpreter has no libdevice; its own float32 exp and log stand in.
        selection.UNIFORM_MANTISSA_BITS = 23  # a bare int, which the interpreter can shift by
        selection.libdevice = types.SimpleNamespace(exp=stand_in_exp, log=stand_in_log)

    def knobs(self, rows: int, temperature: float, top_k: int, top_p: float):
        return (
            torch.full((rows,), temperature, dtype=torch.float32),
            torch.full((rows,), top_k),
            torch.full((rows,), top_p, dtype=torch.float32),
        )

    def sampler(self, seed: int, step: int):
        return self.kernels.CodebookSampler(step=torch.tensor(step), seed=seed)

    def draw_code(self, logits, temperature, top_k, top_p, seed, step, stream,
                  keep_crossing=False) -> list[int]:
        codes = self.kernels.sample_codebook_head(
            logits, *self.knobs(len(logits), temperature, top_k, top_p),
            self.sampler(seed, step), stream, MINIMUM_TEMPERATURE,
            keep_top_p_crossing_token=keep_crossing)
        return codes.tolist()

    def draw_main(self, logits, candidates, window, temperature, top_k, top_p, seed, step,
                  semantic_start, codebook_size):
        """Main token and code 0 of one row; window holds the last 16 main tokens."""
        token, code = self.kernels.sample_semantic_candidates(
            logits, candidates, window, *self.knobs(len(logits), temperature, top_k, top_p),
            semantic_start, codebook_size, self.sampler(seed, step),
            minimum_temperature=MINIMUM_TEMPERATURE, ras_temperature=1.0, ras_top_k=30,
            ras_top_p=0.95)
        return int(token), int(code)
