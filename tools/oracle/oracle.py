"""Drama 3 oracle: run the reference on a checkpoint and dump arrays.

    python oracle.py --sglang-omni DIR --checkpoint CKPT --out DIR COMMAND ...

Commands: prompt, forced, generate, decode, encode, selftest. Arrays go to OUT/*.npy, their
shapes and settings to OUT/manifest.json. A request is a JSON file:

    {"text": "...", "references": [{"transcript": "...", "codes": "random:12:7"}],
     "seed": 1, "temperature": 1.0, "top_p": 0.9, "top_k": null, "max_frames": 24}

codes is a .npy file [codebooks, frames] (relative to the request) or random:FRAMES:SEED.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings

import numpy as np

warnings.filterwarnings("ignore")

import torch  # noqa: E402

import drama3_ref as ref  # noqa: E402

MAXIMUM_TOP_K = 2**31 - 1


class Output:
    def __init__(self, folder: str, command: str, args) -> None:
        os.makedirs(folder, exist_ok=True)
        self.folder = folder
        self.manifest = {
            "command": command, "arrays": {},
            "settings": {
                k: v for k, v in vars(args).items()
                if k not in ("func", "out", "checkpoint", "sglang_omni")
            },
        }
        self.started = time.time()

    def array(self, name: str, value) -> None:
        if isinstance(value, torch.Tensor):
            value = value.double() if value.dtype == torch.float64 else (
                value.float() if value.is_floating_point() else value
            )
            value = value.detach().cpu().numpy()
        np.save(os.path.join(self.folder, name + ".npy"), value)
        self.manifest["arrays"][name] = {
            "shape": list(value.shape), "dtype": str(value.dtype)
        }

    def note(self, **values) -> None:
        self.manifest.update(values)

    def close(self) -> None:
        self.manifest["seconds"] = round(time.time() - self.started, 2)
        with open(os.path.join(self.folder, "manifest.json"), "w") as handle:
            json.dump(self.manifest, handle, indent=1)


# ----------------------------------------------------------------------------- requests
def random_codes(config: dict, frames: int, seed: int) -> np.ndarray:
    """[codebooks, frames]; a plain LCG-free numpy PCG64 stream, codes < the codec's books
    for books 1.. where codec_sizes.json says so."""
    decoder = config["audio_decoder_config"]
    rng = np.random.default_rng(seed)
    return rng.integers(0, decoder["vocab_size"], (decoder["num_codebooks"], frames))


def load_request(path: str, config: dict):
    with open(path, encoding="utf-8") as handle:
        request = json.load(handle)
    references = []
    for reference in request.get("references", []):
        codes = reference["codes"]
        if codes.startswith("random:"):
            _, frames, seed = codes.split(":")
            codes = random_codes(config, int(frames), int(seed))
        else:
            codes = np.load(os.path.join(os.path.dirname(os.path.abspath(path)), codes))
        references.append(
            (reference["transcript"], torch.from_numpy(codes.astype(np.int64)))
        )
    return request, references


def config_of(args) -> dict:
    with open(os.path.join(args.checkpoint, "config.json"), encoding="utf-8") as handle:
        return json.load(handle)


def request_rows(args, out: Output):
    config = config_of(args)
    request, references = load_request(args.request, config)
    rows = ref.prompt_rows(args.checkpoint, args.sglang_omni, request["text"], references)
    out.note(request=request)
    for index, (_, codes) in enumerate(references):
        out.array(f"reference_{index}", codes)
    out.array("rows", rows)
    return request, rows


# ------------------------------------------------------------------------------ commands
def command_prompt(args, out: Output) -> None:
    request_rows(args, out)


def model_of(args):
    return ref.Model(args.checkpoint, args.sglang_omni, args.mode, not args.no_act_quant,
                     args.sums)


def forced_labels(args, model) -> torch.Tensor:
    """[steps, 1 + codebooks] label frames."""
    if args.frames:
        return torch.from_numpy(np.load(args.frames).astype(np.int64))
    config = model.config
    codes = random_codes(model.checkpoint.config_dict, args.random_frames, args.frames_seed)
    frames = np.concatenate([codes[:1] + config.semantic_start_token_id, codes]).T
    labels = torch.from_numpy(frames.copy())
    if args.eos_label:
        eos = torch.zeros(1, labels.shape[1], dtype=torch.long)
        eos[0, 0] = config.eos_token_id
        labels = torch.cat([labels, eos])
    return labels


def run_forced(model, rows: torch.Tensor, labels: torch.Tensor, stepwise: bool = False):
    """Every activation of prompt + forced frames.

    Whole-sequence form (default): one backbone pass and one tower pass, row p labelled
    with frame p + 1. Stepwise form: prompt prefill (backbone and tower), then one cached
    step per label, as the engine decodes.
    """
    model.activate()
    prompt_count, steps = rows.shape[0], labels.shape[0]
    inputs = torch.cat([rows, labels[:-1]])
    next_frames = torch.cat([rows[1:], labels])
    embeds = model.embed(inputs)
    attention = model.tower.new_attention()
    result = {"inputs": inputs, "labels": labels, "embeds": embeds}
    if not stepwise:
        final, layers = model.backbone.forward(embeds)
        model.tower.prefill(
            final[: prompt_count - 1], inputs[: prompt_count - 1],
            next_frames[: prompt_count - 1], attention,
        )
        first = model.tower.layer_outputs
        tower, code_logits = model.tower.forced_step(
            final[prompt_count - 1:], inputs[prompt_count - 1:], labels, attention,
            prompt_count - 1,
        )
        tower = [torch.cat(pair) for pair in zip(first, tower)]
    else:
        cache = model.backbone.new_cache()
        final, layers = model.backbone.forward(embeds[:prompt_count], 0, cache)
        # As the engine: the last prompt row gets the [eos, 0, ...] placeholder label.
        placeholder = rows.roll(-1, dims=0)
        placeholder[-1] = 0
        placeholder[-1, 0] = model.config.eos_token_id
        tower = model.tower.prefill(final, rows, placeholder, attention)
        tower = [t[:-1] for t in tower]
        finals, code_logits = [final], []
        for step in range(steps):
            position = prompt_count - 1 + step
            if step > 0:
                final, step_layers = model.backbone.forward(
                    embeds[position: position + 1], position, cache
                )
                finals.append(final)
                layers = [torch.cat(pair) for pair in zip(layers, step_layers)]
            outputs, logits = model.tower.forced_step(
                final[-1:], inputs[position: position + 1], labels[step: step + 1],
                attention, position,
            )
            tower = [torch.cat(pair) for pair in zip(tower, outputs)]
            code_logits.append(logits)
        final, code_logits = torch.cat(finals), torch.cat(code_logits)
    result |= {
        "backbone_layers": torch.stack(layers),
        "backbone_final": final,
        "candidate_logits": model.candidate_logits(final[prompt_count - 1:]),
        "tower_layers": torch.stack(tower),
        "code_logits": code_logits,
    }
    return result


def run_layer_local(model, rows: torch.Tensor, labels: torch.Tensor, moe_rows: int):
    """run_forced plus what one layer needs to be run alone: its input over all rows, and
    for the last moe_rows rows what each MoE saw and chose."""
    ref.Numerics.moe_log = []
    result = run_forced(model, rows, labels)
    log, ref.Numerics.moe_log = ref.Numerics.moe_log, None
    result["backbone_layer_inputs"] = torch.cat(
        [result["embeds"][None], result["backbone_layers"][:-1]])
    result["tower_layer_inputs"] = torch.cat(
        [result["backbone_final"][None], result["tower_layers"][:-1]])
    total = rows.shape[0] + labels.shape[0] - 1
    result["moe_rows"] = torch.arange(max(0, total - moe_rows), total)
    for key in log[0]:
        result["moe_" + key] = torch.stack([entry[key][-moe_rows:] for entry in log])
    return result


def command_forced(args, out: Output) -> None:
    _, rows = request_rows(args, out)
    model = model_of(args)
    labels = forced_labels(args, model)
    if args.layer_local:
        assert not args.stepwise, "--layer-local runs whole sequences"
        result = run_layer_local(model, rows, labels, args.moe_rows)
    else:
        result = run_forced(model, rows, labels, args.stepwise)
    for name, value in result.items():
        out.array(name, value)
    out.array("candidate_ids", model.candidates)
    out.note(prompt_rows=rows.shape[0], steps=labels.shape[0])


class NumpySampler:
    """Stands in for sampling.py's two functions inside the unmodified AudioDecoder."""

    def __init__(self, seed: int, greedy: bool) -> None:
        self.seed, self.greedy, self.step = seed % (1 << 63), greedy, 0
        self.log: list[dict] = []

    def draw(self, logits, temperature, top_k, top_p, stream, keep_crossing) -> int:
        logits = logits.float().numpy()
        if self.greedy:
            top_k = 1
        draw = ref.Draw(
            logits, temperature, top_k, top_p, self.seed, self.step, stream, keep_crossing
        )
        order = np.sort(logits)[::-1]
        self.log.append({
            "step": self.step, "stream": stream, "index": draw.index, "kept": draw.kept,
            "path": draw.path, "race_margin": round(min(draw.margin, 1e9), 6),
            "logit": float(logits[draw.index]), "top_gap": float(order[0] - order[1]),
        })
        return draw.index

    def semantic(self, logits, candidates, previous, temperature, top_k, top_p,
                 begin, codebook_size, sampler):
        del sampler
        self.step += 1
        row = logits[0]
        first = int(candidates[self.draw(
            row, temperature[0].item(), int(top_k[0]), top_p[0].item(), 0, True)])
        ras = int(candidates[self.draw(row, 1.0, 30, 0.95, 1, True)])
        repeat = bool((previous[0] == first).any()) and begin <= first < begin + codebook_size
        main = ras if repeat else first
        self.log[-1]["ras_used"] = repeat
        zero = min(max(main - begin, 0), codebook_size - 1)
        return torch.tensor([main]), torch.tensor([zero])

    def code(self, logits, temperature, top_k, top_p, sampler, stream, **_):
        del sampler
        return torch.tensor([self.draw(
            logits[0], temperature[0].item(), int(top_k[0]), top_p[0].item(), stream, False)])


