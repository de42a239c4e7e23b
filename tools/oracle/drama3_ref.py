"""Reference modules for the Drama 3 oracle.

Nothing here is a re-implementation of the model: the tower, prompt builder, config and
sampler settings are the unmodified files of the sglang-omni wheel; the backbone is
transformers' Qwen3_5Moe text model; the codec is the wheel's modded_dac / rvq plus
descript-audio-codec. This file stubs the serving imports those files need, loads the
checkpoint into them, and pins down the arithmetic (see Numerics).
"""

from __future__ import annotations

import enum
import importlib
import importlib.machinery
import importlib.util
import json
import math
import os
import sys
import types

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.set_grad_enabled(False)


# --------------------------------------------------------------------------- numerics
class Numerics:
    """How the oracle rounds. Model.activate() sets these; they hold for one model at a time.

    mode: bf16 rounds where the reference on a GPU does (docs/model.md), fp32 between those
          points; fp32 / fp64 never round to bf16 (weights keep their bf16 / e4m3 values).
    act_quant: quantise the routed experts' inputs to e4m3 per row and 128 inputs.
    sums: fp32, fp64 (the type between rounding points) or reversed (fp32, every matrix
          product summed from the last input to the first): other evaluations of one mode.
    moe_log: a list to which each MoE call appends its inputs and routing, or None.
    """

    mode = "bf16"
    act_quant = True
    sums = "fp32"
    moe_log: list | None = None

    @classmethod
    def act(cls) -> torch.dtype:
        return {
            "bf16": torch.bfloat16,
            "fp32": torch.float32,
            "fp64": torch.float64,
        }[cls.mode]

    @classmethod
    def acc(cls) -> torch.dtype:
        wide = "fp64" in (cls.mode, cls.sums)
        return torch.float64 if wide else torch.float32


def up(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(Numerics.acc())


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight^T in the accumulation type."""
    if Numerics.sums == "reversed":
        x, weight = x.flip(-1), weight.flip(-1)
    return up(x) @ up(weight).t()


def linear(x: torch.Tensor, weight: torch.Tensor, bias=None) -> torch.Tensor:
    out = product(x, weight)
    if bias is not None:
        out = out + up(bias)
    return out.to(x.dtype)


# ------------------------------------------------------------------------------ stubs
def module(name: str, package: bool = False, **attributes) -> types.ModuleType:
    stub = types.ModuleType(name)
    stub.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=package)
    if package:
        stub.__path__ = []
    for attribute, value in attributes.items():
        setattr(stub, attribute, value)
    sys.modules[name] = stub
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, stub)
    return stub


class GemmaRMSNorm(nn.Module):
    """sglang.srt.layers.layernorm.GemmaRMSNorm.forward_native (weight + 1, fp32): the sum
    with the residual is rounded first, the rounded value is normalised."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = eps

    def forward(self, x, residual=None):
        dtype = x.dtype
        if residual is not None:
            x = x + residual
            residual = x
        x = up(x)
        x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.variance_epsilon)
        x = (x * (1.0 + up(self.weight))).to(dtype)
        return x if residual is None else (x, residual)


class SiluAndMul(nn.Module):
    """sglang.srt.layers.activation.SiluAndMul on CUDA: fp32 inside, one rounding."""

    def forward(self, x):
        half = x.shape[-1] // 2
        return (F.silu(up(x[..., :half])) * up(x[..., half:])).to(x.dtype)


class ForwardMode(enum.IntEnum):
    EXTEND = 1
    DECODE = 2


def sglang_omni_folder() -> str:
    """Where tools/oracle/setup unpacks the reference, unless the environment says else."""
    return os.environ.get("THESPIS_SGLANG_OMNI", os.path.join(sys.prefix, "sglang-omni"))


