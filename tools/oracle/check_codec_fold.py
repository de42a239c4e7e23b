"""Compares codec.safetensors (thespis convert codec) with the same codec.pth folded by torch in double.

    python check_codec_fold.py codec.pth codec.safetensors

Prints the largest relative difference of any tensor (largest difference / largest value) and of any single value;
fails above 1e-6 of the tensor.
"""

import sys

import torch
from safetensors import safe_open

SPELLINGS = (
    (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
    (".weight_g", ".weight_v"),
)
BUFFERS = (".freqs_cis", ".causal_mask")


def fold(state: dict) -> dict:
    folded = {name: value.double() for name, value in state.items() if not name.endswith(BUFFERS)}
    for gain, direction in SPELLINGS:
        for name in [n for n in folded if n.endswith(gain)]:
            base = name[: -len(gain)]
            g, v = folded.pop(name), folded.pop(base + direction)
            norm = torch.linalg.vector_norm(v, dim=tuple(range(1, v.dim())), keepdim=True)
            folded[base + ".weight"] = v * (g / norm)
    return folded


def main() -> None:
    state = torch.load(sys.argv[1], map_location="cpu", weights_only=True)
    expected = fold(state.get("state_dict", state))
    worst_tensor, worst_value = (0.0, ""), (0.0, "")
    with safe_open(sys.argv[2], "pt") as file:
        names = set(file.keys())
        assert names == set(expected), sorted(names ^ set(expected))
        for name, want in expected.items():
            got = file.get_tensor(name)
            assert got.dtype == torch.float32 and got.shape == want.shape, name
            difference = (got.double() - want).abs()
            worst_tensor = max(worst_tensor, ((difference.max() / want.abs().max().clamp(min=1e-300)).item(), name))
            ratio = difference[want != 0] / want[want != 0].abs()
            if ratio.numel():
                worst_value = max(worst_value, (ratio.max().item(), name))
        print(len(names), "tensors", file.metadata())
    print(f"largest difference of a tensor {worst_tensor[0]:.3g} ({worst_tensor[1]})")
    print(f"largest difference of a value  {worst_value[0]:.3g} ({worst_value[1]})")
    if worst_tensor[0] > 1e-6:
        sys.exit("above 1e-6")


if __name__ == "__main__":
    main()