def run_generate(model, rows, *, seed, temperature, top_p, top_k, max_frames, greedy=False):
    """decode_step in a loop; frames include the end-of-speech frame if one was drawn."""
    model.activate()
    audio_decoder, sampling = ref.drama3("audio_decoder"), ref.drama3("sampling")
    sampler = NumpySampler(seed, greedy)
    audio_decoder.sample_semantic_with_ras = sampler.semantic
    audio_decoder.sample_top_k_top_p = sampler.code
    knobs = (
        torch.tensor([temperature], dtype=torch.float32),
        torch.tensor([min(top_k or MAXIMUM_TOP_K, MAXIMUM_TOP_K)]),
        torch.tensor([top_p], dtype=torch.float32),
    )
    cache, attention = model.backbone.new_cache(), model.tower.new_attention()
    final, _ = model.backbone.forward(model.embed(rows), 0, cache)
    placeholder = rows.roll(-1, dims=0)
    placeholder[-1] = 0
    placeholder[-1, 0] = model.config.eos_token_id
    model.tower.prefill(final, rows, placeholder, attention)
    history, frames = rows, []
    while len(frames) < max_frames:
        position = history.shape[0] - 1
        if frames:
            final, _ = model.backbone.forward(model.embed(history[-1:]), position, cache)
        window = history[-sampling.RAS_WINDOW_FRAMES:, 0]
        window = torch.nn.functional.pad(
            window, (sampling.RAS_WINDOW_FRAMES - window.shape[0], 0),
            value=sampling.EMPTY_RAS_SLOT,
        )[None]
        attention.positions = torch.tensor([position])
        with torch.no_grad():
            frame = model.tower.decoder.decode_step(
                model.candidate_logits(final[-1:]), final[-1:], attention.positions,
                history[-1:], window, *knobs, attention,
            )
        frames.append(frame)
        history = torch.cat([history, frame])
        if int(frame[0, 0]) == model.config.eos_token_id:
            break
    return torch.cat(frames), sampler.log


