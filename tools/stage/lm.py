"""Backbone and tower in PyTorch for training, under the published tensor names; prompts, export, generation."""
import json, math, os
import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = dict(hidden=256, layers=8, interval=2, heads=4, kv=2, hd=64, rot=16, theta=10000.0, gk=2, gv=4, gd=64,
           experts=4, top=2, inner=128, shared=256, books=8, band=512, tower_shared=2, ffn=512, eps=1e-6)
BB = "model.language_model."


def shapes(c, vocab):
    """name -> (shape, init std or constant, weight decay)"""
    H, out = c["hidden"], {}
    lin = lambda name, o, i, gain=0.7: out.__setitem__(name, ((o, i), gain / i ** 0.5, True))
    norm = lambda name, n, v=0.0: out.__setitem__(name, ((n,), ("const", v), False))
    deep = 0.7 / (2 * c["layers"]) ** 0.5
    out[BB + "embed_tokens.weight"] = ((vocab, H), 0.5, False)
    norm(BB + "norm.weight", H)
    lin("lm_head.candidates", c["band"] + 1, H, 0.5)
    kd, vd = c["gk"] * c["gd"], c["gv"] * c["gd"]
    for l in range(c["layers"]):
        p = f"{BB}layers.{l}."
        norm(p + "input_layernorm.weight", H)
        norm(p + "post_attention_layernorm.weight", H)
        if (l + 1) % c["interval"] == 0:
            a = p + "self_attn."
            lin(a + "q_proj.weight", 2 * c["heads"] * c["hd"], H)
            lin(a + "k_proj.weight", c["kv"] * c["hd"], H)
            lin(a + "v_proj.weight", c["kv"] * c["hd"], H)
            lin(a + "o_proj.weight", H, c["heads"] * c["hd"], deep)
            norm(a + "q_norm.weight", c["hd"])
            norm(a + "k_norm.weight", c["hd"])
        else:
            g = p + "linear_attn."
            lin(g + "in_proj_qkv.weight", 2 * kd + vd, H)
            lin(g + "in_proj_z.weight", vd, H)
            lin(g + "in_proj_b.weight", c["gv"], H)
            lin(g + "in_proj_a.weight", c["gv"], H, 0.2)
            out[g + "conv1d.weight"] = ((2 * kd + vd, 1, 4), 0.3, False)
            out[g + "A_log"] = ((c["gv"],), ("list", [math.log(v) for v in (1.0, 2.0, 4.0, 8.0)]), False)
            out[g + "dt_bias"] = ((c["gv"],), ("list", [-6.0, -5.0, -4.0, -3.0]), False)
            norm(g + "norm.weight", c["gd"], 1.0)
            lin(g + "out_proj.weight", H, vd, deep)
        m = p + "mlp."
        lin(m + "gate.weight", c["experts"], H)
        lin(m + "shared_expert_gate.weight", 1, H)
        lin(m + "shared_expert.gate_proj.weight", c["shared"], H)
        lin(m + "shared_expert.up_proj.weight", c["shared"], H)
        lin(m + "shared_expert.down_proj.weight", H, c["shared"], deep)
        out[m + "experts.gate_up"] = ((c["experts"], 2 * c["inner"], H), 0.7 / H ** 0.5, True)
        out[m + "experts.down"] = ((c["experts"], H, c["inner"]), deep / c["inner"] ** 0.5, True)
    out["audio_decoder.codebook_embeddings.weight"] = ((c["books"] * c["band"], H), 0.3, False)
    tower = [("audio_decoder_mtp_shared", i, "semantic_embedding") for i in range(c["tower_shared"])]
    tower += [("audio_decoder_mtp", i, "codebook_embedding") for i in range(c["books"] - 1)]
    for group, i, emb in tower:
        p = f"{group}.layers.{i}."
        out[p + emb + ".weight"] = ((c["band"], H), 0.5, False)
        for n in ("enorm", "hnorm", "final_layernorm", "transformer_layer.attention_norm", "transformer_layer.ffn_norm"):
            norm(p + n + ".weight", H)
        t = p + "transformer_layer."
        lin(p + "eh_proj.weight", H, 2 * H, 1.0)
        lin(t + "attention.wqkv.weight", (2 * c["heads"] + 2 * c["kv"]) * c["hd"], H)
        lin(t + "attention.wo.weight", H, c["heads"] * c["hd"], 0.3)
        norm(t + "attention.q_norm.weight", c["hd"])
        norm(t + "attention.k_norm.weight", c["hd"])
        lin(t + "feed_forward.w1.weight", c["ffn"], H)
        lin(t + "feed_forward.w3.weight", c["ffn"], H)
        lin(t + "feed_forward.w2.weight", H, c["ffn"], 0.3)
    for i in range(c["books"] - 1):
        lin(f"audio_decoder_mtp.heads.{i}.weight", c["band"], H, 0.5)
    return out


