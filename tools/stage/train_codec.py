"""Synthesise the corpus with flite while training the codec on it.

    python train_codec.py --flite DIR --text DIR --out OUT --seconds 430
    python train_codec.py ... --init codec.pth --span 0 0.5 --save-state S      # one long schedule in several calls
    python train_codec.py ... --state S --span 0.5 1
    python train_codec.py ... --device cpu --tiny --steps 8                     # a dry run

Writes codec-live.pth and codec-ema.pth (the last weights and their running mean: state dicts), codec-heads.pth (what else a later call
needs: --init codec-live.pth --heads codec-heads.pth; each file is under 16 MiB), and log-codec.txt with the held-out mel distance of both. Encode the corpus with encode.py afterwards. --shards keeps the speech for the next program.
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


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--flite", required=True, help="root with usr/bin/flite and its libraries")
    p.add_argument("--text", required=True, help="folder of make_text.py")
    p.add_argument("--out", required=True)
    p.add_argument("--shards", default="/dev/shm/shards", help="folder for the speech")
    p.add_argument("--seconds", type=float, default=430, help="wall time at which training stops")
    p.add_argument("--steps", type=int, default=10**9, help="steps at which training stops")
    p.add_argument("--span", type=float, nargs=2, default=(0.0, 1.0), help="part of the schedule that this call covers")
    p.add_argument("--gan-from", type=float, default=0.62, help="share of the schedule after which discriminators join")
    p.add_argument("--freeze-from", type=float, default=0.72, help="share of the schedule after which codebooks stand still")
    p.add_argument("--drop", type=float, default=0.15, help="share of sequences that lose their last books")
    p.add_argument("--lr", type=float, default=8e-4)
    p.add_argument("--batch", type=int, default=24, help="sequences of 32 frames; those of 128 frames are a quarter as many")
    p.add_argument("--soft", type=int, default=400, help="steps without rounding at the start of a new codec")
    p.add_argument("--init", nargs="*", help="weights to go on from (optimiser new)")
    p.add_argument("--heads", help="codec-heads.pth beside those weights: phone head, discriminators, place in the schedule")
    p.add_argument("--state", help="weights and optimiser to go on from, if the file exists")
    p.add_argument("--save-state", help="where weights and optimiser go at the end")
    p.add_argument("--hours", type=float, default=110, help="room for the speech on the device")
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--device", default="cuda")
    p.add_argument("--tiny", action="store_true", help="a few sentences and frames: a dry run")
    return p.parse_args()


a = arguments()
os.makedirs(a.out, exist_ok=True)
logf = open(a.out + "/log-codec.txt", "a")


def log(*x):
    s = f"[{time.time() - T0:6.1f}] " + " ".join(str(v) for v in x)
    print(s, flush=True)
    logf.write(s + "\n"); logf.flush()


class Draw:
    """Random crops of the store, resampled to 44.1 kHz, with the phones of each half frame."""
    def __init__(self, store):
        self.store = store

    def draw(self, start, gain, frames):
        src = math.ceil(frames * 2048 * 160 / 441) + 40
        start.copy_(torch.randint(0, max(1, (self.store.n - src) // 80 - 40), start.shape, device=start.device))
        gain.copy_(10 ** ((torch.rand(gain.shape, device=start.device) * 4 - 3) / 20))

    def take(self, start, gain, frames, resample):
        need = frames * 2048
        src = math.ceil(need * 160 / 441) + 40
        wav = self.store.wav
        x = wav[start[:, None] * 80 + torch.arange(src, device=wav.device)].float() / 32768
        x = resample(x)[:, :need] * gain
        # label points half a frame back: -0.25 and +0.25 frames from the frame's start
        t = torch.arange(frames, device=x.device)
        pts = torch.stack([t - 0.25, t + 0.25], -1).clamp(min=0) * 2048 / 44100 * 200
        lab = self.store.lab[(start[:, None, None] + pts[None].long())]
        return x.clamp(-1, 1), lab.long()


class Trainer:
    def __init__(self, dev, store):
        self.dev, self.store, self.crops = dev, store, Draw(store)
        self.cuda = dev.type == "cuda"
        self.model = C.Codec(dict(C.SIZES)).to(dev)
        self.phone = torch.nn.Linear(C.SIZES["input_dim"], 2 * len(S.PHONES)).to(dev)
        self.disc = C.Discriminators().to(dev)
        self.mel = C.MelLoss().to(dev)
        self.params = [q for q in self.model.parameters() if q.requires_grad] + list(self.phone.parameters())
        kw = dict(weight_decay=1e-3, fused=self.cuda, capturable=self.cuda)
        self.opt = torch.optim.AdamW(self.params, lr=1e-3, betas=(0.8, 0.98), **kw)
        self.optd = torch.optim.AdamW(self.disc.parameters(), lr=5e-4, betas=(0.8, 0.99), **kw)
        self.scal = {k: torch.zeros((), device=dev) for k in ("lr", "warm", "adv", "mean_norm")}
        self.step = self.gan_step = 0
        self.graphs, self.eager, self.choice = {}, not self.cuda, {}
        self.resume()
        if self.cuda:
            for o in (self.opt, self.optd):
                for g in o.param_groups:
                    g["lr"] = self.scal["lr"]
        for q in self.params + list(self.disc.parameters()):
            q.grad = torch.zeros_like(q)
        self.resample = torchaudio.transforms.Resample(16000, 44100).to(dev)
        self.shapes = {False: (32, a.batch), True: (128, a.batch // 4)} if not a.tiny else {False: (16, 2), True: (16, 2)}
        self.starts = {k: torch.zeros(v[1], dtype=torch.long, device=dev) for k, v in self.shapes.items()}
        self.gains = {k: torch.ones(v[1], 1, device=dev) for k, v in self.shapes.items()}

    def books(self):
        return self.model.quantizer.all()

    def resume(self):
        self.fresh = not a.init
        for vq in self.books():
            vq.count.fill_(1.5)
        if a.init:
            state = {}
            for f in a.init:
                state.update(torch.load(f, map_location=self.dev))
            self.model.load_state_dict(state)
        if a.heads:
            heads = torch.load(a.heads, map_location=self.dev)
            self.phone.load_state_dict(heads["phone"]); self.disc.load_state_dict(heads["disc"])
            self.step, self.gan_step = heads["step"], heads["gan_step"]
            log("going on from step", self.step)
        st = torch.load(a.state, map_location=self.dev, weights_only=False) if a.state and os.path.exists(a.state) else None
        if st:
            self.model.load_state_dict(st["model"]); self.phone.load_state_dict(st["phone"]); self.disc.load_state_dict(st["disc"])
            self.opt.load_state_dict(st["opt"]); self.optd.load_state_dict(st["optd"])
            self.step, self.gan_step, self.fresh = st["step"], st["gan_step"], False
            self.scal["mean_norm"].copy_(st["mean_norm"])
            log("resumed at step", self.step)
        for k, vq in enumerate(self.books()):
            vq.soft = self.fresh
            if st:
                vq.count.copy_(st["count"][k]); vq.total.copy_(st["total"][k])
            else:
                vq.total.copy_(vq.codebook.weight * vq.count[:, None])
        self.ema = {k: v.detach().clone() for k, v in (st["ema"] if st else self.model.state_dict()).items()}
        self.begin = self.step

    def save(self, path):
        torch.save(dict(model=self.model.state_dict(), phone=self.phone.state_dict(), disc=self.disc.state_dict(), opt=self.opt.state_dict(),
                        optd=self.optd.state_dict(), step=self.step, gan_step=self.gan_step, mean_norm=self.scal["mean_norm"], ema=self.ema,
                        count=[vq.count for vq in self.books()], total=[vq.total for vq in self.books()]), path)

    def adversary(self, x, y):
        """Discriminators see half of the batch: they cost more than the codec itself. -> their loss, adversarial and feature losses"""
        half = max(1, len(x) // 2)
        x, y = x[:half], y[:half]
        amp = dict(device_type=self.dev.type, dtype=torch.bfloat16, enabled=self.cuda)
        torch._foreach_zero_([q.grad for q in self.disc.parameters()])
        with torch.autocast(**amp):
            real, fake = self.disc(x), self.disc(y.detach())
        dl = sum(((1 - r[0].float()) ** 2).mean() + (f[0].float() ** 2).mean() for r, f in zip(real, fake)) / len(real)
        dl.backward()
        self.optd.step()
        for q in self.disc.parameters():
            q.requires_grad_(False)
        with torch.autocast(**amp):
            with torch.no_grad():
                real = self.disc(x)
            fake = self.disc(y)
        for q in self.disc.parameters():
            q.requires_grad_(True)
        adv = sum(((1 - f[0].float()) ** 2).mean() for f in fake) / len(fake)
        fm = sum((r.float() - f.float()).abs().mean() / (r.float().abs().mean() + 1e-6)
                 for rr, ff in zip(real, fake) for r, f in zip(rr[1], ff[1])) / (len(real) * 4)
        return dl, adv, fm

    def body(self, long, gan):
        """One optimiser step on static inputs; everything stays on the device, so it can be a CUDA graph."""
        frames, batch = self.shapes[long]
        x, lab = self.crops.take(self.starts[long], self.gains[long], frames, self.resample)
        y, codes, commit, _, first = self.model(x[:, None], drop=a.drop, amp=self.cuda)
        y = y[:, 0]
        m = self.mel(y, x)
        logits = self.phone(first.transpose(1, 2)).view(batch, frames, 2, -1)
        pc = F.cross_entropy(logits.flatten(0, 2), lab.flatten())
        loss = 15 * m + 4.0 * self.scal["warm"] * pc + 1.0 * commit + (5.0 if not gan else 0.0) * (y - x).abs().mean()
        out = dict(mel=m, phone=pc, commit=commit)
        if gan:
            dl, adv, fm = self.adversary(x, y)
            loss = loss + self.scal["adv"] * (4.0 * adv + 8.0 * fm)
            out.update(d=dl, adv=adv, fm=fm)
        grads = [q.grad for q in self.params]
        torch._foreach_zero_(grads)
        loss.backward()
        # clip at twice the running mean of the norm
        norm = torch.nn.utils.get_total_norm(grads)
        mn = self.scal["mean_norm"]
        mn.copy_(torch.where(mn > 0, 0.98 * mn + 0.02 * torch.minimum(norm, 3 * mn), norm))
        torch._foreach_mul_(grads, (2 * mn / norm).clamp(max=1.0))
        self.opt.step()
        out.update(norm=norm, acc=(logits.argmax(-1) == lab).float().mean(), silent=(lab == 0).float().mean())
        return {k: v.detach() for k, v in out.items()}, codes

    def capture(self, key):
        s = torch.cuda.Stream()
        s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(s):
            for _ in range(2):
                self.body(*key)
        torch.cuda.current_stream().wait_stream(s)
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g):
            out = self.body(*key)
        return g, out

    def timed(self, g, n=6):
        g.replay(); torch.cuda.synchronize()
        t = time.time()
        for _ in range(n):
            g.replay()
        torch.cuda.synchronize()
        return 1000 * (time.time() - t) / n

    def prepare(self, key):
        """Capture with cuDNN's heuristics and with its search; the faster one counts for all graphs of that kind."""
        lr = self.scal["lr"].clone()
        self.scal["lr"].zero_()  # the same batch many times over must not move the weights
        best = None
        for search in ([False, True] if key[1] not in self.choice else [self.choice[key[1]]]):
            try:
                torch.backends.cudnn.benchmark = search
                t = time.time()
                graph = self.capture(key)
                ms = self.timed(graph[0])
                log("graph", key, "search" if search else "heuristics", f"{ms:.1f} ms, took {time.time() - t:.1f} s")
                if best is None or ms < 0.97 * best[0]:
                    best = (ms, graph, search)
            except Exception as e:  # noqa: BLE001
                log("capture failed:", repr(e)[:400])
                torch.cuda.synchronize()
        torch.backends.cudnn.benchmark = False
        self.scal["lr"].copy_(lr)
        if best is None:
            log("going on without graphs")
            self.eager = True
            return
        self.choice[key[1]] = best[2]
        self.graphs[key] = best[1]

    def run(self, long, gan):
        key = (long, gan)
        if not self.eager and key not in self.graphs:
            self.prepare(key)
        if self.eager:
            return self.body(*key)
        g, out = self.graphs[key]
        g.replay()
        return out

    def rates(self, done):
        """done: place in the whole schedule"""
        gan = done >= a.gan_from
        warm = 1 if a.state else min(1, (self.step - self.begin + 1) / 100)  # the optimiser's means begin anew with each call
        if gan:
            x = (done - a.gan_from) / (1 - a.gan_from)
            lr = a.lr * 0.5 * min(warm, (self.gan_step + 1) / 100) * (0.5 * (1 + math.cos(math.pi * x)) * 0.97 + 0.03)
        else:
            lr = a.lr * warm * (1 - 0.5 * done / a.gan_from)
        self.scal["lr"].fill_(lr); self.scal["warm"].fill_(min(1.0, (self.step + 1) / 600)); self.scal["adv"].fill_(min(1.0, self.gan_step / 300))
        if not self.cuda:
            for g in self.opt.param_groups + self.optd.param_groups:
                g["lr"] = lr
        return gan, lr

    def track(self, done):
        if self.fresh and self.step <= a.soft:
            return
        if self.step % 10 == 0:
            with torch.no_grad():
                sd = self.model.state_dict()
                torch._foreach_lerp_(list(self.ema.values()), [sd[k] for k in self.ema], 0.03 if self.step > a.soft + 300 else 0.3)
        if self.step % 50 == 0 and done < a.freeze_from - 0.05:
            for vq in self.books():
                vq.revive()

    def loop(self, gather):
        start, t_last, n_last, frozen, joined = time.time(), time.time(), self.step, False, False
        budget = a.seconds - (start - T0)
        self.model.train()
        while time.time() - T0 < a.seconds and self.step - self.begin < a.steps:
            share = max((time.time() - start) / budget, (self.step - self.begin) / a.steps)
            done = a.span[0] + (a.span[1] - a.span[0]) * min(1, share)
            if self.step % 20 == 0:
                gather()
            gan, lr = self.rates(done)
            if gan and not joined:
                joined = True
                log("discriminators join at step", self.step)
                self.graphs.clear()
            self.gan_step += gan
            if done >= a.freeze_from and not frozen:
                frozen = True
                for vq in self.books():
                    vq.frozen = True
                self.graphs.clear()
                log("codebooks stand still from step", self.step)
            if self.fresh and self.step == a.soft:
                for vq in self.books():
                    vq.soft = False
                    vq.start()
                self.graphs.clear()
            long = self.step % 4 == 3
            self.crops.draw(self.starts[long], self.gains[long], self.shapes[long][0])
            stats, codes = self.run(long, gan)
            self.step += 1
            if self.cuda and self.step % 20 == 0:
                torch.cuda.synchronize()
            self.track(done)
            if self.step % (4 if a.tiny else 800) == 0 or self.step - self.begin in (20, 200):
                used = [round(len(torch.unique(codes[:, i])) / 512, 2) for i in range(codes.shape[1])]
                log(f"step {self.step} {1000 * (time.time() - t_last) / (self.step - n_last):.0f} ms/step lr {lr:.1e}",
                    " ".join(f"{k} {float(v):.3f}" for k, v in stats.items()), f"hours {self.store.n / 57.6e6:.2f} used {used}")
                t_last, n_last = time.time(), self.step
                if not math.isfinite(float(stats["mel"])):
                    log("loss is not finite"); break
                # what the network is shown, after cropping: a batch of silence alone, or phones told without a mistake, is no speech
                least, most = (0, 0.95) if a.tiny else (0.01, 0.6)
                if not least <= float(stats["silent"]) <= most or (self.step > 50 and float(stats["phone"]) < 0.02):
                    raise SystemExit(f"phone labels are broken: {100 * float(stats['silent']):.1f} % of a batch is silence, phone loss {float(stats['phone']):.3f}")
        self.graphs.clear()


