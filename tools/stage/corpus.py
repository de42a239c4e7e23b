"""Speech and phone labels on the device, filled as shards arrive; encoded speech on disk (.npz: ids, voice, frames, codes)."""
import numpy as np
import torch
import synth


class Store:
    def __init__(self, dev, seconds):
        self.wav = torch.zeros(int(seconds * 16000) // 80 * 80, dtype=torch.int16, device=dev)  # [samples], 16 kHz
        self.lab = torch.zeros(self.wav.numel() // 80, dtype=torch.uint8, device=dev)  # [samples / 80]
        self.n, self.items, self.held = 0, [], []  # samples in use; (id, voice, start, samples); held-out items with their samples

    def add(self, path):
        z = np.load(path)
        wav, lab = z["wav"], z["lab"]
        synth.check_labels(lab, path)  # shards may be older than the check in synth.py
        rows = [(int(i), int(z["voice"]), int(s), int(l)) for i, s, l in zip(z["ids"], z["starts"], z["lengths"])]
        if rows[0][0] >= 1000000:  # held out: never among the crops
            self.held += [(r, wav[r[2]: r[2] + r[3]]) for r in rows]
            return
        if self.n + len(wav) > self.wav.numel():
            return
        self.wav[self.n:self.n + len(wav)] = torch.from_numpy(wav).to(self.wav.device)
        self.lab[self.n // 80:(self.n + len(wav)) // 80] = torch.from_numpy(lab).to(self.wav.device)
        self.items += [(i, v, self.n + s, l) for i, v, s, l in rows]
        self.n += len(wav)

    def gather(self, pending, most=10**9):
        """Take in what the workers have finished; at most `most` shards, so that a training step is not kept waiting."""
        for r in [r for r in pending if r.ready()][:most]:
            self.add(r.get())
            pending.remove(r)


def pack(rows, codes, path):
    keep = [i for i in range(len(rows)) if codes[i] is not None]
    np.savez_compressed(path, ids=np.array([rows[i][0] for i in keep]), voice=np.array([rows[i][1] for i in keep], np.uint8),
                        frames=np.array([codes[i].shape[1] for i in keep], np.int16), codes=np.concatenate([codes[i] for i in keep], 1))


def unpack(files):
    """-> {id: (voice, codes [books, frames])}"""
    out = {}
    for f in files:
        z = np.load(f)
        at, codes = 0, z["codes"]
        for i, v, n in zip(z["ids"], z["voice"], z["frames"]):
            out[int(i)] = (int(v), codes[:, at:at + int(n)])
            at += int(n)
    return out