def take(table, idx):
    """Embedding rows through index_select: its backward needs no host sync, so it can be captured."""
    return table.index_select(0, idx.reshape(-1)).view(*idx.shape, table.shape[1])


def rms1(x, w, eps):
    return F.rms_norm(x.float(), (x.shape[-1],), 1 + w, eps)


class Fp8(torch.autograd.Function):
    """e4m3 rounding in blocks; gradient passes straight through."""
    @staticmethod
    def forward(ctx, x, rows):
        x = x.float()
        s = x.shape
        b = x.reshape(*s[:-2], s[-2] // rows, rows, s[-1] // 128, 128)
        scale = b.abs().amax((-3, -1), keepdim=True).clamp(min=1e-10) / 448.0
        return ((b / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale).reshape(s)

    @staticmethod
    def backward(ctx, g):
        return g, None


def tri_inv(A):
    """(I + A)^-1 for strictly lower A [..., n, n], n a power of two, by block doubling."""
    lead, n = A.shape[:-2], A.shape[-1]
    inv, s = torch.ones(*lead, n, 1, 1, device=A.device, dtype=A.dtype), 1
    while s < n:
        m = n // (2 * s)
        blk = A.reshape(*lead, m, 2 * s, m, 2 * s).diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
        i = inv.reshape(*lead, m, 2, s, s)
        L1, L2 = i[..., 0, :, :], i[..., 1, :, :]
        C = -(L2 @ blk[..., s:, :s] @ L1)
        inv = torch.cat([torch.cat([L1, torch.zeros_like(L1)], -1), torch.cat([C, L2], -1)], -2)
        s *= 2
    return inv[..., 0, :, :]


def delta_rule(q, k, v, g, beta, C=64):
    """Chunked gated delta rule; q, k [B, T, H, D] normalised (q unscaled), v [B, T, H, D], g, beta [B, T, H]; fp32."""
    B, T, H, D = v.shape
    n = -(-T // C)
    pad = n * C - T
    def chunk(x):
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, pad))
        return x.reshape(B, n, C, *x.shape[2:]).transpose(2, 3)  # [B, n, H, C, ...]
    q, k, v, g, beta = map(chunk, (q, k, v, g, beta))
    G = g.cumsum(-1)
    diff = G[..., :, None] - G[..., None, :]
    low = torch.ones(C, C, device=v.device, dtype=torch.bool).tril()
    decay = torch.where(low, diff, torch.full_like(diff, -1e9)).exp()
    strict = low.tril(-1)
    A = (k @ k.transpose(-1, -2)) * decay * beta[..., None] * strict
    M = tri_inv(A)
    U = M @ (beta[..., None] * v)
    W = M @ ((beta * G.exp())[..., None] * k)
    qk = (q @ k.transpose(-1, -2)) * decay
    qg = q * G.exp()[..., None]
    kl = k * (G[..., -1:] - G).exp()[..., None]
    last = G[..., -1].exp()[..., None, None]
    S, outs = torch.zeros(B, H, D, D, device=v.device, dtype=v.dtype), []
    for i in range(n):
        d = U[:, i] - W[:, i] @ S
        outs.append(qg[:, i] @ S + qk[:, i] @ d)
        S = last[:, i] * S + kl[:, i].transpose(-1, -2) @ d
    o = torch.stack(outs, 1).transpose(2, 3).reshape(B, n * C, H, D)[:, :T]
    return o * D ** -0.5


class LM(nn.Module):
    def __init__(self, cfg, vocab, start, eos, device="cpu", seed=1):
        super().__init__()
        self.c, self.start, self.eos, self.vocab = cfg, start, eos, vocab
        spec, at, self.where = shapes(cfg, vocab), 0, {}
        for name, (shape, _, _) in spec.items():
            self.where[name] = (at, shape)
            at += -(-math.prod(shape) // 64) * 64
        gen = torch.Generator().manual_seed(seed)
        flat, decay = torch.zeros(at), torch.zeros(at)
        for name, (shape, init, wd) in spec.items():
            o, n = self.where[name][0], math.prod(shape)
            if isinstance(init, tuple):
                flat[o:o + n] = torch.tensor(init[1]) if init[0] == "list" else init[1]
            else:
                flat[o:o + n] = torch.randn(n, generator=gen) * init
            decay[o:o + n] = float(wd)
        self.flat, self.decay = flat.to(device), decay.to(device)
        self.grad = torch.zeros_like(self.flat)
        self.p = {}
        for name, (o, shape) in self.where.items():
            n = math.prod(shape)
            q = self.flat[o:o + n].view(shape).requires_grad_()
            q.grad = self.grad[o:o + n].view(shape)
            self.p[name] = q
        self.quant, self.drop = True, 0.0

    def rope(self, pos, half):
        c = self.c
        f = c["theta"] ** (-torch.arange(0, c["rot"], 2, device=pos.device).float() / c["rot"])
        ang = pos.float()[..., None] * f
        return ang.cos()[..., None, :], ang.sin()[..., None, :]  # [.., T, 1, rot/2]

    def rotate(self, x, cs, half):
        r, (c, s) = self.c["rot"], cs
        y, rest = x[..., :r], x[..., r:]
        if half:
            a, b = y[..., : r // 2], y[..., r // 2:]
            y = torch.cat([a * c - b * s, b * c + a * s], -1)
        else:
            a, b = y[..., 0::2], y[..., 1::2]
            y = torch.stack([a * c - b * s, b * c + a * s], -1).flatten(-2)
        return torch.cat([y, rest], -1)

    def sdpa(self, q, k, v, mask=None):
        """[B, T, heads, hd]"""
        rep = self.c["heads"] // self.c["kv"]
        q, k, v = (t.bfloat16() if t.is_cuda else t for t in (q, k, v))
        k, v = k.repeat_interleave(rep, 2), v.repeat_interleave(rep, 2)
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, is_causal=mask is None)
        return o.transpose(1, 2)

    def moe(self, h, m):
        c, p = self.c, self.p
        B, T, H = h.shape
        x = h.reshape(-1, H)
        probs = F.linear(x, p[m + "gate.weight"]).float().softmax(-1)
        top = probs.topk(c["top"], -1)[1]
        mask = torch.zeros_like(probs).scatter(-1, top, 1.0)
        w = probs * mask
        w = w / w.sum(-1, keepdim=True)
        self.aux = self.aux + c["experts"] * (mask.mean(0) / c["top"] * probs.mean(0)).sum()
        gu, down = p[m + "experts.gate_up"], p[m + "experts.down"]
        xq = Fp8.apply(x, 1) if self.quant else x
        gu, down = (Fp8.apply(gu, 128), Fp8.apply(down, 128)) if self.quant else (gu, down)
        y = torch.einsum("nh,eih->eni", xq, gu)
        act = F.silu(y[..., : c["inner"]].float()) * y[..., c["inner"]:].float()
        act = Fp8.apply(act, 1) if self.quant else act
        y = torch.einsum("eni,ehi->enh", act, down)
        routed = (y.float() * w.t()[..., None]).sum(0)
        s = m + "shared_expert."
        sh = F.linear(F.silu(F.linear(x, p[s + "gate_proj.weight"])) * F.linear(x, p[s + "up_proj.weight"]), p[s + "down_proj.weight"])
        sg = torch.sigmoid(F.linear(x, p[m + "shared_expert_gate.weight"]).float())
        return (routed + sg * sh.float()).view(B, T, H)

    def gdn(self, a, g):
        c, p = self.c, self.p
        B, T, _ = a.shape
        qkv = F.linear(a, p[g + "in_proj_qkv.weight"])
        z = F.linear(a, p[g + "in_proj_z.weight"])
        b, av = F.linear(a, p[g + "in_proj_b.weight"]), F.linear(a, p[g + "in_proj_a.weight"])
        w = p[g + "conv1d.weight"][:, 0]
        xp = F.pad(qkv, (0, 0, 3, 0)).float()
        x = F.silu(sum(xp[:, j:j + T] * w[:, j] for j in range(4)))
        kd = c["gk"] * c["gd"]
        q, k, v = x[..., :kd], x[..., kd:2 * kd], x[..., 2 * kd:]
        rep = c["gv"] // c["gk"]
        q, k = (t.reshape(B, T, c["gk"], c["gd"]) for t in (q, k))
        q, k = (t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6) for t in (q, k))
        q, k = q.repeat_interleave(rep, 2), k.repeat_interleave(rep, 2)
        decay = -p[g + "A_log"].exp() * F.softplus(av.float() + p[g + "dt_bias"])
        with torch.autocast(a.device.type, enabled=False):
            o = delta_rule(q, k, v.reshape(B, T, c["gv"], c["gd"]), decay, torch.sigmoid(b.float()))
        z = z.view(B, T, c["gv"], c["gd"]).float()
        y = F.rms_norm(o, (c["gd"],), p[g + "norm.weight"], c["eps"]) * F.silu(z)
        return F.linear(y.reshape(B, T, -1), p[g + "out_proj.weight"])

    def attn(self, a, s, cs):
        c, p = self.c, self.p
        B, T, _ = a.shape
        qg = F.linear(a, p[s + "q_proj.weight"]).view(B, T, c["heads"], 2 * c["hd"])
        q, gate = qg[..., : c["hd"]], qg[..., c["hd"]:]
        k = F.linear(a, p[s + "k_proj.weight"]).view(B, T, c["kv"], c["hd"])
        v = F.linear(a, p[s + "v_proj.weight"]).view(B, T, c["kv"], c["hd"])
        q = self.rotate(rms1(q, p[s + "q_norm.weight"], c["eps"]), cs, True)
        k = self.rotate(rms1(k, p[s + "k_norm.weight"], c["eps"]), cs, True)
        y = self.sdpa(q, k, v).float() * torch.sigmoid(gate.float())
        return F.linear(y.reshape(B, T, -1), p[s + "o_proj.weight"])

    def semantic(self, main):
        return (main >= self.start) & (main < self.start + self.c["band"])

    def dropped(self, x):
        return F.dropout(x, self.drop) if self.drop > 0 else x

    def backbone(self, rows):
        c, p = self.c, self.p
        self.aux = 0.0
        main = rows[..., 0]
        x = take(p[BB + "embed_tokens.weight"], main)
        u = take(p["audio_decoder.codebook_embeddings.weight"], c["band"] + rows[..., 2])
        x = torch.where(self.semantic(main)[..., None], (x + u) * 0.5 ** 0.5, x)
        cs = self.rope(torch.arange(rows.shape[1], device=rows.device), True)
        for l in range(c["layers"]):
            q = f"{BB}layers.{l}."
            a = rms1(x, p[q + "input_layernorm.weight"], c["eps"])
            y = self.attn(a, q + "self_attn.", cs) if (l + 1) % c["interval"] == 0 else self.gdn(a, q + "linear_attn.")
            x = x + self.dropped(y.float())
            x = x + self.dropped(self.moe(rms1(x, p[q + "post_attention_layernorm.weight"], c["eps"]), q + "mlp."))
        return rms1(x, p[BB + "norm.weight"], c["eps"])

    def main_logits(self, h):
        return F.linear(h, self.p["lm_head.candidates"]).float()

    def extra(self, rows):
        c = self.c
        j = torch.arange(2, c["books"], device=rows.device)
        e = take(self.p["audio_decoder.codebook_embeddings.weight"], rows[..., 3:] + j * c["band"]).sum(-2)
        return e * self.semantic(rows[..., 0])[..., None]

    def tower_names(self):
        c = self.c
        return [(f"audio_decoder_mtp_shared.layers.{i}.", "semantic_embedding.weight", 0, -1) for i in range(c["tower_shared"])] + \
               [(f"audio_decoder_mtp.layers.{i}.", "codebook_embedding.weight", i, i) for i in range(c["books"] - 1)]

    def tower_layer(self, t, h, code, lab, extra, cs, cache=None, mask=None):
        """cache: (K, V, at) -> this step's keys go to row `at` of each sequence."""
        c, p = self.c, self.p
        q_, emb, _, _ = self.tower_names()[t]
        B, T, H = h.shape
        e = take(p[q_ + emb], code) * lab[..., None]
        if extra is not None:
            e = e + extra
        m = F.linear(torch.cat([rms1(e, p[q_ + "enorm.weight"], c["eps"]), rms1(h, p[q_ + "hnorm.weight"], c["eps"])], -1), p[q_ + "eh_proj.weight"]).float()
        s = q_ + "transformer_layer."
        a = rms1(m, p[s + "attention_norm.weight"], c["eps"])
        nq, nk = c["heads"] * c["hd"], c["kv"] * c["hd"]
        q, gate, k, v = F.linear(a, p[s + "attention.wqkv.weight"]).split([nq, nq, nk, nk], -1)
        q = self.rotate(rms1(q.reshape(B, T, -1, c["hd"]), p[s + "attention.q_norm.weight"], c["eps"]), cs, False)
        k = self.rotate(rms1(k.reshape(B, T, -1, c["hd"]), p[s + "attention.k_norm.weight"], c["eps"]), cs, False)
        v = v.reshape(B, T, -1, c["hd"]).float()
        if cache is not None:
            K, V, at = cache
            if at is None:
                K[:, :T], V[:, :T] = k, v
                o = self.sdpa(q, k, v)
            else:
                b = torch.arange(B, device=h.device)
                K[b, at], V[b, at] = k[:, 0], v[:, 0]
                o = self.sdpa(q, K, V, mask)
        else:
            o = self.sdpa(q, k, v)
        y = o.reshape(B, T, -1).float() * torch.sigmoid(gate.float())
        r = m + self.dropped(F.linear(y, p[s + "attention.wo.weight"]).float())
        n, f = rms1(r, p[s + "ffn_norm.weight"], c["eps"]), s + "feed_forward."
        r = r + self.dropped(F.linear(F.silu(F.linear(n, p[f + "w1.weight"])) * F.linear(n, p[f + "w3.weight"]), p[f + "w2.weight"]).float())
        return rms1(r, p[q_ + "final_layernorm.weight"], c["eps"])

    def losses(self, rows, main_label, codes, lab, weight):
        """codes [B, T, books] and lab [B, T] of the next frame; main_label index 0 eos, 1 + code0 (or -100)."""
        c = self.c
        h = self.backbone(rows)
        ok = (main_label >= 0).float() * weight
        total = ok.sum().clamp(min=1)
        def ce(logits, y, w):
            return (F.cross_entropy(logits.flatten(0, 1), y.clamp(min=0).flatten(), reduction="none") * w.flatten()).sum()
        out = [ce(self.main_logits(h), main_label, ok) / total]
        wc = ok * lab
        tc = wc.sum().clamp(min=1)
        cs = self.rope(torch.arange(rows.shape[1], device=rows.device), False)
        x, extra = h, self.extra(rows)
        for t, (_, _, r, head) in enumerate(self.tower_names()):
            x = self.tower_layer(t, x, codes[..., r], lab, extra if t == 0 else None, cs)
            if head >= 0:
                logits = F.linear(x, self.p[f"audio_decoder_mtp.heads.{head}.weight"]).float()
                out.append(ce(logits, codes[..., head + 1], wc) / tc)
        return torch.stack(out)

    # ------------------------------------------------------------------ generation
    @torch.no_grad()
    def generate(self, prompts, limit=150, temperature=1.0, top_p=0.9, greedy=False, seed=1):
        """prompts: list of LongTensor [rows, 1 + books] -> list of LongTensor [frames, books]"""
        c, dev = self.c, self.flat.device
        gen = torch.Generator(device=dev).manual_seed(seed)
        B, W = len(prompts), 1 + c["books"]
        lens = torch.tensor([len(x) for x in prompts], device=dev)
        first, Pm = lens.clone(), max(len(x) for x in prompts)
        rows = torch.zeros(B, Pm + limit + 1, W, dtype=torch.long, device=dev)
        for i, x in enumerate(prompts):
            rows[i, : len(x)] = x.to(dev)
        T = rows.shape[1]
        names = self.tower_names()
        K = [torch.zeros(B, T, c["kv"], c["hd"], device=dev) for _ in names]
        V = [torch.zeros_like(k) for k in K]
        alive = torch.ones(B, dtype=torch.bool, device=dev)
        b = torch.arange(B, device=dev)
        # tower over the prompt (row len-1 is overwritten by the first step)
        h = self.backbone(rows[:, :Pm])
        nxt = torch.cat([rows[:, 1:Pm], rows[:, Pm:Pm + 1]], 1)
        lab = self.semantic(nxt[..., 0]).float()
        cs = self.rope(torch.arange(Pm, device=dev), False)
        x, ex = h, self.extra(rows[:, :Pm])
        for t, (_, _, r, _) in enumerate(names):
            x = self.tower_layer(t, x, nxt[..., 1 + r], lab, ex if t == 0 else None, cs, (K[t], V[t], None))

        def pick(logits, temp, p, k, keep_crossing):
            s = (logits / max(temp, 1e-5)).softmax(-1)
            v, i = s.sort(-1, descending=True)
            cum = v.cumsum(-1)
            ok = (cum - v <= p) if keep_crossing else (cum <= p)
            ok[:, k:] = False
            ok[:, 0] = True
            if greedy:
                return i[:, 0]
            e = -torch.rand(v.shape, generator=gen, device=dev).clamp(min=1e-9).log()
            return i.gather(1, torch.where(ok, v / e, torch.zeros_like(v)).argmax(1, keepdim=True))[:, 0]

        for step in range(limit):
            cur = Pm + step
            h = self.backbone(rows[:, :cur])[b, lens - 1]
            logits = self.main_logits(h)
            m1, m2 = pick(logits, temperature, top_p, 10 ** 6, True), pick(logits, 1.0, 0.95, 30, True)
            main = torch.where(m1 == 0, torch.full_like(m1, self.eos), m1 - 1 + self.start)
            win = rows[b[:, None], (lens[:, None] - 16 + torch.arange(16, device=dev)).clamp(min=0), 0]
            rep = (win == main[:, None]).any(1) & (m1 > 0)
            if not greedy:
                m1 = torch.where(rep, m2, m1)
            main = torch.where(m1 == 0, torch.full_like(m1, self.eos), m1 - 1 + self.start)
            alive = alive & (m1 > 0)
            if not alive.any():
                break
            lab = alive.float()[:, None]
            code = (m1 - 1).clamp(min=0)
            frame = [main, code]
            prev = rows[b, lens - 1][:, None]
            cs = self.rope((lens - 1)[:, None], False)
            mask = (torch.arange(T, device=dev)[None] <= (lens - 1)[:, None])[:, None, None]
            x = h[:, None]
            for t, (_, _, r, head) in enumerate(names):
                x = self.tower_layer(t, x, frame[1 + r][:, None], lab, self.extra(prev) if t == 0 else None, cs, (K[t], V[t], lens - 1), mask)
                if head >= 0:
                    lg = F.linear(x[:, 0], self.p[f"audio_decoder_mtp.heads.{head}.weight"]).float()
                    frame.append(pick(lg, temperature, top_p, 30, False))
            new = torch.stack(frame, 1)
            rows[b[alive], lens[alive]] = new[alive]
            lens = lens + alive.long()
        return [rows[i, first[i]:lens[i], 1:].cpu() for i in range(B)]


# ---------------------------------------------------------------------- prompts
class Prompts:
    def __init__(self, tokenizer_path, books):
        from tokenizers import Tokenizer
        self.t = Tokenizer.from_file(tokenizer_path)
        self.start = self.t.token_to_id("<|semantic:0|>")
        self.eos = self.t.token_to_id("<|im_end|>")
        self.books = books
        self.fixed = {s: self.t.encode(s).ids for s in (
            "<|im_start|>system\n", "convert the provided text to speech", "convert the provided text to speech reference to the following:",
            "<|im_end|>\n", "<|im_start|>user\n", "<|im_start|>assistant\n<|voice|>")}

    def ids(self, text):
        return self.t.encode(text).ids

    def rows(self, segments):
        """segments: id lists (text) and code arrays [books, F] (audio) -> rows [P, 1 + books], spans of the audio"""
        import numpy as np
        n = sum(len(s) if isinstance(s, list) else s.shape[1] for s in segments)
        rows, spans, at = np.zeros((n, 1 + self.books), np.int64), [], 0
        for s in segments:
            if isinstance(s, list):
                rows[at:at + len(s), 0] = s
                at += len(s)
            else:
                end = at + s.shape[1]
                rows[at:end, 0] = s[0].astype(np.int64) + self.start
                rows[at:end, 1:] = s.T
                spans.append((at, end))
                at = end
        return rows, spans

    def prompt(self, references, turns):
        """references: (ids of the transcript's segment, codes); turns: (ids of the tagged text, codes), the last one's codes are the
        target -> segments, number of audio segments before the turns"""
        f = self.fixed
        out = [f["<|im_start|>system\n"]]
        out.append(f["convert the provided text to speech reference to the following:" if references else "convert the provided text to speech"])
        for ids, codes in references:
            out += [ids, codes]
        out.append(f["<|im_end|>\n"])
        for ids, codes in turns:
            out += [f["<|im_start|>user\n"], ids, f["<|im_end|>\n"], f["<|im_start|>assistant\n<|voice|>"], codes, f["<|im_end|>\n"]]
        return out, len(references)

    def build(self, target_ids, ref_ids=None, ref_codes=None):
        """ids of the tagged target; ids of the whole '\\n\\n[Reference 1]...Speech: ' segment; codes [books, F]
        -> rows [P, 1 + books] (numpy), first and last + 1 row of the reference audio"""
        import numpy as np
        f = self.fixed
        head = list(f["<|im_start|>system\n"])
        head += f["convert the provided text to speech"] if ref_ids is None else f["convert the provided text to speech reference to the following:"] + list(ref_ids)
        tail = f["<|im_end|>\n"] + f["<|im_start|>user\n"] + list(target_ids) + f["<|im_end|>\n"] + f["<|im_start|>assistant\n<|voice|>"]
        F_ = 0 if ref_codes is None else ref_codes.shape[1]
        rows = np.zeros((len(head) + F_ + len(tail), 1 + self.books), np.int64)
        rows[: len(head), 0] = head
        if F_:
            rows[len(head): len(head) + F_, 0] = ref_codes[0].astype(np.int64) + self.start
            rows[len(head): len(head) + F_, 1:] = ref_codes.T
        rows[len(head) + F_:, 0] = tail
        return rows, len(head), len(head) + F_


# ----------------------------------------------------------------------- export
def fp8_blocks(w):
    r, k = w.shape
    b = w.reshape(r // 128, 128, k // 128, 128)
    scale = b.abs().amax((1, 3)).clamp(min=1e-10) / 448.0
    full = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return (w / full).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def config(c, vocab, start, eos):
    attn = lambda i: "linear_attention" if (i + 1) % c["interval"] else "full_attention"
    return {
        "architectures": ["FishOmniModel"], "model_type": "fish_omni", "dtype": "bfloat16", "fish_schema_version": 1,
        "speech_template_version": "reference-bracket-v1", "eos_token_id": eos, "semantic_start_token_id": start,
        "semantic_end_token_id": start + c["band"] - 1, "audio_encoder_config": None, "extra_samplable_token_ids": [],
        "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "bsgemm-moe", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "text_config": {
            "model_type": "fish_omni_text", "vocab_size": vocab, "hidden_size": c["hidden"], "num_hidden_layers": c["layers"],
            "layer_types": [attn(i) for i in range(c["layers"])], "mlp_layer_types": ["moe"] * c["layers"],
            "num_attention_heads": c["heads"], "num_key_value_heads": c["kv"], "head_dim": c["hd"], "hidden_act": "silu",
            "max_position_embeddings": 16384, "rms_norm_eps": c["eps"],
            "rope_parameters": {"rope_type": "default", "rope_theta": c["theta"], "partial_rotary_factor": c["rot"] / c["hd"]},
            "rotary_interleaved": False, "use_qk_norm": True, "attn_output_gate": True, "layernorm_zero_centered_gamma": True,
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": c["gd"], "linear_value_head_dim": c["gd"],
            "linear_num_key_heads": c["gk"], "linear_num_value_heads": c["gv"], "num_experts": c["experts"],
            "num_experts_per_tok": c["top"], "moe_intermediate_size": c["inner"], "shared_expert_intermediate_size": c["shared"],
            "shared_expert_gate": True, "norm_topk_prob": True, "tie_word_embeddings": False},
        "audio_decoder_config": {
            "model_type": "fish_qwen3_audio_decoder", "decoder_type": "codebook_mtp_shared", "dim": c["hidden"], "text_dim": c["hidden"],
            "n_head": c["heads"], "n_local_heads": c["kv"], "head_dim": c["hd"], "n_layer": c["tower_shared"],
            "shared_enrichment_layers": c["tower_shared"], "intermediate_size": c["ffn"], "norm_eps": c["eps"], "num_codebooks": c["books"],
            "vocab_size": c["band"], "max_seq_len": c["books"] + 1, "rope_base": c["theta"], "rotary_percent": c["rot"] / c["hd"],
            "rotary_interleaved": True, "attention_output_gate": True, "layernorm_zero_centered_gamma": True, "vq_feature_scope": "all_vq",
            "vq_feature_placement": "backbone_partial", "vq_backbone_codebooks": 1, "mtp_spec": {"attention_variant": "full_attention"}}}


def export(model, folder, flat=None, shards=3):
    """safetensors shards (each well under 16 MiB), index and config.json"""
    from safetensors.torch import save_file
    c, src, out = model.c, (model.flat if flat is None else flat).float().cpu(), {}
    for name, (o, shape) in model.where.items():
        w = src[o:o + math.prod(shape)].view(shape)
        if name.endswith("experts.gate_up") or name.endswith("experts.down"):
            base = name.rsplit(".", 1)[0]
            for e in range(c["experts"]):
                parts = {"gate_proj": w[e, : c["inner"]], "up_proj": w[e, c["inner"]:]} if name.endswith("gate_up") else {"down_proj": w[e]}
                for n, t in parts.items():
                    q, s = fp8_blocks(t.contiguous())
                    out[f"{base}.{e}.{n}.weight"], out[f"{base}.{e}.{n}.weight_scale_inv"] = q, s
        elif name == "lm_head.candidates":
            full = torch.zeros(model.vocab, c["hidden"])
            full[model.eos] = w[0]
            full[model.start: model.start + c["band"]] = w[1:]
            out["lm_head.weight"] = full.bfloat16()
        elif name.endswith("A_log"):
            out[name] = w.clone()
        else:
            out[name] = w.bfloat16()
    os.makedirs(folder, exist_ok=True)
    names, where, total = sorted(out), {}, 0
    for k in range(shards):
        f = f"model-{k + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: out[n].contiguous() for n in names[k::shards]}
        save_file(part, os.path.join(folder, f), metadata={"format": "pt"})
        where.update({n: f for n in part})
        total += sum(t.numel() * t.element_size() for t in part.values())
    json.dump({"metadata": {"total_size": total}, "weight_map": where}, open(os.path.join(folder, "model.safetensors.index.json"), "w"))
    json.dump(config(c, model.vocab, model.start, model.eos), open(os.path.join(folder, "config.json"), "w"), indent=1)
    return total


def load(model, folder):
    """The exported folder back into the flat buffer (experts dequantised)."""
    from safetensors import safe_open
    got = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".safetensors"):
            h = safe_open(os.path.join(folder, f), "pt")
            got.update({k: h.get_tensor(k) for k in h.keys()})
    c = model.c
    def deq(n):
        return got[n + ".weight"].float() * got[n + ".weight_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    with torch.no_grad():
        for name, (o, shape) in model.where.items():
            if name.endswith(("experts.gate_up", "experts.down")):
                base = name.rsplit(".", 1)[0]
                if name.endswith("gate_up"):
                    w = torch.stack([torch.cat([deq(f"{base}.{e}.gate_proj"), deq(f"{base}.{e}.up_proj")]) for e in range(c["experts"])])
                else:
                    w = torch.stack([deq(f"{base}.{e}.down_proj") for e in range(c["experts"])])
            elif name == "lm_head.candidates":
                w = torch.cat([got["lm_head.weight"][model.eos][None], got["lm_head.weight"][model.start: model.start + c["band"]]])
            else:
                w = got[name]
            model.flat[o:o + math.prod(shape)] = w.float().flatten().to(model.flat.device)