def command_generate(args, out: Output) -> None:
    request, rows = request_rows(args, out)
    model = model_of(args)
    frames, log = run_generate(
        model, rows, seed=request.get("seed", 1),
        temperature=request.get("temperature", 1.0), top_p=request.get("top_p", 0.9),
        top_k=request.get("top_k"), max_frames=args.max_frames or request["max_frames"],
        greedy=args.greedy,
    )
    out.array("frames", frames)
    eos = int(frames[-1, 0]) == model.config.eos_token_id
    out.note(ended=eos, frame_count=len(frames) - eos,
             smallest_race_margin=min(item["race_margin"] for item in log))
    with open(os.path.join(args.out, "draws.json"), "w") as handle:
        json.dump(log, handle)
    if args.wav and len(frames) > eos:
        wave = decode_frames(args, frames[: len(frames) - eos])
        out.array("waveform", wave)


def decode_frames(args, frames: torch.Tensor) -> torch.Tensor:
    codec = ref.load_codec(args.checkpoint, args.sglang_omni)
    codec.fold_weight_norm()
    with torch.no_grad():
        # from_indices clamps in place: residual codes past their book become its last.
        return codec.from_indices(frames[:, 1:].T[None].clone())[0, 0]


def command_decode(args, out: Output) -> None:
    frames = torch.from_numpy(np.load(args.frames).astype(np.int64))
    eos = config_of(args)["eos_token_id"]
    if int(frames[-1, 0]) == eos:
        frames = frames[:-1]
    out.array("frames", frames)
    out.array("waveform", decode_frames(args, frames))


