"""What an engine is judged by, how far the oracle itself is from that, and planted faults.

    python acceptance.py --judge exact|local|picks ORACLE_DIR ENGINE_DIR
    python acceptance.py --sglang-omni DIR --checkpoint CKPT [--request REQ.json] [--faults]

The functions exact, local, codes and picks compare arrays of `oracle.py forced`: `a` is the
oracle's result, `b` the engine's (torch tensors by name); `--judge` takes both from folders.
The second form lets the oracle with other summation orders stand in for the engine, and
`--faults` plants each fault of FAULTS in it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
import time
from types import SimpleNamespace

import numpy as np
import torch

import drama3_ref as ref
import oracle

# The recommended limits (README.md says where they come from).
EXACT = {"row": 1e-8, "logit": 1e-4, "margin": 1e-3}
LOCAL = {
    "backbone": {"worst": 0.12, "mean_median": 0.0015, "mean_equal": 0.8},
    "tower": {"worst": 0.01, "mean_median": 0.0022, "mean_equal": 0.75},
}
HEAD_ULPS = 1
NEAR_TIE_ULPS = 2
OTHER_EXPERTS = 0.01
CODES = {"equal": 0.998, "steps": 1, "scale": 3e-7}
PICKS = {"equal": 0.94, "ulps": 32}


def bf16_ulp(x: torch.Tensor) -> torch.Tensor:
    return 2.0 ** (torch.floor(torch.log2(x.double().abs().clamp(min=1e-30))) - 7)


def row_error(b, a, scale=None) -> torch.Tensor:
    """|b - a| / |scale| for each row."""
    a, b = a.double(), b.double()
    scale = a if scale is None else scale.double()
    return (b - a).norm(dim=-1) / scale.norm(dim=-1).clamp(min=1e-30)


def exact(a: dict, b: dict) -> dict:
    """fp32 without activation quantisation, end to end: 1 - cosine of the worst row of any
    layer, largest logit difference over the largest logit, picks that differ although a's
    best two are further apart than `margin`."""
    row = max(
        float((1 - oracle.cosine(b[key], a[key])).max())
        for key in ("embeds", "backbone_layers", "backbone_final", "tower_layers")
    )
    logits = ("candidate_logits", "code_logits")
    logit, wrong = 0.0, 0
    for key in logits:
        want, got = a[key].double(), b[key].double()
        logit = max(logit, float((want - got).abs().max() / want.abs().max()))
        best = want.topk(2, -1).values
        clear = best[..., 0] - best[..., 1] > EXACT["margin"]
        wrong += int(((want.argmax(-1) != got.argmax(-1)) & clear).sum())
    return {"row": row, "logit": logit, "wrong_picks": wrong,
            "pass": row <= EXACT["row"] and logit <= EXACT["logit"] and wrong == 0}


def router_gap(logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Last chosen minus first left-out router logit, in bf16 ulps of the former."""
    if top_k == logits.shape[-1]:  # none is left out
        return torch.full(logits.shape[:-1], torch.inf)
    ordered = logits.double().sort(-1, descending=True).values
    last = ordered[..., top_k - 1]
    return (last - ordered[..., top_k]) / bf16_ulp(last)


def local_passes(summary: dict) -> bool:
    return (
        summary["wrong_experts"] == 0 and summary["other_experts"] <= OTHER_EXPERTS
        and all(x["ulps"] <= HEAD_ULPS for x in summary["heads"].values())
        and all(
            summary[part]["worst"] <= limit["worst"]
            and summary[part]["mean_median"] <= limit["mean_median"]
            and summary[part]["mean_equal"] >= limit["mean_equal"]
            for part, limit in LOCAL.items()
        )
    )


