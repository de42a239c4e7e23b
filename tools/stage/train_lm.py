"""Train backbone and tower together on the encoded corpus and export the checkpoint.

    python train_lm.py --text DIR --codes FOLDER --tokenizer tokenizer.json --out OUT --seconds 380
    python train_lm.py ... --resume state.pt --save-state state.pt --span FROM TO      # one schedule in several calls
    python train_lm.py ... --device cpu --batch 2 --max-steps 3 --workers 0              # a dry run

FOLDER is encode.py's. Three static shapes, each a CUDA graph of forward, backward and optimiser: one short sentence; a short
sentence with a reference; long material (sentences of 12 to 25 words, several sentences, finished turns, two speakers). The
running mean of the weights with the best held-out loss is exported.
"""
import argparse, json, math, os, time
import numpy as np
import torch
import corpus
import lm as L
import synth as S

T0 = time.time()
p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
for n in ("text", "codes", "tokenizer", "out"):
    p.add_argument("--" + n, required=True)
p.add_argument("--seconds", type=float, default=380, help="wall time at which training stops")
p.add_argument("--span", type=float, nargs=2, default=(0.0, 1.0), help="part of the schedule that this call covers")
p.add_argument("--resume", help="state to go on from, if the file exists"); p.add_argument("--save-state", help="where the state goes at the end")
p.add_argument("--init", help="exported folder to start from")
p.add_argument("--lr", type=float, default=2e-3); p.add_argument("--wd", type=float, default=0.05); p.add_argument("--dropout", type=float, default=0.1)
p.add_argument("--batch", type=int, default=64, help="sequences of 128 rows; those of 256 and 384 rows are fewer")
p.add_argument("--device", default="cuda"); p.add_argument("--workers", type=int, default=13)
p.add_argument("--max-steps", type=int, default=10**9); p.add_argument("--no-graph", action="store_true")
a = p.parse_args()
os.makedirs(a.out, exist_ok=True)
logf = open(a.out + "/log-lm.txt", "a")
BOOKS = L.CFG["books"]
ROWS = [128, 256, 384]
SIZE = [a.batch, max(1, a.batch // 2), max(1, a.batch // 3)]
ORDER = [0, 1, 0, 2, 0, 1, 2]  # shapes in turn
SHORT, LONG = 105, 300  # frames


def log(*x):
    s = f"[{time.time() - T0:6.1f}] " + " ".join(str(v) for v in x)
    print(s, flush=True)
    logf.write(s + "\n"); logf.flush()


class Data(torch.utils.data.IterableDataset):
    def __init__(self, prompts, items):
        """items: [(voice, text, codes [books, F])]"""
        self.pr = prompts
        self.items = [(v, c, t) for v, t, c in items]
        length = [c.shape[1] for _, c, _ in self.items]
        self.short = [i for i, n in enumerate(length) if n <= SHORT]
        self.long = [i for i, n in enumerate(length) if SHORT < n <= LONG] or self.short
        self.by = [[i for i in self.short if self.items[i][0] == v] for v in range(4)]

    def pick(self, r, pool):
        return self.items[pool[r.integers(len(pool))]]

    def tagged(self, tag, text):
        return self.pr.ids(f"<|speaker:{tag}|> {text}")

    def reference(self, k, tag, item):
        return self.pr.ids(f"\n\n[Reference {k}]\nText: <|speaker:{tag}|> {item[2]}\nSpeech: "), item[1]

    def compose(self, r, kind):
        """-> references, turns"""
        if kind < 2:
            it = self.pick(r, self.short)
            if kind == 1 and r.random() < 0.92:
                return [self.reference(1, 0, self.pick(r, self.by[it[0]]))], [(self.tagged(0, it[2]), it[1])]
            return [], [(self.tagged(it[0], it[2]), it[1])]
        what = r.random()
        if what < 0.35:  # a long sentence
            it = self.pick(r, self.long)
            if r.random() < 0.5:
                return [self.reference(1, 0, self.pick(r, self.by[it[0]]))], [(self.tagged(0, it[2]), it[1])]
            return [], [(self.tagged(it[0], it[2]), it[1])]
        if what < 0.75:  # two or three sentences of one voice, in one turn or as a history
            v = int(r.integers(4))
            parts = [self.pick(r, self.by[v]) for _ in range(2 if r.random() < 0.7 else 3)]
            with_ref = r.random() < 0.4
            refs = [self.reference(1, 0, self.pick(r, self.by[v]))] if with_ref else []
            tag = 0 if with_ref else v
            if what < 0.55:
                return refs, [(self.tagged(tag, " ".join(p[2] for p in parts)), np.concatenate([p[1] for p in parts], 1))]
            return refs, [(self.tagged(tag, p[2]), p[1]) for p in parts]
        # two speakers in one text, by tag or by a reference for each
        voices = r.permutation(4)[:2]
        with_ref = r.random() < 0.4
        refs = [self.reference(k + 1, k, self.pick(r, self.by[v])) for k, v in enumerate(voices)] if with_ref else []
        turns = [(k, self.pick(r, self.by[voices[k]])) for k in ([0, 1] if r.random() < 0.6 else [0, 1, 0])]
        text = "\n".join(f"<|speaker:{k if with_ref else voices[k]}|> {it[2]}" for k, it in turns)
        return refs, [(self.pr.ids(text), np.concatenate([it[1] for _, it in turns], 1))]

    def one(self, r, kind):
        T = ROWS[kind]
        while True:
            segments, before = self.pr.prompt(*self.compose(r, kind))
            full_rows, spans = self.pr.rows(segments)
            n = len(full_rows) - len(segments[-1])  # rows up to the last audio row
            if n <= T:
                break
        full = np.zeros((T + 1, 1 + BOOKS), np.int64)
        full[:n] = full_rows[:n]
        main, weight = np.full(T, -100, np.int64), np.zeros(T, np.float32)
        for k, (lo, hi) in enumerate(spans):
            main[lo - 1:hi - 1] = full[lo:hi, 1] + 1
            weight[lo - 1:hi - 1] = 0.5 if k < len(spans) - 1 else 1.0
            if k >= before:
                main[hi - 1] = 0  # a turn ends with end-of-speech; a reference does not
                weight[hi - 1] = 1.0
        nxt = full[1:, 1:].copy()
        lab = (full[1:, 0] >= self.pr.start).astype(np.float32)
        rows = full[:T].copy()
        if r.random() < 0.6:  # noisy history, clean labels
            rate = r.random() * 0.15
            for lo, hi in spans:
                hit = np.nonzero(r.random(hi - lo) < rate)[0] + lo
                for k in hit:
                    if r.random() < 0.5:
                        src = min(max(lo, k + int(r.integers(-3, 4))), hi - 1)
                        rows[k, 1:] = full[src, 1:]
                    else:
                        m = r.random(BOOKS) < 0.5
                        rows[k, 1:][m] = r.integers(0, L.CFG["band"], m.sum())
                    rows[k, 0] = rows[k, 1] + self.pr.start
        return rows, main, nxt, lab, weight

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        w = info.id if info else 0
        r = np.random.default_rng([int(time.time() * 1000) % (1 << 31), w])
        n = 2 * w
        while True:
            kind = ORDER[n % len(ORDER)]
            n += 1
            out = [self.one(r, kind) for _ in range(SIZE[kind])]
            yield (kind, *[torch.from_numpy(np.stack(x)) for x in zip(*out)])


class Plain:
    """Draws for the held-out sequences: any item, no noise, a reference where the kind has one."""
    def __init__(self, seed):
        self.r = np.random.default_rng(seed)
        self.integers = self.r.integers

    def random(self):
        return 0.7


def main():
    dev = torch.device(a.device)
    cuda = a.device == "cuda"
    train, held = S.load_text(a.text)
    texts = {r["id"]: r["text"] for r in train}
    pr = L.Prompts(a.tokenizer, BOOKS)
    vocab = -(-pr.t.get_vocab_size() // 64) * 64
    codes = corpus.unpack([f"{a.codes}/codes.npz"])
    hcodes = corpus.unpack([f"{a.codes}/heldout.npz"])
    items = [(v, texts[i], c) for i, (v, c) in codes.items() if i in texts]
    log("utterances", len(items), "vocab", vocab, "start", pr.start, "eos", pr.eos)
    data = Data(pr, items)
    log("short", len(data.short), "long", len(data.long), "frames", sum(len(x[2][0]) for x in items))
    torch.manual_seed(2)
    loader = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=a.workers, pin_memory=cuda, prefetch_factor=4 if a.workers else None))
    model = L.LM(L.CFG, vocab, pr.start, pr.eos, dev)
    log("parameters", sum(math.prod(s) for _, s in model.where.values()) / 1e6, "M")
    flat, grad = model.flat, model.grad
    m, v = torch.zeros_like(flat), torch.zeros_like(flat)
    tick, lr_t, norm_t = torch.zeros((), device=dev), torch.zeros((), device=dev), torch.zeros((), device=dev)
    ema = flat.clone()
    cw = torch.tensor([2.0] + [1.0, 0.8, 0.7, 0.6, 0.5, 0.4, 0.4][: BOOKS - 1], device=dev)
    step = 0
    if a.init:
        L.load(model, a.init)
        ema.copy_(flat)
    if a.resume and os.path.exists(a.resume):
        st = torch.load(a.resume, map_location=dev)
        for t, k in ((flat, "flat"), (m, "m"), (v, "v"), (ema, "ema"), (tick, "tick")):
            t.copy_(st[k])
        step = st["step"]
        log("resumed at step", step)
    static = [[torch.zeros(B, T, 1 + BOOKS, dtype=torch.long, device=dev), torch.zeros(B, T, dtype=torch.long, device=dev),
               torch.zeros(B, T, BOOKS, dtype=torch.long, device=dev), torch.zeros(B, T, device=dev), torch.zeros(B, T, device=dev)]
              for B, T in zip(SIZE, ROWS)]
    model.drop = a.dropout

    def body(ref):
        with torch.enable_grad(), torch.autocast(dev.type, torch.bfloat16, enabled=cuda):
            losses = model.losses(*static[ref])
            loss = (losses * cw).sum() + 0.02 * model.aux
        grad.zero_()
        loss.backward()
        with torch.no_grad():
            norm = grad.norm()
            norm_t.copy_(norm)
            g = grad * (1.0 / (norm + 1e-6)).clamp(max=1.0)
            tick.add_(1)
            m.lerp_(g, 0.1)
            v.mul_(0.95).addcmul_(g, g, value=0.05)
            upd = (m / (1 - 0.9 ** tick)) / ((v / (1 - 0.95 ** tick)).sqrt() + 1e-8)
            flat.sub_(lr_t * (upd + a.wd * model.decay * flat))
        return losses.detach()

    graphs, eager = {}, not cuda or a.no_graph

    def run(ref):
        nonlocal eager
        if eager:
            return body(ref)
        if ref not in graphs:
            try:
                s = torch.cuda.Stream()
                s.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(s):
                    for _ in range(2):
                        body(ref)
                torch.cuda.current_stream().wait_stream(s)
                torch.cuda.synchronize()
                g = torch.cuda.CUDAGraph()
                with torch.cuda.graph(g):
                    out = body(ref)
                graphs[ref] = (g, out)
                log("graph captured, rows", ROWS[ref])
            except Exception as e:  # noqa: BLE001
                log("capture failed, eager from here:", repr(e)[:500])
                eager = True
                torch.cuda.synchronize()
                return body(ref)
        graphs[ref][0].replay()
        return graphs[ref][1]

    # held-out sequences: short ones without, and with a reference; both seeds are fixed
    hd = Data(pr, [(vv, held[i % 1000], c) for i, (vv, c) in sorted(hcodes.items()) if c.shape[1] <= 100])
    rr = Plain(5)
    hb = [[torch.from_numpy(np.stack(x)).to(dev) for x in zip(*[hd.one(rr, k) for _ in range(96 if cuda else 2)])] for k in (0, 1)]

    @torch.no_grad()
    def heldout():
        live = flat.clone()
        flat.copy_(ema)
        model.drop = 0.0
        with torch.autocast(dev.type, torch.bfloat16, enabled=cuda):
            l = [model.losses(*t) for t in hb]
        model.drop = a.dropout
        flat.copy_(live)
        score = float(((l[0] + l[1]) / 2 * cw).sum() / cw.sum())
        if score < best["score"]:
            best.update(score=score, step=step, flat=ema.clone())
        return round(score, 4), [[round(float(x), 3) for x in y] for y in l]

    best = dict(score=1e9, step=0, flat=ema.clone())
    start, t_last, n_last = time.time(), time.time(), step
    budget = a.seconds - (start - T0)
    sums, count, first = [0, 0, 0], [0, 0, 0], step
    while time.time() - T0 < a.seconds and step < a.max_steps:
        done = a.span[0] + (a.span[1] - a.span[0]) * min(1, (time.time() - start) / budget)
        lr_t.fill_(a.lr * min(1, (step + 1) / 300) * (0.03 + 0.97 * 0.5 * (1 + math.cos(math.pi * done))))
        ref, *tensors = next(loader)
        for s, t in zip(static[ref], tensors):
            s.copy_(t, non_blocking=True)
        out = run(ref)
        if cuda and step % 11 == 0:
            sums[ref] = sums[ref] + out.clone(); count[ref] += 1
        elif not cuda:
            sums[ref] = sums[ref] + out; count[ref] += 1
        step += 1
        if cuda and step % 20 == 0:
            torch.cuda.synchronize()  # keep the host near the device, so that the clock is right
        if step % 4 == 0:
            ema.lerp_(flat, min(0.3, max(0.012, 4.0 / (step + 1))))
        if step % 1000 == 0 or step - first in (20, 200) or step == a.max_steps:
            show = {ROWS[k]: [round(float(x), 3) for x in (sums[k] / count[k])] for k in range(3) if count[k]}
            log(f"step {step} {1000 * (time.time() - t_last) / max(1, step - n_last):.1f} ms/step lr {float(lr_t):.2e} norm {float(norm_t):.2f} {show}",
                "held-out", heldout() if step % 1000 == 0 or step == a.max_steps else "")
            sums, count = [0, 0, 0], [0, 0, 0]
            t_last, n_last = time.time(), step
    log("trained to step", step, "held-out", heldout())
    if a.save_state:
        torch.save(dict(flat=flat, m=m, v=v, ema=ema, tick=tick, step=step), a.save_state)
    graphs.clear()
    size = L.export(model, a.out, best["flat"])
    log("exported step", best["step"], "held-out", round(best["score"], 4), size / 2**20, "MiB")


if __name__ == "__main__":
    main()