def install_stubs(sglang_omni_dir: str) -> None:
    if "sglang" in sys.modules:
        return
    from transformers import PretrainedConfig

    class Qwen3_5MoeTextConfig(PretrainedConfig):
        """The fields Drama3TextConfig and checked_text_config read."""

        model_type = "qwen3_5_moe_text"

        def __init__(self, **kwargs) -> None:
            defaults = dict(
                hidden_act="silu",
                rms_norm_eps=1e-6,
                norm_topk_prob=True,
                linear_conv_kernel_dim=4,
                attn_output_gate=True,
                tie_word_embeddings=False,
            )
            for key, value in {**defaults, **kwargs}.items():
                object.__setattr__(self, key, value)

        @property
        def full_attention_layer_ids(self):
            interval = self.full_attention_interval
            return [
                i for i in range(self.num_hidden_layers) if (i + 1) % interval == 0
            ]

    for name in (
        "sglang", "sglang.srt", "sglang.srt.configs", "sglang.srt.mem_cache",
        "sglang.srt.model_executor", "sglang.srt.layers",
    ):
        module(name, package=True)
    module("sglang.srt.configs.qwen3_5", Qwen3_5MoeTextConfig=Qwen3_5MoeTextConfig)
    module(
        "sglang.srt.mem_cache.memory_pool",
        HybridLinearKVPool=type("HybridLinearKVPool", (), {}),
        MHATokenToKVPool=type("MHATokenToKVPool", (), {}),
    )
    module(
        "sglang.srt.model_executor.forward_batch_info",
        ForwardMode=ForwardMode,
        ForwardBatch=type("ForwardBatch", (), {}),
    )
    module("sglang.srt.layers.activation", SiluAndMul=SiluAndMul)
    module("sglang.srt.layers.layernorm", GemmaRMSNorm=GemmaRMSNorm)
    module("sglang.srt.runtime_context", get_exec=lambda: None)

    if sglang_omni_dir not in sys.path:
        sys.path.insert(0, sglang_omni_dir)
    importlib.import_module("sglang_omni")
    platform = types.SimpleNamespace(
        get_joint_rope_inplace_kernel=lambda: None, is_cuda=lambda: False
    )
    module("sglang_omni.platforms", package=True, current_platform=platform)
    module("sglang_omni.platforms.interface", JointRopeInplaceKernel=object)

    class BaseModel(nn.Module):
        INTERN: list[str] = []
        EXTERN: list[str] = []

    ml = module("audiotools.ml", BaseModel=BaseModel)
    module(
        "audiotools", package=True, ml=ml,
        AudioSignal=type("AudioSignal", (), {}),
        STFTParams=type("STFTParams", (), {}),
    )
    dac_spec = importlib.machinery.PathFinder.find_spec("dac")
    dac = module("dac", package=True)
    dac.__path__ = list(dac_spec.submodule_search_locations)


def drama3(name: str):
    return importlib.import_module(f"sglang_omni.models.fishaudio_drama3.{name}")


# ------------------------------------------------------------------ backbone patches
class BlockWeight:
    """e4m3 values [out, in] (as fp32) and fp32 scales, one per output and 128 inputs."""

    def __init__(self, checkpoint, names: list[str]) -> None:
        self.values = torch.cat([checkpoint[n + ".weight"].float() for n in names])
        self.scales = torch.cat([
            checkpoint[n + ".weight_scale_inv"].float().repeat_interleave(128, 0)[
                : checkpoint[n + ".weight"].shape[0]]
            for n in names
        ])

    def dequantised(self) -> torch.Tensor:
        scale = self.scales.repeat_interleave(128, 1)[:, : self.values.shape[1]]
        return self.values * scale