def local(a: dict, outputs: dict, chosen: torch.Tensor | None) -> dict:
    """Layers run alone in bf16. a: `forced --layer-local --mode bf16`; outputs: the engine's
    backbone_layers and tower_layers from a's inputs; chosen: its experts [L, rows, top-k].

    A row's error is |b - a| over the length of what the layer adds (tower: puts out). Rows
    whose experts differ are left out, and counted as wrong unless they are near-ties."""
    rows = a["moe_rows"]
    total = a["inputs"].shape[0]
    other = torch.zeros(a["backbone_layers"].shape[0], total, dtype=bool)
    wrong = 0
    if chosen is not None:
        same = (a["moe_experts"].sort(-1).values == chosen.sort(-1).values).all(-1)
        gap = router_gap(a["moe_router_logits"], chosen.shape[-1])
        wrong = int((~same & (gap > NEAR_TIE_ULPS)).sum())
        other[:, rows] = ~same
    layers = []
    for key, inputs in (("backbone_layers", "backbone_layer_inputs"), ("tower_layers", None)):
        for index, (got, want) in enumerate(zip(outputs[key], a[key])):
            scale = want.float() - a[inputs][index].float() if inputs else want
            error = row_error(got, want, scale)
            keep = ~other[index] if inputs else torch.ones(total, dtype=bool)
            cosine = oracle.cosine(got, want)
            layers.append({
                "layer": f"{key[:-7]}{index}", "worst": float(error[keep].max()),
                "p90": float(error[keep].quantile(0.9)),
                "median": float(error[keep].median()),
                "cosine": float(cosine[keep].min()),
                "equal": float((got == want)[keep].double().mean()),
                "other_experts": int((~keep).sum()),
                "worst_other": float(error[~keep].max()) if (~keep).any() else 0.0,
            })
    summary: dict = {}
    for part in ("backbone", "tower"):
        some = [x for x in layers if x["layer"].startswith(part)]
        summary[part] = {key: max(x[key] for x in some) for key in ("worst", "p90", "median")}
        summary[part] |= {key: min(x[key] for x in some) for key in ("cosine", "equal")}
        # Over layers: a flip early in a sequence moves one layer's later rows, a wrong
        # rounding point moves every layer.
        for key in ("median", "equal"):
            summary[part]["mean_" + key] = sum(x[key] for x in some) / len(some)
    # The rest starts from a's own last layer, final norm and tower outputs.
    heads = {}
    for key in ("backbone_final", "candidate_logits", "code_logits"):
        step = bf16_ulp(a[key].abs().amax(-1, keepdim=True))
        apart = (outputs[key].double() - a[key].double()).abs() / step
        heads[key] = {"equal": float((apart == 0).double().mean()), "ulps": float(apart.max())}
    summary |= {
        "heads": heads, "wrong_experts": wrong,
        "other_experts": float(other.double().mean()),
        "worst_other": max(x["worst_other"] for x in layers),
    }
    summary["pass"] = local_passes(summary)
    return {"summary": summary, "layers": layers}


def codes(a: dict, b: dict) -> dict:
    """The e4m3 codes and scales of the expert inputs, from a's moe_inputs."""
    if b["moe_input_codes"].numel() == 0:
        return {"equal": 0.0, "steps": 255, "scale": float("inf"), "pass": False}
    # Neighbouring e4m3 values of one sign have neighbouring codes; 0x80 is -0.
    want, got = (
        torch.where(x >= 128, 128 - x.int(), x.int())
        for x in (a["moe_input_codes"], b["moe_input_codes"])
    )
    equal = float((want == got).double().mean())
    steps = int((want - got).abs().max())
    scale = float((b["moe_input_scales"] / a["moe_input_scales"] - 1).abs().max())
    return {"equal": equal, "steps": steps, "scale": scale,
            "pass": equal >= CODES["equal"] and steps <= CODES["steps"]
            and scale <= CODES["scale"]}


def picks(a: dict, b: dict) -> dict:
    """bf16, teacher-forced, end to end: share of equal argmaxes; for the others, how many
    ulps below a's best logit a puts b's pick."""
    equal, total, ulps = 0, 0, []
    for key in ("candidate_logits", "code_logits"):
        want, got = a[key].double().flatten(0, -2), b[key].double().flatten(0, -2)
        best, pick = want.max(-1).values, got.argmax(-1)
        behind = (best - want.gather(-1, pick[:, None])[:, 0]) / bf16_ulp(best)
        equal += int((behind == 0).sum())
        total += behind.numel()
        ulps += behind[behind > 0].tolist()
    share = equal / total
    return {"equal": share, "count": total, "ulps": sorted(round(u, 1) for u in ulps),
            "pass": share >= PICKS["equal"] and max(ulps, default=0) <= PICKS["ulps"]}