def read_wav(path: str) -> tuple[np.ndarray, int]:
    from scipy.io import wavfile

    rate, data = wavfile.read(path)
    if data.dtype == np.int16:
        data = data.astype(np.float32) / 32768.0
    elif data.dtype == np.int32:
        data = data.astype(np.float32) / 2147483648.0
    elif data.dtype == np.uint8:
        data = (data.astype(np.float32) - 128.0) / 128.0
    data = data.astype(np.float32)
    return (data if data.ndim == 1 else data.mean(1)), rate


def encode_wave(args, wave: np.ndarray):
    codec = ref.load_codec(args.checkpoint, args.sglang_omni)
    audio = torch.from_numpy(wave)[None]
    captured = {}
    codec.encoder.register_forward_hook(lambda _m, _i, o: captured.update(encoder=o[0]))
    codec.quantizer.pre_module.register_forward_hook(
        lambda _m, _i, o: captured.update(latent=o[0])
    )
    with torch.no_grad():
        codes, _ = codec.encode(audio, torch.tensor([audio.shape[1]]))
    return codes[0], captured


def command_encode(args, out: Output) -> None:
    wave, rate = read_wav(args.wav)
    if rate != 44100:
        import torchaudio

        wave = torchaudio.functional.resample(
            torch.from_numpy(wave)[None], rate, 44100
        )[0].numpy()
        out.array("resampled", wave)
    codes, captured = encode_wave(args, wave)
    out.array("codes", codes)
    out.array("encoder", captured["encoder"])
    out.array("latent", captured["latent"])


# ------------------------------------------------------------------------------ selftest
def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a, b = a.double(), b.double()
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1) + 1e-30)


def worst(a, b) -> float:
    return float((a.double() - b.double()).abs().max() / b.double().abs().max())


def forced_report(name: str, a: dict, b: dict) -> dict:
    """a against b: per-layer cosines (mean over rows, worst row), argmax agreement."""
    report = {"name": name}
    for key in ("backbone_layers", "tower_layers"):
        c = cosine(a[key], b[key])
        report[key] = [[round(float(r.mean()), 6), round(float(r.min()), 6)] for r in c]
    for key in ("candidate_logits", "code_logits"):
        same = a[key].argmax(-1) == b[key].argmax(-1)
        report[key] = {
            "cosine_min": round(float(cosine(a[key], b[key]).min()), 6),
            "argmax_equal": f"{int(same.sum())}/{same.numel()}",
            "max_abs": round(float((a[key].double() - b[key].double()).abs().max()), 5),
            "std": round(float(b[key].double().std()), 3),
        }
    return report


