"""Encode the corpus and the held-out sentences with a trained codec.

    python encode.py --flite DIR --text DIR --codec codec.pth --out OUT [--shards DIR]

Writes codes.npz (training) and heldout.npz (60 sentences in 4 voices, ids from 1,000,000 + 1,000 * voice) in full float32.
Speech that train_codec.py left in --shards is used; what is missing is synthesised.
"""
import argparse, math, os, time
import numpy as np
import torch
import torch.nn.functional as F
import torchaudio
import codec as C
import corpus
import synth as S

T0 = time.time()


def log(*x):
    print(f"[{time.time() - T0:6.1f}]", *x, flush=True)


@torch.no_grad()
def encode(model, rows, get, dev, samples):
    """rows: (id, voice, start, samples); get(i) -> int16 samples on the device. Batches of about `samples` samples."""
    order = sorted(range(len(rows)), key=lambda i: rows[i][3])
    out, k = [None] * len(rows), 0
    while k < len(order):
        n = max(1, samples // rows[order[min(k + 63, len(order) - 1)]][3])
        part = order[k:k + n]
        k += n
        longest = max(rows[i][3] for i in part)
        x = torch.zeros(len(part), longest, device=dev)
        for j, i in enumerate(part):
            x[j, : rows[i][3]] = get(i).float() / 32768
        y = torchaudio.functional.resample(x, 16000, 44100)
        frames = [math.ceil(math.ceil(rows[i][3] * 441 / 160) / 2048) for i in part]
        # one spare frame, so that the causal pass never sees a short tail
        y = F.pad(y, (0, (max(frames) + 1) * 2048 - y.shape[1]))
        c = model.encode(y[:, None]).cpu().numpy().astype(np.uint16)
        for j, i in enumerate(part):
            out[i] = c[j, :, : frames[j]]
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for n in ("flite", "text", "codec", "out"):
        p.add_argument("--" + n, required=True)
    p.add_argument("--shards", default="/dev/shm/shards")
    p.add_argument("--hours", type=float, default=110, help="room for the speech on the device")
    p.add_argument("--limit", type=int, default=10**9, help="training lines to take")
    p.add_argument("--held", type=int, default=60, help="held-out sentences to take")
    p.add_argument("--samples", type=int, default=8000000, help="16 kHz samples a batch")
    p.add_argument("--workers", type=int, default=16); p.add_argument("--device", default="cuda")
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True)
    dev = torch.device(a.device)
    train, held = S.load_text(a.text)
    pool, pending = S.start(a.flite, train[: a.limit], held[: a.held], a.shards, a.workers)
    model = C.Codec(dict(C.SIZES)).to(dev)
    model.load_state_dict(torch.load(a.codec, map_location=dev))
    model.eval()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    store = corpus.Store(dev, a.hours * 3600)
    while pending:
        store.gather(pending)
        time.sleep(0.1)
    pool.terminate()
    log(len(store.items), "utterances,", round(store.n / 57.6e6, 2), "hours")
    wavs = [torch.from_numpy(w.copy()).to(dev) for _, w in store.held]
    held_rows = [r for r, _ in store.held]
    corpus.pack(held_rows, encode(model, held_rows, lambda i: wavs[i], dev, a.samples), a.out + "/heldout.npz")
    rows = store.items
    codes = encode(model, rows, lambda i: store.wav[rows[i][2]: rows[i][2] + rows[i][3]], dev, a.samples)
    log("encoded")
    corpus.pack(rows, codes, a.out + "/codes.npz")
    flat = np.concatenate(codes, 1)
    for i in range(flat.shape[0]):
        h = np.bincount(flat[i], minlength=512) / flat.shape[1]
        log("book", i, "perplexity", round(float(np.exp(-(h[h > 0] * np.log(h[h > 0])).sum())), 1), "used", int((h > 0).sum()))


if __name__ == "__main__":
    main()