# ----------------------------------------------------------------------- the stand-in engine
def run_local(model, a: dict):
    """Every layer of model alone on a's inputs, the second half a row at a time."""
    model.activate()
    together = a["inputs"].shape[0] // 2
    ref.Numerics.moe_log = []
    backbone = [model.backbone.run_layer(i, x, together)
                for i, x in enumerate(a["backbone_layer_inputs"])]
    log, ref.Numerics.moe_log = ref.Numerics.moe_log, None
    labels = torch.cat([a["inputs"][1:], a["labels"][-1:]])
    tower = [model.tower.run_layer(i, x, a["inputs"], labels, together)
             for i, x in enumerate(a["tower_layer_inputs"])]
    kept = slice(-len(a["moe_rows"]), None)
    calls = len(log) // len(backbone)
    chosen = torch.stack([
        torch.cat([entry["experts"] for entry in log[i: i + calls]])[kept]
        for i in range(0, len(log), calls)
    ])
    quantised = {"moe_input_codes": [], "moe_input_scales": []}
    for h in a["moe_inputs"]:
        values, scales = ref.quantise(h)
        quantised["moe_input_codes"].append(
            values.view(torch.uint8) if ref.Numerics.act_quant else values[:, :0])
        quantised["moe_input_scales"].append(scales)
    prompt = a["inputs"].shape[0] - a["labels"].shape[0]
    shared = len(model.tower.decoder.shared_layers)
    outputs = {
        "backbone_layers": torch.stack(backbone), "tower_layers": torch.stack(tower),
        "backbone_final": model.backbone.model.norm(a["backbone_layers"][-1]),
        "candidate_logits": model.candidate_logits(a["backbone_final"][prompt:]),
        "code_logits": torch.stack([
            head(x[prompt:]) for head, x in zip(
                model.tower.decoder.codebook_heads, a["tower_layers"][shared:])], 1),
    }
    return outputs, chosen, {k: torch.stack(v) for k, v in quantised.items()}


@contextlib.contextmanager
def swapped(*changes):
    """Each change is (object, attribute, value), undone at the end."""
    before = [(thing, name, getattr(thing, name)) for thing, name, _ in changes]
    for thing, name, value in changes:
        setattr(thing, name, value)
    try:
        yield
    finally:
        for thing, name, value in reversed(before):
            setattr(thing, name, value)


