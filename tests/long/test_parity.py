"""The engine against the oracle, live: third-party code on the same generated checkpoints.

Limits are tools/oracle/acceptance.py's; its README says where they come from.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib

import numpy as np
import pytest

CLEAR_RACE = 1.001  # below this, last-bit differences of logits may turn a draw
DECODE_SNR = 100  # dB
FORCED_FRAMES = 24

# (preset, checkpoint seed, request, label seed): every shape, several requests and seeds.
RUNS = [
    ("tiny", 1, "plain", 11), ("tiny", 2, "clone", 12), ("tiny", 3, "long", 13),
    ("small", 1, "clone", 11),
    ("wide-heads", 1, "plain", 11), ("wide-heads", 2, "long", 12),
    ("odd", 1, "clone", 11), ("odd", 2, "long", 12),
    ("edges", 1, "plain", 11), ("edges", 2, "clone", 12),
    ("real-heads", 1, "clone", 11),
]
NAMES = ["-".join(map(str, run)) for run in RUNS]


@dataclasses.dataclass
class Case:
    reference: object  # cases.Reference
    checkpoint: str
    request_path: str
    request: dict
    rows: object
    labels: object
    labels_path: str
    folder: pathlib.Path

    def out(self, name: str) -> pathlib.Path:
        return self.folder / name


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Checkpoints made so far; the loaded models of one only, they are large."""
    return {"folder": tmp_path_factory.mktemp("parity"), "key": None, "reference": None}


@pytest.fixture(params=RUNS, ids=NAMES, scope="module")
def case(request, shared, sglang_omni, make_checkpoint) -> Case:
    import cases

    preset, seed, name, label_seed = request.param
    checkpoint = str(shared["folder"] / f"{preset}-{seed}")
    cases.make_checkpoint(make_checkpoint, preset, seed, checkpoint)
    if shared["key"] != checkpoint:
        shared |= {"key": checkpoint, "reference": cases.Reference(checkpoint, sglang_omni)}
    reference = shared["reference"]
    folder = shared["folder"] / "-".join(map(str, request.param))
    path = cases.write_request(name, reference.config, str(folder), 40)
    body, rows = reference.rows(path)
    labels = cases.labels_of(reference.model("fp32", False), FORCED_FRAMES, label_seed)
    np.save(folder / "labels.npy", labels.numpy().astype("<i8"))
    return Case(reference, checkpoint, path, body, rows, labels, str(folder / "labels.npy"), folder)


def arrays(folder) -> dict:
    import torch

    return {path.stem: torch.from_numpy(np.load(path)) for path in pathlib.Path(folder).glob("*.npy")}


def write(folder: pathlib.Path, result: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in result.items():
        value = value.float() if value.is_floating_point() and value.element_size() < 4 else value
        np.save(folder / f"{name}.npy", value.numpy())


def test_prompt_rows_are_equal(case, thespis):
    out = case.out("rows")
    thespis("check", case.checkpoint, case.request_path, "--out", out)
    assert np.array_equal(np.load(out / "rows.npy"), case.rows.numpy())


def test_exact(case, thespis):
    """fp32 without activation quantisation, prompt then a row a step, against fp64."""
    import acceptance
    import oracle

    out = case.out("exact")
    thespis("check", case.checkpoint, case.request_path, "--precision", "f32", "--no-act-quant",
            "--frames", case.labels_path, "--out", out)
    want = oracle.run_forced(case.reference.model("fp64", False), case.rows, case.labels)
    result = acceptance.exact(want, arrays(out))
    print(result)
    assert result["pass"], result


def test_expert_inputs_are_quantised_alike(case, thespis):
    """The e4m3 codes and scales that come from the oracle's own expert inputs."""
    import acceptance
    import oracle

    given, out = case.out("local-fp32"), case.out("codes")
    want = oracle.run_layer_local(
        case.reference.model("fp32", True), case.rows, case.labels, 1 << 30)
    write(given, want)
    thespis("check", case.checkpoint, case.request_path, "--precision", "f32", "--frames",
            case.labels_path, "--layer-local", given, "--out", out)
    got = arrays(out)
    result = acceptance.codes(want, got)
    print(result)
    assert result["pass"], result
    # Layer by layer from equal inputs, quantised as the reference does: only sums differ.
    for name in ("backbone_layers", "tower_layers"):
        error = acceptance.row_error(got[name], want[name])
        print(name, "median row error", float(error.median()), "worst", float(error.max()))
        assert float(error.median()) < 1e-5, name


def test_bf16_layers_and_picks(case, thespis):
    import acceptance
    import oracle

    given, out = case.out("local-bf16"), case.out("bf16")
    probe = thespis.run("check", case.checkpoint, case.request_path, "--precision", "bf16",
                        "--out", out)
    if probe.returncode != 0 and "bf16" in probe.stderr:
        pytest.skip("this build has no bf16 precision: " + probe.stderr.strip())
    want = oracle.run_layer_local(
        case.reference.model("bf16", True), case.rows, case.labels, 1 << 30)
    write(given, want)
    thespis("check", case.checkpoint, case.request_path, "--precision", "bf16", "--frames",
            case.labels_path, "--layer-local", given, "--out", out)
    got = arrays(out)
    result = acceptance.local(want, got, got.get("moe_experts"))["summary"]
    print(result)
    assert result["pass"], result
    thespis("check", case.checkpoint, case.request_path, "--precision", "bf16", "--frames",
            case.labels_path, "--out", case.out("picks"))
    result = acceptance.picks(want, arrays(case.out("picks")))
    print(result)
    assert result["pass"], result


@pytest.mark.parametrize("greedy", [False, True], ids=["drawn", "greedy"])
def test_free_running_frames(case, thespis, greedy):
    import cases

    out = case.out("greedy" if greedy else "free")
    limit = 8 if greedy else 40
    model = case.reference.model("fp32", False)
    if greedy:
        want = greedy_frames(model, case.rows, limit)
        margins = np.full(len(want), np.inf)
    else:
        frames, margins = cases.generate(model, case.rows, case.request, limit)
        want = frames.numpy()
    thespis("check", case.checkpoint, case.request_path, "--precision", "f32", "--no-act-quant",
            "--generate", "--max-frames", limit, "--out", out, *(["--greedy"] if greedy else []))
    got = np.load(out / "frames.npy")
    first_close = next((i for i, margin in enumerate(margins) if margin < CLEAR_RACE), len(want))
    print(f"{len(want)} frames, the first {first_close} by clear races")
    same = min(first_close, len(want), len(got))
    assert same == first_close, f"{len(got)} frames instead of {len(want)}"
    # The reference draws codes for the end-of-speech row too; nothing ever reads them.
    want[want[:, 0] == case.reference.config["eos_token_id"], 1:] = 0
    assert np.array_equal(got[:same], want[:same])
    if first_close == len(want):
        assert len(got) == len(want)


def greedy_frames(model, rows, limit: int) -> np.ndarray:
    """Plain greedy, as the switch has it: lowest index of the largest logit, nothing drawn again."""
    import oracle

    real = oracle.NumpySampler.semantic

    def semantic(self, logits, candidates, previous, *rest):
        return real(self, logits, candidates, previous.new_full(previous.shape, -1), *rest)

    oracle.NumpySampler.semantic = semantic
    try:
        frames, _ = oracle.run_generate(model, rows, seed=1, temperature=1.0, top_p=0.9, top_k=None,
                                        max_frames=limit, greedy=True)
    finally:
        oracle.NumpySampler.semantic = real
    return frames.numpy()


# ------------------------------------------------------------------------------------- codec
def snr(got: np.ndarray, want: np.ndarray) -> float:
    error = np.square(got.astype(np.float64) - want).sum()
    return 10 * np.log10(np.square(want.astype(np.float64)).sum() / max(error, 1e-300))


def speechlike(samples: int, seed: int) -> np.ndarray:
    """A gliding, breathing tone with noise: exercises the encoder more evenly than noise alone."""
    rng = np.random.default_rng(seed)
    time = np.arange(samples) / 44100
    phase = 2 * np.pi * np.cumsum(120 + 60 * np.sin(2 * np.pi * 1.3 * time)) / 44100
    tone = sum(np.sin(k * phase) / k for k in range(1, 12)) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time))
    return (0.2 * tone + 0.01 * rng.standard_normal(samples)).astype(np.float32)