def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Per row and 128 inputs: (e4m3 values, fp32 scales); (x, ones) without act_quant."""
    groups = x.reshape(*x.shape[:-1], -1, 128)
    if not Numerics.act_quant:
        return x, torch.ones(groups.shape[:-1])
    groups = groups.float()
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=1e-10)
    q = (groups * (448.0 / amax)).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return q.reshape(x.shape), (amax * (1.0 / 448.0))[..., 0]


def block_product(values: torch.Tensor, scales: torch.Tensor, weight: BlockWeight):
    """Sum over blocks of (e4m3 dot product) * (activation scale * weight scale)."""
    total = torch.zeros(values.shape[0], weight.values.shape[0], dtype=Numerics.acc())
    blocks = list(range(scales.shape[-1]))
    for block in reversed(blocks) if Numerics.sums == "reversed" else blocks:
        part = slice(block * 128, block * 128 + 128)
        inner = product(values[:, part], weight.values[:, part])
        total += inner * (up(scales[:, block, None]) * up(weight.scales[:, block]))
    return total


class Fp8Experts(nn.Module):
    """Block-FP8 routed experts: gate_up, activation and routed-weighted down outputs are
    rounded to the activation type, the slots are summed in fp32 in slot order."""

    def __init__(self, gate_up: list, down: list) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up, down  # BlockWeight per expert

    def forward(self, hidden_states, top_k_index, top_k_weights):
        dtype = hidden_states.dtype
        values, scales = quantise(hidden_states)
        values = values.to(Numerics.acc())
        slots = torch.zeros(*top_k_index.shape, hidden_states.shape[-1], dtype=dtype)
        for expert in range(len(self.gate_up)):
            rows, slot = torch.where(top_k_index == expert)
            if rows.numel() == 0:
                continue
            gate, value = block_product(
                values[rows], scales[rows], self.gate_up[expert]
            ).to(dtype).chunk(2, -1)
            mid, mid_scales = quantise((F.silu(up(gate)) * up(value)).to(dtype))
            out = block_product(mid.to(Numerics.acc()), mid_scales, self.down[expert])
            slots[rows, slot] = (out * up(top_k_weights[rows, slot, None])).to(dtype)
        total = torch.zeros(hidden_states.shape, dtype=Numerics.acc())
        for slot in range(slots.shape[1]):
            total += up(slots[:, slot])
        return total.to(dtype)


def patch_transformers(q) -> None:
    """Pin the rounding points of transformers' qwen3_5_moe module (mathematically the
    same functions: `oracle.py selftest` compares against the unpatched module)."""

    def rms_norm(self, x):
        y = up(x)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + up(self.weight))).to(x.dtype)

    def gated_norm(self, hidden_states, gate):
        y = up(hidden_states)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (y * up(self.weight) * F.silu(up(gate))).to(hidden_states.dtype)

    def rope_forward(self, x, position_ids):
        # fp32 angles in every mode, as SGLang's cos_sin_cache.
        angles = position_ids[0][..., None].float() * self.inv_freq.float()
        angles = torch.cat((angles, angles), dim=-1)
        return up(angles.cos()), up(angles.sin())

    def rope(queries, keys, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        width = cos.shape[-1]

        def rotate(x):
            y = up(x[..., :width])
            y = (y * cos + q.rotate_half(y) * sin).to(x.dtype)
            return torch.cat((y, x[..., width:]), dim=-1)

        return rotate(queries), rotate(keys)

    def attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **_):
        key = up(q.repeat_kv(key, module.num_key_value_groups))
        value = up(q.repeat_kv(value, module.num_key_value_groups))
        scores = up(query) @ key.transpose(2, 3) * scaling
        if attention_mask is not None:
            if attention_mask.dtype == torch.bool:
                scores = scores.masked_fill(~attention_mask, float("-inf"))
            else:
                scores = scores + up(attention_mask)
        weights = torch.softmax(scores, dim=-1)
        out = (weights @ value).to(query.dtype)
        return out.transpose(1, 2).contiguous(), weights

    def conv_fn(hidden_states, weight, bias=None, activation=None, **_):
        length = hidden_states.shape[-1]
        out = F.conv1d(
            up(hidden_states), up(weight).unsqueeze(1), None,
            padding=weight.shape[-1] - 1, groups=hidden_states.shape[1],
        )[:, :, :length]
        return F.silu(out).to(hidden_states.dtype)

    def conv_update(hidden_states, conv_state, weight, bias=None, activation=None):
        length = hidden_states.shape[-1]
        window = torch.cat([conv_state.to(hidden_states.dtype), hidden_states], dim=-1)
        conv_state.copy_(window[:, :, -conv_state.shape[-1]:])
        out = F.conv1d(up(window), up(weight).unsqueeze(1), groups=window.shape[1])
        return F.silu(out[:, :, -length:]).to(hidden_states.dtype)

    def router(self, hidden_states):
        logits = linear(hidden_states.reshape(-1, self.hidden_dim), self.weight)
        # Stable: of equal probabilities the lower expert wins, as topk_softmax does.
        values, order = torch.sort(
            torch.softmax(up(logits), dim=-1), dim=-1, descending=True, stable=True
        )
        values, order = values[:, : self.top_k], order[:, : self.top_k]
        return logits, values / values.sum(-1, keepdim=True), order

    def moe(self, hidden_states):
        h = hidden_states.reshape(-1, hidden_states.shape[-1])
        logits, weights, chosen = self.gate(h)
        routed = self.experts(h, chosen, weights)
        shared = self.shared_expert(h)
        # SGLang's fused_gate_sigmoid_mul_add: gate logit and sigmoid stay in fp32.
        gate = torch.sigmoid(product(h, self.shared_expert_gate.weight))
        out = (up(routed) + gate * up(shared)).to(h.dtype)
        if Numerics.moe_log is not None:
            values, scales = quantise(h)
            codes = values.view(torch.uint8) if Numerics.act_quant else values[:, :0]
            Numerics.moe_log.append({
                "inputs": h, "router_logits": logits, "experts": chosen,
                "expert_weights": weights, "input_codes": codes, "input_scales": scales,
            })
        return out.reshape(hidden_states.shape)

    def attention_forward(self, hidden_states, position_embeddings, attention_mask=None,
                          past_key_values=None, **_):
        """Qwen3_5MoeAttention.forward with the output gate's sigmoid in fp32."""
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, gate = self.q_proj(hidden_states).view(
            *hidden_states.shape[:-1], -1, self.head_dim * 2
        ).chunk(2, dim=-1)
        query = self.q_norm(query).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(heads)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(heads).transpose(1, 2)
        query, key = q.apply_rotary_pos_emb(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        out, weights = attention(self, query, key, value, attention_mask, self.scaling)
        gated = (up(out) * torch.sigmoid(up(gate))).to(out.dtype)
        return self.o_proj(gated.flatten(-2)), weights

    def mlp(self, x):
        gate, value = up(self.gate_proj(x)), up(self.up_proj(x))
        return self.down_proj((F.silu(gate) * value).to(x.dtype))

    def recurrent(query, key, value, g, beta, initial_state=None,
                  output_final_state=False, use_qk_l2norm_in_kernel=True, **_):
        """torch_recurrent_gated_delta_rule, in the accumulation type."""
        dtype = query.dtype
        query, key, value, beta, decay = (
            up(x.transpose(1, 2)).contiguous() for x in (query, key, value, beta, g)
        )
        query = q.l2norm(query) / query.shape[-1] ** 0.5
        key = q.l2norm(key)
        state = (
            value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1])
            if initial_state is None else up(initial_state)
        )
        out = torch.zeros_like(value)
        for i in range(key.shape[2]):
            q_t, k_t, v_t = query[:, :, i], key[:, :, i], value[:, :, i]
            state = state * decay[:, :, i].exp()[..., None, None]
            delta = (v_t - (state * k_t.unsqueeze(-1)).sum(-2)) * beta[:, :, i, None]
            state = state + k_t.unsqueeze(-1) * delta.unsqueeze(-2)
            out[:, :, i] = (state * q_t.unsqueeze(-1)).sum(-2)
        return out.transpose(1, 2).contiguous().to(dtype), state

    q.Qwen3_5MoeRMSNorm.forward = rms_norm
    q.Qwen3_5MoeRMSNormGated.forward = gated_norm
    q.Qwen3_5MoeTextRotaryEmbedding.forward = rope_forward
    q.apply_rotary_pos_emb = rope
    q.Qwen3_5MoeAttention.forward = attention_forward
    q.Qwen3_5MoeSparseMoeBlock.forward = moe
    q.causal_conv1d_fn = conv_fn
    q.causal_conv1d_update = conv_update
    q.Qwen3_5MoeTopKRouter.forward = router
    q.Qwen3_5MoeMLP.forward = mlp
    q.torch_chunk_gated_delta_rule = recurrent
    q.torch_recurrent_gated_delta_rule = recurrent