def command_selftest(args, out: Output) -> None:
    text = "Hello there, world. <|speaker:2|> [sighs] It's fine!"
    config = config_of(args)
    codes = torch.from_numpy(random_codes(config, 9, 5).astype(np.int64))
    rows = ref.prompt_rows(args.checkpoint, args.sglang_omni, text, [("One, two.", codes)])
    args.frames, args.random_frames, args.frames_seed, args.eos_label = None, 6, 3, True
    results, checks = {}, {}

    # 0. The unpatched transformers modules, fp32, against the patched ones.
    ref.install_stubs(args.sglang_omni)
    ref.Numerics.mode, ref.Numerics.act_quant = "fp32", False
    checkpoint = ref.Checkpoint(args.checkpoint)
    drama_config = ref.drama3("hf_config").FishOmniConfig(**{
        k: v for k, v in checkpoint.config_dict.items()
        if k not in ("model_type", "quantization_config")
    })
    plain = ref.Backbone(checkpoint, drama_config, patched=False)
    plain.model.float()
    frames = torch.randn(70, drama_config.text_config.hidden_size,
                         generator=torch.Generator().manual_seed(0))
    plain_final, plain_layers = plain.forward(frames)
    model = ref.Model(args.checkpoint, args.sglang_omni, "fp32", False)
    patched_final, patched_layers = model.backbone.forward(frames)
    checks["patched_vs_plain_transformers_fp32"] = max(
        [worst(patched_final, plain_final)]
        + [worst(a, b) for a, b in zip(patched_layers, plain_layers)]
    )

    # "plain": without activation quantisation.
    for mode in ("fp64", "fp32", "bf16"):
        model = ref.Model(args.checkpoint, args.sglang_omni, mode)
        labels = forced_labels(args, model)
        results[mode] = run_forced(model, rows, labels)
        stepped = run_forced(model, rows, labels, stepwise=True)
        for key in ("backbone_layers", "backbone_final", "tower_layers",
                    "candidate_logits", "code_logits"):
            checks[f"stepwise_{mode}_{key}"] = worst(stepped[key], results[mode][key])
    for mode in ("fp64", "fp32", "bf16"):
        model = ref.Model(args.checkpoint, args.sglang_omni, mode, False)
        results[mode + " plain"] = run_forced(model, rows, labels)
    reports = [
        forced_report(f"{left} vs {right}", results[left], results[right])
        for left, right in (
            ("fp32 plain", "fp64 plain"), ("fp32", "fp64"), ("bf16", "fp64"),
            ("bf16 plain", "fp64 plain"), ("fp32 plain", "fp64"))
    ]
    stats = {
        key: round(float(results["fp64"][key].std()), 3)
        for key in ("embeds", "backbone_layers", "backbone_final", "tower_layers",
                    "candidate_logits", "code_logits")
    }
    out.note(checks=checks, reports=reports, std=stats, prompt_rows=rows.shape[0])
    print(json.dumps({"checks": checks, "std": stats}, indent=1))
    for report in reports:
        print(json.dumps(report))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sglang-omni", default=ref.sglang_omni_folder(),
                        help="the unpacked wheel")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--out", required=True)
    commands = parser.add_subparsers(dest="command", required=True)

    def model_arguments(command):
        command.add_argument("--mode", choices=("bf16", "fp32", "fp64"), default="fp32")
        command.add_argument("--no-act-quant", action="store_true",
                             help="feed the routed experts unquantised")
        command.add_argument("--sums", choices=("fp32", "fp64", "reversed"), default="fp32",
                             help="how bf16 mode sums between rounding points")

    command = commands.add_parser("prompt")
    command.add_argument("--request", required=True)
    command.set_defaults(func=command_prompt)

    command = commands.add_parser("forced")
    command.add_argument("--request", required=True)
    command.add_argument("--frames", help=".npy [steps, 1 + codebooks]")
    command.add_argument("--random-frames", type=int, default=8)
    command.add_argument("--frames-seed", type=int, default=11)
    command.add_argument("--eos-label", action="store_true")
    command.add_argument("--stepwise", action="store_true")
    command.add_argument("--layer-local", action="store_true")
    command.add_argument("--moe-rows", type=int, default=64)
    model_arguments(command)
    command.set_defaults(func=command_forced)

    command = commands.add_parser("generate")
    command.add_argument("--request", required=True)
    command.add_argument("--max-frames", type=int)
    command.add_argument("--greedy", action="store_true")
    command.add_argument("--wav", action="store_true")
    model_arguments(command)
    command.set_defaults(func=command_generate)

    command = commands.add_parser("decode")
    command.add_argument("--frames", required=True)
    command.set_defaults(func=command_decode)

    command = commands.add_parser("encode")
    command.add_argument("--wav", required=True)
    command.set_defaults(func=command_encode)

    command = commands.add_parser("selftest")
    command.set_defaults(func=command_selftest)

    args = parser.parse_args()
    out = Output(args.out, args.command, args)
    args.func(args, out)
    out.close()


if __name__ == "__main__":
    main()