@pytest.fixture(params=["tiny", "small", "wide-heads", "odd"], scope="module")
def codec_case(request, shared, sglang_omni, make_checkpoint):
    import cases

    checkpoint = str(shared["folder"] / f"{request.param}-1")
    cases.make_checkpoint(make_checkpoint, request.param, 1, checkpoint)
    folder = shared["folder"] / f"{request.param}-codec"
    folder.mkdir(exist_ok=True)
    return cases.Codec(checkpoint, sglang_omni), checkpoint, folder


@pytest.mark.parametrize("frames", [1, 5, 140])
def test_decode(codec_case, thespis, frames):
    codec, checkpoint, folder = codec_case
    codes = codec.random_codes(frames, 5 + frames)
    np.save(folder / "in.npy", codes.astype("<i8"))
    thespis("check", checkpoint, "--codec", folder / "in.npy", "--out", folder / "decoded")
    got, want = np.load(folder / "decoded/waveform.npy"), codec.decode(codes)
    assert got.shape == want.shape
    print(f"{frames} frames: {snr(got, want):.1f} dB")
    assert snr(got, want) >= DECODE_SNR


@pytest.mark.parametrize("samples", [1, 2047, 2048, 2049, 100_000])
def test_encode(codec_case, thespis, samples):
    from scipy.io import wavfile

    codec, checkpoint, folder = codec_case
    wave = speechlike(samples, samples)
    wavfile.write(folder / "in.wav", 44100, wave)
    thespis("check", checkpoint, "--codec", folder / "in.wav", "--out", folder / "encoded")
    got, want = np.load(folder / "encoded/codes.npy"), codec.encode(wave)
    assert got.shape == want.shape == (want.shape[0], -(-samples // 2048))
    equal = float((got == want).mean())
    print(f"{samples} samples: {equal:.4f} of codes equal")
    assert np.array_equal(got[0], want[0])
    assert equal >= 0.995


def test_decode_and_encode_commands(codec_case, thespis):
    """The commands write what check computes: PCM within a step, the same codes."""
    from scipy.io import wavfile

    codec, checkpoint, folder = codec_case
    codes = codec.random_codes(9, 3)
    np.save(folder / "nine.npy", codes.astype("<i8"))
    pth = os.path.join(checkpoint, "codec.pth")
    thespis("decode", folder / "nine.npy", "--codec", pth, "--out", folder / "nine.wav")
    rate, pcm = wavfile.read(folder / "nine.wav")
    assert rate == 44100 and pcm.dtype == np.int16
    assert np.abs(pcm - np.clip(codec.decode(codes), -1, 1) * 32767).max() <= 1
    wavfile.write(folder / "tone.wav", 44100, speechlike(30_000, 1))
    thespis("encode", folder / "tone.wav", "--codec", pth, "--out", folder / "tone.npy")
    got = np.load(folder / "tone.npy")
    assert got.dtype == np.dtype("<i8") and not np.isfortran(got)
    want = codec.encode(speechlike(30_000, 1))
    assert np.array_equal(got[0], want[0]) and (got == want).mean() >= 0.995