@torch.no_grad()
def distance(model, mel, held, dev):
    """Mean mel distance of the round trip of held-out utterances, by voice."""
    old = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    model.eval()
    out, books = {}, []
    for (_, voice, _, n), wav in held:
        x = torch.from_numpy(wav[:n].copy()).to(dev).float()[None] / 32768
        x = torchaudio.functional.resample(x, 16000, 44100)
        x = F.pad(x, (0, -x.shape[1] % 2048))
        codes = model.encode(x[:, None])
        out.setdefault(voice, []).append(float(mel(model.decode(codes)[:, 0, : x.shape[1]], x)))
        books.append(codes[0].cpu())
    flat = torch.cat(books, 1).numpy()
    perplexity = []
    for row in flat:
        h = np.bincount(row, minlength=512) / len(row)
        perplexity.append(round(float(np.exp(-(h[h > 0] * np.log(h[h > 0])).sum()))))
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = old
    return {S.VOICES[v]: round(float(np.mean(d)), 3) for v, d in sorted(out.items())}, perplexity


def main():
    dev = torch.device(a.device)
    train, held = S.load_text(a.text)
    if a.tiny:
        train, held = train[:300], held[:2]
    pool, pending = S.start(a.flite, train, held, a.shards, a.workers, 8 if a.tiny else 60)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(1 + int(1000 * a.span[0]))
    if a.device == "cuda":
        torch.zeros(1, device=dev)
        C.enable_triton()
    store = corpus.Store(dev, a.hours * 3600 if not a.tiny else 1800)
    while store.n < 16000 * (20 if a.tiny else 600):
        store.gather(pending)
        time.sleep(0.1)
    log("first audio", store.n / 16000, "s; torch", torch.__version__)
    t = Trainer(dev, store)
    t.loop(lambda: store.gather(pending, 40))
    log("steps", t.step, "shards pending", len(pending), "hours", store.n / 57.6e6)
    cpu = lambda d: {k: v.detach().cpu().clone() for k, v in d.items()}
    live = cpu(t.model.state_dict())
    torch.save(live, a.out + "/codec-live.pth"); torch.save(cpu(t.ema), a.out + "/codec-ema.pth")
    torch.save(dict(phone=cpu(t.phone.state_dict()), disc=cpu(t.disc.state_dict()), step=t.step, gan_step=t.gan_step), a.out + "/codec-heads.pth")
    if a.save_state:
        t.save(a.save_state)
    few = [h for h in store.held if h[0][0] % 1000 < (2 if a.tiny else 30)]
    log("live:", *distance(t.model, t.mel, few, dev))
    t.model.load_state_dict(t.ema)
    log("mean:", *distance(t.model, t.mel, few, dev))
    if pending and a.save_state:
        log("waiting for", len(pending), "shards")
        while pending and time.time() - T0 < a.seconds + 40:
            store.gather(pending); time.sleep(0.2)
    pool.terminate()
    log("done")


if __name__ == "__main__":
    main()