# ------------------------------------------------------------------------- checkpoint
class Checkpoint:
    def __init__(self, folder: str) -> None:
        from safetensors import safe_open

        self.folder = folder
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as handle:
            self.config_dict = json.load(handle)
        self.handles = {}
        self.where = {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                handle = safe_open(os.path.join(folder, name), framework="pt")
                for key in handle.keys():
                    self.where[key] = handle

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.where[name].get_tensor(name)

    def __contains__(self, name: str) -> bool:
        return name in self.where

    def names(self, prefix: str = ""):
        return [name for name in self.where if name.startswith(prefix)]


class Backbone:
    PREFIX = "model.language_model."

    def __init__(self, checkpoint: Checkpoint, config, patched: bool = True) -> None:
        import transformers.models.qwen3_5_moe.modeling_qwen3_5_moe as q
        from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import (
            Qwen3_5MoeTextConfig,
        )

        self.patched = patched
        if patched:
            patch_transformers(q)
        text = config.text_config
        fields = (
            "vocab_size hidden_size num_hidden_layers num_attention_heads "
            "num_key_value_heads head_dim hidden_act max_position_embeddings "
            "rms_norm_eps linear_conv_kernel_dim linear_key_head_dim "
            "linear_value_head_dim linear_num_key_heads linear_num_value_heads "
            "moe_intermediate_size shared_expert_intermediate_size "
            "num_experts_per_tok num_experts"
        ).split()
        interval = text.full_attention_interval
        hf_config = Qwen3_5MoeTextConfig(
            **{field: getattr(text, field) for field in fields},
            layer_types=[
                "linear_attention" if (i + 1) % interval else "full_attention"
                for i in range(text.num_hidden_layers)
            ],
            rope_parameters={
                "rope_type": "default",
                "rope_theta": text.rope_theta,
                "partial_rotary_factor": text.partial_rotary_factor,
            },
            tie_word_embeddings=False,
        )
        hf_config._attn_implementation = "eager"
        with torch.device("meta"):
            model = q.Qwen3_5MoeTextModel(hf_config)
        dtype = Numerics.act()
        state = {}
        for name in checkpoint.names(self.PREFIX):
            if ".mlp.experts." in name:
                continue
            tensor = checkpoint[name]
            # A_log, dt_bias and norm gammas keep the checkpoint's type: they are only
            # read through up() / .float(). Everything else computes in the act type.
            keep = name.endswith(("A_log", "dt_bias")) or "norm" in name
            state[name[len(self.PREFIX):]] = tensor if keep else tensor.to(dtype)
        for index, layer in enumerate(model.layers):
            base = f"{self.PREFIX}layers.{index}.mlp.experts."
            gate_up, down = [], []
            for expert in range(text.num_experts):
                name = f"{base}{expert}."
                gate_up.append(
                    BlockWeight(checkpoint, [name + "gate_proj", name + "up_proj"])
                )
                down.append(BlockWeight(checkpoint, [name + "down_proj"]))
            if patched:
                layer.mlp.experts = Fp8Experts(gate_up, down)
            else:
                for name, weights in (("gate_up_proj", gate_up), ("down_proj", down)):
                    state[f"layers.{index}.mlp.experts.{name}"] = torch.stack(
                        [weight.dequantised() for weight in weights]
                    )
        missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
        assert not missing and not unexpected, (missing, unexpected)
        model.rotary_emb = q.Qwen3_5MoeTextRotaryEmbedding(hf_config)
        model.eval()
        self.model, self.hf_config, self.q = model, hf_config, q
        self.lm_head = checkpoint["lm_head.weight"].to(dtype)
        self.embedding = model.embed_tokens.weight
        self.layer_outputs: list[torch.Tensor] = []
        for layer in model.layers:
            layer.register_forward_hook(self._capture)

    def _capture(self, _module, _inputs, output) -> None:
        output = output[0] if isinstance(output, tuple) else output
        self.layer_outputs.append(output[0].detach())

    def new_cache(self):
        from transformers.cache_utils import DynamicCache

        return DynamicCache(config=self.hf_config)

    @torch.no_grad()
    def forward(self, embeddings: torch.Tensor, start: int = 0, cache=None):
        """[rows, hidden] -> (final norm [rows, hidden], every layer's output)."""
        self.layer_outputs = []
        positions = torch.arange(start, start + embeddings.shape[0])[None]
        out = self.model(
            inputs_embeds=embeddings[None],
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return out.last_hidden_state[0], list(self.layer_outputs)

    @torch.no_grad()
    def run_layer(self, index: int, inputs: torch.Tensor, together: int) -> torch.Tensor:
        """Layer index alone, [rows, hidden] -> the same: the first `together` rows of the
        sequence in one pass, the others one at a time with the cached state."""
        cache, outputs = self.new_cache(), []
        full = self.hf_config.layer_types[index] == "full_attention"
        for part in torch.split(inputs, [together] + [1] * (inputs.shape[0] - together)):
            start = sum(len(x) for x in outputs)
            positions = torch.arange(start, start + len(part))[None]
            mask = torch.ones(1, 1, len(part), len(part), dtype=bool).tril()
            out = self.model.layers[index](
                part[None],
                position_embeddings=self.model.rotary_emb(part, positions[None]),
                attention_mask=mask if full and start == 0 else None,
                past_key_values=cache,
            )
            outputs.append((out[0] if isinstance(out, tuple) else out)[0])
        return torch.cat(outputs)


class DenseTowerAttention:
    """The tower's DecoderAttention over one request's contiguous key/value rows."""

    def __init__(self, layers: int, heads: int, kv_heads: int, head_dim: int) -> None:
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.keys: list = [None] * layers
        self.values: list = [None] * layers
        self.positions = torch.zeros(0, dtype=torch.long)

    def __call__(self, layer_index, query, key, value):
        rows = query.shape[0]
        key = key.view(rows, self.kv_heads, self.head_dim)
        value = value.view(rows, self.kv_heads, self.head_dim)
        first = int(self.positions[0])
        for store, new in ((self.keys, key), (self.values, value)):
            old = store[layer_index]
            # A decode at the prompt's last position replaces the prefill's placeholder.
            store[layer_index] = new if old is None else torch.cat([old[:first], new])
        keys = up(self.keys[layer_index]).repeat_interleave(self.heads // self.kv_heads, 1)
        values = up(self.values[layer_index]).repeat_interleave(
            self.heads // self.kv_heads, 1
        )
        scores = torch.einsum(
            "qhd,khd->hqk", up(query.view(rows, self.heads, self.head_dim)), keys
        ) * self.head_dim ** -0.5
        visible = torch.arange(keys.shape[0])[None, :] <= self.positions[:, None]
        scores = scores.masked_fill(~visible[None], float("-inf"))
        out = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), values)
        return out.reshape(rows, -1).to(query.dtype)


class Tower:
    def __init__(self, checkpoint: Checkpoint, config) -> None:
        audio_decoder = drama3("audio_decoder")
        weights = drama3("weights")
        # bf16 sums of code embeddings accumulate in fp32 on the GPU.
        audio_decoder.F = types.SimpleNamespace(
            embedding_bag=lambda rows, table, mode: up(table[rows]).sum(1).to(table.dtype)
        )
        self.config = config
        self.decoder = audio_decoder.AudioDecoder(config)
        self.decoder.to(Numerics.act())
        weights.load_audio_decoder_weights(
            self.decoder,
            (
                (name, checkpoint[name])
                for name in checkpoint.names()
                if weights.checkpoint_part(name) == "audio_decoder"
            ),
        )
        # Module.to() also rounded the rotary table: it stays fp32.
        attention = self.decoder.shared_layers[0].self_attn
        rotary = type(attention.rotary_embedding)(
            config.audio_decoder_config, config.text_config.max_position_embeddings
        )
        for layer in self.layers():
            layer.self_attn.rotary_embedding = rotary
        self.decoder.eval()
        self.layer_outputs: list[torch.Tensor] = []
        for layer in self.layers():
            layer.register_forward_hook(
                lambda _m, _i, output: self.layer_outputs.append(output.detach())
            )

    def layers(self):
        return [*self.decoder.shared_layers, *self.decoder.residual_layers]

    def new_attention(self) -> DenseTowerAttention:
        decoder = self.config.audio_decoder_config
        return DenseTowerAttention(
            len(self.layers()), decoder.n_head, decoder.n_local_heads, decoder.head_dim
        )

    @torch.no_grad()
    def prefill(self, hidden, input_frames, next_frames, attention, start=0):
        self.layer_outputs = []
        positions = torch.arange(start, start + hidden.shape[0])
        attention.positions = positions
        self.decoder.prefill(hidden, positions, input_frames, next_frames, attention)
        return list(self.layer_outputs)

    @torch.no_grad()
    def run_layer(self, index: int, inputs, input_frames, label_frames, together: int):
        """Tower layer index alone; together as for the backbone."""
        decoder, attention = self.decoder, self.new_attention()
        code = label_frames[:, 1 + max(index - len(decoder.shared_layers), 0)]
        semantic = decoder.is_semantic(label_frames[:, 0])
        extra = decoder.shared_input(input_frames)
        outputs = []
        for rows in torch.split(
            torch.arange(len(inputs)), [together] + [1] * (len(inputs) - together)
        ):
            attention.positions = rows
            outputs.append(self.layers()[index](
                inputs[rows], code[rows], semantic[rows],
                extra[rows] if index == 0 else None, rows, attention, index,
            ))
        return torch.cat(outputs)

    @torch.no_grad()
    def forced_step(self, hidden, input_frames, label_frames, attention, start):
        """decode_step with the labels given: (layer outputs, code logits of heads 1..)."""
        decoder = self.decoder
        self.layer_outputs = []
        positions = torch.arange(start, start + hidden.shape[0])
        attention.positions = positions
        label_is_semantic = decoder.is_semantic(label_frames[:, 0])
        x = decoder.run_shared_layers(
            hidden, label_frames[:, 1], label_is_semantic,
            decoder.shared_input(input_frames), positions, attention, True,
        )
        logits = []
        for index, (layer, head) in enumerate(
            zip(decoder.residual_layers, decoder.codebook_heads)
        ):
            x = decoder.run_layer(
                layer, len(decoder.shared_layers) + index, x, label_frames[:, 1 + index],
                label_is_semantic, None, positions, attention, True,
            )
            logits.append(head(x))
        return list(self.layer_outputs), torch.stack(logits, 1)


def patch_linear() -> None:
    """nn.Linear accumulates in fp32 (fp64 mode: fp64) and rounds once."""
    nn.Linear.forward = lambda self, x: linear(x, self.weight, self.bias)


class Model:
    def __init__(self, folder: str, sglang_omni_dir: str, mode: str, act_quant=True,
                 sums="fp32"):
        self.mode, self.act_quant, self.sums = mode, act_quant, sums
        self.activate()
        install_stubs(sglang_omni_dir)
        patch_linear()
        self.checkpoint = Checkpoint(folder)
        fields = {
            key: value
            for key, value in self.checkpoint.config_dict.items()
            if key not in ("model_type", "quantization_config")
        }
        self.config = drama3("hf_config").FishOmniConfig(**fields)
        self.backbone = Backbone(self.checkpoint, self.config)
        self.tower = Tower(self.checkpoint, self.config)
        self.candidates = self.tower.decoder.main_token_candidate_ids

    def activate(self) -> None:
        """Numerics of the next call; needed where several models are alive."""
        Numerics.mode, Numerics.act_quant = self.mode, self.act_quant
        Numerics.sums = self.sums

    def embed(self, frames: torch.Tensor) -> torch.Tensor:
        return self.tower.decoder.embed_backbone(
            frames, self.backbone.embedding[frames[:, 0]]
        )

    def candidate_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self.backbone.lm_head[self.candidates])