def parameter(value: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(value, requires_grad=False)


def attention_layers(model):
    return [layer.self_attn for layer in model.backbone.model.layers
            if hasattr(layer, "self_attn")]


def fault_q_gate(model):
    """backbone q_proj read as [all queries, all gates]"""
    for layer in attention_layers(model):
        weight = layer.q_proj.weight
        half = weight.shape[0] // 2
        pairs = torch.stack(
            [weight[:half].view(-1, layer.head_dim, weight.shape[1]),
             weight[half:].view(-1, layer.head_dim, weight.shape[1])], 1)
        yield layer.q_proj, "weight", parameter(pairs.flatten(0, 2).contiguous())


def fault_rope_backbone(model):
    """backbone rope on pairs (2i, 2i+1)"""
    q = model.backbone.q

    def rope(queries, keys, cos, sin, unsqueeze_dim=1):
        width = cos.shape[-1]
        cos, sin = (x[..., : width // 2].unsqueeze(unsqueeze_dim) for x in (cos, sin))

        def rotate(x):
            even, odd = ref.up(x[..., 0:width:2]), ref.up(x[..., 1:width:2])
            y = torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)
            return torch.cat((y.to(x.dtype), x[..., width:]), -1)

        return rotate(queries), rotate(keys)

    yield q, "apply_rotary_pos_emb", rope


def fault_rope_tower(model):
    """tower rope on pairs (i, i + half)"""
    kind = type(model.tower.layers()[0].self_attn.rotary_embedding)

    def forward(self, positions, query, key):
        half = self.rotary_dim // 2
        cosine, sine = self.cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
        for states in (query, key):
            view = states.view(positions.shape[0], -1, self.head_dim)
            low, high = view[..., :half].float(), view[..., half: 2 * half].float()
            view[..., : 2 * half] = torch.cat(
                (low * cosine - high * sine, high * cosine + low * sine), -1).to(view.dtype)
        return query, key

    yield kind, "forward", forward


def fault_norm(model):
    """k_norm of the backbone multiplies by w, not 1 + w"""
    for layer in attention_layers(model):
        yield layer.k_norm, "weight", parameter(layer.k_norm.weight.float() - 1)


def fault_tower_norm(model):
    """hnorm of the tower multiplies by w, not 1 + w"""
    for layer in model.tower.layers():
        yield layer.hnorm, "weight", parameter(layer.hnorm.weight.float() - 1)


def fault_top_k(model):
    """one expert fewer"""
    for layer in model.backbone.model.layers:
        yield layer.mlp.gate, "top_k", layer.mlp.gate.top_k - 1


def fault_act_quant(model):
    """routed experts fed unquantised"""
    yield model, "act_quant", False


def fault_second_quant(model):
    """only the first expert product quantised"""
    inner = model.backbone.model.layers[0].mlp.experts.down[0].values.shape[1]
    real = ref.quantise
    yield ref, "quantise", lambda x: real(x) if x.shape[-1] != inner else (
        x, torch.ones(*x.shape[:-1], inner // 128))


def fault_scale(model):
    """up rows take the gate rows' weight scales"""
    for layer in model.backbone.model.layers:
        for weight in layer.mlp.experts.gate_up:
            half = weight.scales.shape[0] // 2
            yield weight, "scales", weight.scales[:half].repeat(2, 1)


def fault_scale_inverse(model):
    """down scales of one expert divide instead of multiplying"""
    for layer in model.backbone.model.layers:
        weight = layer.mlp.experts.down[-1]
        yield weight, "scales", 1 / weight.scales


def fault_weight_first(model):
    """down output rounded to bf16 before the routing weight multiplies"""
    kind = type(model.backbone.model.layers[0].mlp.experts)
    real = kind.forward

    def forward(self, h, chosen, weights):
        one = torch.ones_like(weights)
        total = torch.zeros(h.shape, dtype=ref.Numerics.acc())
        for slot in range(chosen.shape[1]):
            part = real(self, h, chosen[:, slot: slot + 1], one[:, slot: slot + 1])
            total += (ref.up(part) * weights[:, slot: slot + 1]).to(h.dtype)
        return total.to(h.dtype)

    yield kind, "forward", forward


def fault_gate_after(model):
    """attention gate applied after o_proj"""
    kind = model.backbone.q.Qwen3_5MoeAttention
    real = kind.forward

    def forward(self, hidden_states, *args, **kwargs):
        gate = self.q_proj(hidden_states).view(
            *hidden_states.shape[:-1], -1, 2 * self.head_dim)[..., self.head_dim:]
        gate = torch.sigmoid(ref.up(gate.flatten(-2)))
        saved = torch.sigmoid
        torch.sigmoid = lambda x: torch.ones_like(x)
        try:
            out, weights = real(self, hidden_states, *args, **kwargs)
        finally:
            torch.sigmoid = saved
        return (ref.up(out) * gate[..., : out.shape[-1]]).to(out.dtype), weights

    yield kind, "forward", forward


def fault_gate_rounded(model):
    """backbone attention gate's sigmoid rounded to bf16"""
    kind = model.backbone.q.Qwen3_5MoeAttention
    real = kind.forward

    def forward(self, *args, **kwargs):
        saved = torch.sigmoid
        torch.sigmoid = lambda x: saved(x).to(ref.Numerics.act()).to(x.dtype)
        try:
            return real(self, *args, **kwargs)
        finally:
            torch.sigmoid = saved

    yield kind, "forward", forward


def delta_fault(change):
    def fault(model):
        q = model.backbone.q
        real = q.torch_chunk_gated_delta_rule

        def recurrent(query, key, value, g, beta, **kwargs):
            g, beta = change(g, beta)
            return real(query, key, value, g=g, beta=beta, **kwargs)

        for layer in model.backbone.model.layers:
            if hasattr(layer, "linear_attn"):
                yield layer.linear_attn, "in_proj_b", Recorder(
                    layer.linear_attn.in_proj_b)
        yield q, "torch_chunk_gated_delta_rule", recurrent
        yield q, "torch_recurrent_gated_delta_rule", recurrent

    return fault


class Recorder(torch.nn.Module):
    """Remembers beta's logits."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        Recorder.last = self.inner(x)
        return Recorder.last


fault_beta = delta_fault(lambda g, beta: (g, torch.sigmoid(ref.up(Recorder.last))))
fault_g = delta_fault(lambda g, beta: (g.to(ref.Numerics.act()).to(g.dtype), beta))
fault_beta.__name__, fault_beta.__doc__ = "fault_beta", "beta not rounded to bf16"
fault_g.__name__, fault_g.__doc__ = "fault_g", "g rounded to bf16"


def fault_key_head(model):
    """value head j reads key head j mod key heads"""
    q = model.backbone.q
    real = q.torch_chunk_gated_delta_rule
    net = next(x.linear_attn for x in model.backbone.model.layers if hasattr(x, "linear_attn"))
    order = [j % net.num_k_heads * (net.num_v_heads // net.num_k_heads)
             for j in range(net.num_v_heads)]

    def recurrent(query, key, value, **kwargs):
        return real(query[:, :, order], key[:, :, order], value, **kwargs)

    yield q, "torch_chunk_gated_delta_rule", recurrent
    yield q, "torch_recurrent_gated_delta_rule", recurrent


def fault_conv_state(model):
    """decode leaves the newest input out of the conv state"""
    q = model.backbone.q
    real = q.causal_conv1d_update

    def update(hidden_states, conv_state, *args, **kwargs):
        before = conv_state.clone()
        out = real(hidden_states, conv_state, *args, **kwargs)
        conv_state.copy_(before)
        return out

    yield q, "causal_conv1d_update", update


def fault_extra_mask(model):
    """extra input of the first tower layer not masked on text rows"""
    decoder = model.tower.decoder
    yield decoder, "shared_input", lambda frames: decoder.codebook_embedding_sum(
        frames, 1 + decoder.backbone_codebook_count, decoder.num_codebooks)


def fault_label(model):
    """tower labels taken from the row's own frame"""
    tower = model.tower
    prefill, step, layer = tower.prefill, tower.forced_step, tower.run_layer
    yield tower, "prefill", lambda h, i, n, *rest: prefill(h, i, i, *rest)
    yield tower, "forced_step", lambda h, i, n, *rest: step(h, i, i, *rest)
    yield tower, "run_layer", lambda k, x, i, n, together: layer(k, x, i, i, together)


def fault_shared_gate(model):
    """shared-expert gate's logit and sigmoid rounded to bf16"""
    kind = model.backbone.q.Qwen3_5MoeSparseMoeBlock
    real = kind.forward

    def forward(self, h):
        saved, act = torch.sigmoid, ref.Numerics.act()
        torch.sigmoid = lambda x: saved(x.to(act)).to(x.dtype)
        try:
            return real(self, h)
        finally:
            torch.sigmoid = saved

    yield kind, "forward", forward


def fault_expert_weights(model):
    """routing weights rounded to bf16"""
    kind = type(model.backbone.model.layers[0].mlp.experts)
    real = kind.forward
    yield kind, "forward", lambda self, h, chosen, weights: real(
        self, h, chosen, weights.to(ref.Numerics.act()).to(weights.dtype))


def fault_tower_gate(model):
    """tower attention gate's sigmoid not rounded to bf16"""
    layers = sys.modules[type(model.tower.layers()[0]).__module__]
    functions = {name: getattr(torch, name) for name in ("cat", "stack", "where")}
    yield layers, "torch", SimpleNamespace(
        **functions, sigmoid=lambda x: torch.sigmoid(ref.up(x)))
    for layer in model.tower.layers():
        yield layer.self_attn, "o_proj", Rounder(layer.self_attn.o_proj)


class Rounder(torch.nn.Module):
    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.to(ref.Numerics.act()))


def fault_norm_sum(model):
    """tower norms after an addition normalise the unrounded sum (SGLang's CUDA kernel)"""
    kind = type(model.tower.layers()[0].enorm)
    real = kind.forward

    def forward(self, x, residual=None):
        if residual is None:
            return real(self, x)
        total = ref.up(x) + ref.up(residual)
        return real(self, total).to(x.dtype), total.to(x.dtype)

    yield kind, "forward", forward


def fault_placeholder(model):
    """the last prompt row's tower keys and values stay those of the placeholder label"""
    del model
    real = ref.DenseTowerAttention.__call__

    def call(self, layer_index, query, key, value):
        old, first = self.keys[layer_index], int(self.positions[0])
        if old is not None and old.shape[0] > first:
            key, value = (
                torch.cat([store[layer_index][first: first + 1].flatten(1), new[1:]])
                for store, new in ((self.keys, key), (self.values, value))
            )
        return real(self, layer_index, query, key, value)

    yield ref.DenseTowerAttention, "__call__", call


def fault_ras(model):
    """RAS window of 15 rows"""
    yield ref.drama3("sampling"), "RAS_WINDOW_FRAMES", 15


FAULTS = [
    fault_q_gate, fault_rope_backbone, fault_rope_tower, fault_norm, fault_tower_norm,
    fault_top_k, fault_act_quant, fault_second_quant, fault_scale, fault_scale_inverse,
    fault_gate_after, fault_beta, fault_g, fault_key_head, fault_conv_state,
    fault_extra_mask, fault_label, fault_shared_gate, fault_gate_rounded,
    fault_expert_weights, fault_weight_first, fault_tower_gate, fault_norm_sum,
    fault_placeholder, fault_ras,
]


def ras_frames() -> torch.Tensor:
    """Main tokens and RAS decisions of 400 draws from random logits, without a model."""
    sampling = ref.drama3("sampling")
    count = 40
    generator = torch.Generator().manual_seed(4)
    history = torch.arange(1000, 1016)
    used = []
    for step in range(400):
        logits = torch.randn(count, generator=generator).numpy()
        window = history[-sampling.RAS_WINDOW_FRAMES:]
        first = 1000 + ref.Draw(logits, 1.0, 40, 1.0, 9, step + 1, 0, True).index
        ras = 1000 + ref.Draw(logits, 1.0, 30, 0.95, 9, step + 1, 1, True).index
        repeat = bool((window == first).any())
        used.append(repeat)
        history = torch.cat([history, torch.tensor([ras if repeat else first])])
    return torch.stack([history[16:], torch.tensor(used)])


def judge(a: dict, engine, rows, labels, wide_a, engine_fp32) -> dict:
    result = {}
    stepped = oracle.run_forced(engine_fp32, rows, labels, stepwise=True)
    result["exact"] = exact(wide_a, stepped)
    outputs, chosen, quantised = run_local(engine, a)
    if chosen.shape == a["moe_experts"].shape:
        result["local"] = local(a, outputs, chosen)
    else:
        result["local"] = local(a, outputs, None)
        result["local"]["summary"]["pass"] = False
    result["codes"] = codes(a, quantised)
    result["picks"] = picks(a, oracle.run_forced(engine, rows, labels, stepwise=True))
    return result


def brief(result: dict) -> dict:
    return {k: (v["summary"] if k == "local" else v) for k, v in result.items()}


def judge_folders(kind: str, *folders: str) -> int:
    a, b = (
        {path.stem: torch.from_numpy(np.load(path)) for path in pathlib.Path(folder).glob("*.npy")}
        for folder in folders
    )
    if kind == "local":
        results = {"local": local(a, b, b.get("moe_experts"))["summary"], "codes": codes(a, b)}
    else:
        results = {kind: {"exact": exact, "picks": picks}[kind](a, b)}
    print(json.dumps(results, indent=1))
    return int(not all(result["pass"] for result in results.values()))


DEFAULT_REQUEST = {
    "text": "[sighs] Fine. If we miss it, it's on you.",
    "references": [("We asked over twenty people.", 21, 7)],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--judge", nargs=3, metavar=("KIND", "ORACLE", "ENGINE"),
                        help="exact, local or picks; two folders of .npy arrays")
    parser.add_argument("--sglang-omni", default=ref.sglang_omni_folder())
    parser.add_argument("--checkpoint")
    parser.add_argument("--request")
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--faults", nargs="*", help="names, or nothing for all")
    parser.add_argument("--out")
    args = parser.parse_args()
    if args.judge:
        sys.exit(judge_folders(*args.judge))
    config = oracle.config_of(args)
    if args.request:
        request, references = oracle.load_request(args.request, config)
    else:
        request = DEFAULT_REQUEST
        references = [
            (text, torch.from_numpy(oracle.random_codes(config, frames, seed)))
            for text, frames, seed in request["references"]
        ]
    rows = ref.prompt_rows(args.checkpoint, args.sglang_omni, request["text"], references)

    def model(mode, act_quant, sums):
        return ref.Model(args.checkpoint, args.sglang_omni, mode, act_quant, sums)

    reference = model("bf16", True, "fp32")
    labels = oracle.forced_labels(SimpleNamespace(
        frames=None, random_frames=args.frames, frames_seed=11, eos_label=True), reference)
    a = oracle.run_layer_local(reference, rows, labels, 1 << 30)
    wide_a = oracle.run_forced(model("fp64", False, "fp32"), rows, labels)
    log = open(args.out, "w") if args.out else sys.stdout

    def report(name, result):
        print(json.dumps({"name": name, **result}), file=log, flush=True)

    gap = router_gap(a["moe_router_logits"], a["moe_experts"].shape[-1])
    report("router", {"rows": gap.numel(), "gap_ulps_0": int((gap == 0).sum()),
                      "gap_up_to_1": int((gap <= 1).sum()),
                      "gap_up_to_2": int((gap <= 2).sum())})
    fp32 = model("fp32", False, "fp32")
    if args.faults is None:
        for sums in ("fp64", "reversed"):
            other = model("bf16", True, sums)
            result = judge(a, other, rows, labels, wide_a, fp32)
            whole = oracle.run_layer_local(other, rows, labels, 1 << 30)
            same = (whole["moe_experts"].sort(-1).values
                    == a["moe_experts"].sort(-1).values).all(-1)
            result["whole"] = {
                "other_experts": int((~same).sum()),
                **{key: float(oracle.cosine(whole[key], a[key]).min())
                   for key in ("backbone_layers", "tower_layers")}}
            report(f"sums {sums}", result)
        return
    engine = model("bf16", True, "reversed")
    ras = ras_frames()
    for fault in FAULTS:
        if args.faults and fault.__name__ not in args.faults:
            continue
        started = time.time()
        with contextlib.ExitStack() as stack:
            done = set()
            for target in (engine, fp32):
                for change in fault(target):
                    if fault is fault_act_quant and target is fp32:
                        continue
                    key = (id(change[0]), change[1])
                    if key not in done:
                        done.add(key)
                        stack.enter_context(swapped(change))
            result = brief(judge(a, engine, rows, labels, wide_a, fp32))
            draws = ras_frames()
            result["draws"] = {"pass": bool((draws == ras).all())}
        result["caught_by"] = [k for k, v in result.items() if not v["pass"]]
        result["what"] = fault.__doc__
        result["seconds"] = round(time.time() - started, 1)
        report(fault.__name__, result)


if __name__ == "__main__":
    main()
