"""Speak the held-out sentences with the program itself, from a checkpoint folder; the judges (judge.py) take it from there.

    python evaluate.py --program build/thespis --checkpoint DIR --text DIR --source source.npz --out OUT
        [--sets rt t08 t10 clone long] [--sentences 20] [--seed 1]

Sets: rt = `encode` then `decode` of the source voices' own audio; t08, t10 = spoken by tag at temperature 0.8, 1.0; clone =
cloned from another held-out sentence of the voice (temperature 0.8); long = heldout-long.txt by tag (1.0). Writes SET.npz
(16 kHz int16, ids 1,000,000 + 1,000 * voice + sentence) and prints frames, takes that ran into the frame limit, and speed.
"""
import argparse, os, re, subprocess, tempfile
import numpy as np
from scipy.io import wavfile
from scipy.signal import resample_poly
import judge

LIMIT = 330


def run(*cmd):
    r = subprocess.run(cmd, capture_output=True, text=True)
    if r.returncode:
        raise SystemExit(" ".join(cmd) + "\n" + r.stderr)
    return r.stderr + r.stdout


def heard(path):
    _, w = wavfile.read(path)
    return np.clip(resample_poly(w.astype(np.float64), 160, 441), -32768, 32767).astype(np.int16)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for n in ("program", "checkpoint", "text", "source", "out"):
        p.add_argument("--" + n, required=True)
    p.add_argument("--sets", nargs="+", default=["rt", "t08", "t10", "clone", "long"])
    p.add_argument("--sentences", type=int, default=20); p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    held = [l.strip() for l in open(a.text + "/heldout.txt")]
    long = [l.strip() for l in open(a.text + "/heldout-long.txt")]
    source = judge.load(a.source)
    tmp = tempfile.mkdtemp()
    wav, npy = tmp + "/a.wav", tmp + "/a.npy"
    ck = ["--checkpoint", a.checkpoint]
    for name in a.sets:
        ids, wavs, frames, full, speed = [], [], [], 0, []
        texts = long if name == "long" else held
        for k in range(min(a.sentences, len(texts))):
            for v in range(4):
                i = 1000000 + 1000 * v + k
                if name == "rt":
                    wavfile.write(wav, 16000, source[i])
                    run(a.program, "encode", *ck, "--out", npy, wav)
                    run(a.program, "decode", *ck, "--out", wav, npy)
                else:
                    extra, tag = [], f"<|speaker:{v}|> "
                    if name == "clone":
                        other = (k + 17) % len(held)
                        wavfile.write(tmp + "/r.wav", 16000, source[1000000 + 1000 * v + other])
                        extra, tag = ["--ref", tmp + "/r.wav", "--ref-text", held[other]], ""
                    said = run(a.program, "speak", *ck, "--seed", str(a.seed), "--temperature", "1.0" if name in ("t10", "long") else "0.8",
                               "--max-frames", str(LIMIT), *extra, "--out", wav, tag + texts[k])
                    m = re.search(r"(\d+) frames.*?([\d.]+)x real time", said)
                    frames.append(int(m[1])); speed.append(float(m[2])); full += int(m[1]) >= LIMIT
                ids.append(i); wavs.append(heard(wav))
        np.savez_compressed(f"{a.out}/{name}.npz", ids=np.array(ids), wav=np.concatenate(wavs), lengths=np.array([len(w) for w in wavs]))
        print(name, len(ids), "takes;", f"frames {np.mean(frames):.1f}, at the limit {full}, {np.median(speed):.2f}x real time" if frames else "", flush=True)


if __name__ == "__main__":
    main()