def load_tokenizer(folder: str):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))


def prompt_rows(folder: str, sglang_omni_dir: str, text: str, references) -> torch.Tensor:
    """references: [(transcript, int64 codes [codebooks, frames])]"""
    install_stubs(sglang_omni_dir)
    prompt = drama3("prompt")
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as handle:
        decoder = json.load(handle)["audio_decoder_config"]
    return prompt.build_prompt_rows(
        text,
        [
            prompt.ReferencePart(transcript=transcript, audio_codes=codes)
            for transcript, codes in references
        ],
        load_tokenizer(folder),
        num_codebooks=decoder["num_codebooks"],
        codebook_size=decoder["vocab_size"],
    )


# -------------------------------------------------------------------------------- codec
REAL_CODEC = dict(
    encoder_dim=64, decoder_dim=1536, input_dim=1024, n_codebooks=9,
    codebook_size=1024, semantic_codebook_size=4096, codebook_dim=8,
    encoder_layers=4, quantizer_layers=8, intermediate_size=3072, window_size=128,
)


def build_codec(sglang_omni_dir: str, sizes: dict):
    """modded_dac_vq.yaml with other widths (hydra-free)."""
    install_stubs(sglang_omni_dir)
    root = os.path.join(
        sglang_omni_dir, "sglang_omni/models/fishaudio_s2_pro/fish_speech/models/dac"
    )
    loaded = {}
    for name in ("modded_dac", "rvq"):
        spec = importlib.util.spec_from_file_location(
            f"fish_{name}", os.path.join(root, f"{name}.py")
        )
        loaded[name] = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded[name]
        spec.loader.exec_module(loaded[name])
    dac, rvq = loaded["modded_dac"], loaded["rvq"]
    dim = sizes["input_dim"]

    def general(**kwargs):
        return dac.ModelArgs(
            block_size=8192, n_local_heads=-1, head_dim=64, rope_base=10000,
            norm_eps=1e-5, dropout_rate=0.1, attn_dropout_rate=0.1, channels_first=True,
            **kwargs,
        )

    def transformer():
        return dac.WindowLimitedTransformer(
            causal=True, window_size=sizes["window_size"], input_dim=dim,
            config=dac.ModelArgs(
                block_size=2048, n_layer=sizes["quantizer_layers"], n_head=dim // 64,
                dim=dim, intermediate_size=sizes["intermediate_size"],
                n_local_heads=-1, head_dim=64, rope_base=10000, norm_eps=1e-5,
                dropout_rate=0.1, attn_dropout_rate=0.1, channels_first=True,
            ),
        )

    quantizer = rvq.DownsampleResidualVectorQuantize(
        input_dim=dim, n_codebooks=sizes["n_codebooks"],
        codebook_size=sizes["codebook_size"], codebook_dim=sizes["codebook_dim"],
        quantizer_dropout=0.5, downsample_factor=[2, 2],
        pre_module=transformer(), post_module=transformer(),
        semantic_codebook_size=sizes["semantic_codebook_size"],
    )
    return dac.DAC(
        sample_rate=44100, encoder_dim=sizes["encoder_dim"], encoder_rates=[2, 4, 8, 8],
        decoder_dim=sizes["decoder_dim"], decoder_rates=[8, 8, 4, 2],
        encoder_transformer_layers=[0, 0, 0, sizes["encoder_layers"]],
        # [4, 0, 0, 0] in the yaml, but DecoderBlock never registers that transformer.
        decoder_transformer_layers=[0, 0, 0, 0],
        transformer_general_config=general, quantizer=quantizer,
    )


def load_codec(folder: str, sglang_omni_dir: str):
    path = os.path.join(folder, "codec_sizes.json")
    sizes = REAL_CODEC
    if os.path.exists(path):
        with open(path, encoding="utf-8") as handle:
            sizes = json.load(handle)
    codec = build_codec(sglang_omni_dir, sizes)
    state = torch.load(
        os.path.join(folder, "codec.pth"), map_location="cpu", mmap=True, weights_only=True
    )
    missing, _ = codec.load_state_dict(state, strict=False, assign=True)
    assert not missing, missing
    return codec.eval()


# ------------------------------------------------------------------------------ sampler
def philox(seed: int, c0, c1: int, c2: int, c3: int) -> np.ndarray:
    """First word of triton's tl.philox (Philox4x32-10) for a vector of c0."""
    mask = np.uint64(0xFFFFFFFF)
    c0 = np.asarray(c0, np.uint64) & mask
    c1, c2, c3 = (np.full_like(c0, np.uint64(c & 0xFFFFFFFF)) for c in (c1, c2, c3))
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    a, b, shift = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57), np.uint64(32)
    for _ in range(10):
        high_b, low_b = (b * c2) >> shift, (b * c2) & mask
        high_a, low_a = (a * c0) >> shift, (a * c0) & mask
        c0, c1, c2, c3 = (
            high_b ^ c1 ^ np.uint64(k0), low_b, high_a ^ c3 ^ np.uint64(k1), low_a,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0.astype(np.uint32)


def exponential_noise(seed, step, row, stream, indices) -> np.ndarray:
    bits = philox(seed ^ ((step >> 32) << 32), indices, row, stream, step & 0xFFFFFFFF)
    uniform = ((bits >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(
        2.0 ** -23
    )
    return -np.log(uniform)


class Draw:
    """One draw of sampling_kernels / sampling_selection, with its margin."""

    SELECTED = 32

    def __init__(self, logits, temperature, top_k, top_p, seed, step, stream,
                 keep_crossing, row=0):
        logits = np.asarray(logits, np.float32)
        count = logits.shape[0]
        index_bits = (count - 1).bit_length()
        temperature = np.maximum(np.float32(temperature), np.float32(1e-5))
        top_p = np.float32(top_p)
        scores = (logits / temperature).astype(np.float32)
        maximum = scores.max()
        weights = np.exp(scores - maximum, dtype=np.float32)
        weight_sum = np.float32(weights.sum(dtype=np.float64))
        bits = np.where(scores == 0, np.float32(0), scores).view(np.uint32)
        ordered = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.int64)
        indices = np.arange(count, dtype=np.int64)
        keys = (ordered << index_bits) | ((1 << index_bits) - 1 - indices)
        top = np.argsort(-keys, kind="stable")[: self.SELECTED]
        probabilities = (weights[top] / weight_sum).astype(np.float32)
        cumulative = np.cumsum(probabilities, dtype=np.float32)
        ranks = np.arange(len(top))
        cut = cumulative[np.maximum(ranks - 1, 0)] if keep_crossing else cumulative
        if top_k <= self.SELECTED or cumulative[-1] > top_p:
            kept = top[(ranks == 0) | ((ranks < top_k) & (cut <= top_p))]
            self.path = "top32"
        else:
            probabilities = (weights / weight_sum).astype(np.float32)
            lower, upper = 0, 1 << (32 + index_bits)
            for _ in range(32 + index_bits):
                middle = (lower + upper) >> 1
                above = keys > middle if keep_crossing else keys >= middle
                fits = (keys >= middle).sum() <= top_k and np.float32(
                    probabilities[above].sum(dtype=np.float64)
                ) <= top_p
                lower, upper = (lower, middle) if fits else (middle + 1, upper)
            kept = indices[(keys >= upper) | (keys == keys.max())]
            self.path = "search"
        race = (weights[kept] / exponential_noise(seed, step, row, stream, kept)).astype(
            np.float32
        )
        best = race.max()
        # Ties go to the better-ranked candidate in both kernels.
        winners = kept[race == best]
        self.index = int(winners[np.argmax(keys[winners])])
        self.kept = len(kept)
        rest = race[kept != self.index]
        self.margin = float(best / rest.max()) if rest.size else math.inf
