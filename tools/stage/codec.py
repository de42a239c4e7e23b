"""The codec's graph at any width, with the published tensor names, for training; losses and discriminators.

Run alone it prints the sizes of the parts and takes one step of each on the CPU."""
import contextlib
import math
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm as wn_param

try:
    import triton
    import triton.language as tl

    @triton.jit
    def _snake_fwd(x, a, y, L, xs, C, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        m = offs < L
        al = tl.load(a + row % C)
        xv = tl.load(x + row * xs + offs, mask=m, other=0.0)
        s = tl.sin(al * xv)
        tl.store(y + row * L + offs, xv + s * s / (al + 1e-9), mask=m)

    @triton.jit
    def _snake_bwd(x, a, g, dx, part, L, xs, C, NB, BLOCK: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        m = offs < L
        al = tl.load(a + row % C)
        xv = tl.load(x + row * xs + offs, mask=m, other=0.0)
        gv = tl.load(g + row * L + offs, mask=m, other=0.0)
        r = 1.0 / (al + 1e-9)
        s = tl.sin(al * xv)
        s2 = tl.sin(2.0 * al * xv)
        tl.store(dx + row * L + offs, gv * (1.0 + al * r * s2), mask=m)
        d = gv * (xv * s2 * r - s * s * r * r)
        tl.store(part + row * NB + tl.program_id(1), tl.sum(tl.where(m, d, 0.0), axis=0))

    class _Snake(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, alpha):
            B, C, L = x.shape
            if not (x.stride(2) == 1 and x.stride(0) == C * x.stride(1)):
                x = x.contiguous()
            y = torch.empty(B, C, L, device=x.device, dtype=x.dtype)
            nb = triton.cdiv(L, 2048)
            _snake_fwd[(B * C, nb)](x, alpha, y, L, x.stride(1), C, BLOCK=2048)
            ctx.save_for_backward(x, alpha)
            return y

        @staticmethod
        def backward(ctx, g):
            x, alpha = ctx.saved_tensors
            B, C, L = x.shape
            g = g.contiguous()
            nb = triton.cdiv(L, 2048)
            dx = torch.empty(B, C, L, device=x.device, dtype=x.dtype)
            part = torch.empty(B, C, nb, device=x.device, dtype=torch.float32)
            _snake_bwd[(B * C, nb)](x, alpha, g, dx, part, L, x.stride(1), C, nb, BLOCK=2048)
            return dx, part.sum((0, 2)).view(1, C, 1)
except ImportError:
    _Snake = None

USE_TRITON = [False]


def snake(x, alpha):
    if USE_TRITON[0]:
        return _Snake.apply(x, alpha)
    return x + torch.sin(alpha * x).pow(2) / (alpha + 1e-9)


def enable_triton():
    """Try the fused Snake; keep it only if it agrees with the plain form."""
    try:
        torch.manual_seed(0)
        x = torch.randn(3, 8, 5003, device="cuda", requires_grad=True)
        a = (torch.rand(1, 8, 1, device="cuda") + 0.3).requires_grad_()
        g = torch.randn(3, 8, 5000, device="cuda")
        out = []
        for flag in (False, True):
            USE_TRITON[0] = flag
            x.grad = a.grad = None
            y = snake(x[..., :5000], a)
            y.backward(g)
            out.append((y.detach(), x.grad.clone(), a.grad.clone()))
        err = max(((p - q).norm() / p.norm()).item() for p, q in zip(*out))
        USE_TRITON[0] = err < 1e-4
        print("triton snake error", err, "on" if USE_TRITON[0] else "OFF", flush=True)
    except Exception as e:  # noqa: BLE001
        USE_TRITON[0] = False
        print("triton snake failed:", repr(e)[:300], flush=True)


class Snake1d(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, c, 1))

    def forward(self, x):
        return snake(x, self.alpha)


class CausalConv(nn.Module):
    def __init__(self, cin, cout, k, dilation=1, stride=1, groups=1, norm=True, gain=1.0):
        super().__init__()
        conv = nn.Conv1d(cin, cout, k, stride=stride, dilation=dilation, groups=groups)
        # the published 0.02 would let the signal die at these widths
        nn.init.normal_(conv.weight, std=gain * (groups / (cin * k)) ** 0.5)
        nn.init.zeros_(conv.bias)
        self.conv = wn_param(conv) if norm else conv
        self.keff, self.stride, self.dilation, self.groups = (k - 1) * dilation + 1, stride, dilation, groups

    def forward(self, x):
        pad, L = self.keff - self.stride, x.shape[-1]
        if self.stride == 1:  # pad both sides, drop the tail: no padding copy
            y = F.conv1d(x, self.conv.weight, self.conv.bias, padding=pad, dilation=self.dilation, groups=self.groups)
            return y[..., :L]
        extra = -L % self.stride
        return F.conv1d(F.pad(x, (pad, extra)), self.conv.weight, self.conv.bias, stride=self.stride)


class CausalTConv(nn.Module):
    def __init__(self, cin, cout, k, stride, norm=True):
        super().__init__()
        conv = nn.ConvTranspose1d(cin, cout, k, stride=stride)
        nn.init.normal_(conv.weight, std=(stride / (cin * k)) ** 0.5)
        nn.init.zeros_(conv.bias)
        self.conv = wn_param(conv) if norm else conv
        self.cut = k - stride

    def forward(self, x):
        y = self.conv(x)
        return y[..., : y.shape[-1] - self.cut] if self.cut else y


class ResidualUnit(nn.Module):
    def __init__(self, c, d):
        super().__init__()
        self.block = nn.Sequential(Snake1d(c), CausalConv(c, c, 7, d), Snake1d(c), CausalConv(c, c, 1, gain=0.5))

    def forward(self, x):
        return x + self.block(x)


class RMS(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class Gamma(nn.Module):
    def __init__(self, d, v):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((d,), v))


class TAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.wqkv = nn.Linear(d, 3 * d, bias=False)
        self.wo = nn.Linear(d, d, bias=False)


class TFeed(nn.Module):
    def __init__(self, d, ffn):
        super().__init__()
        self.w1, self.w3 = nn.Linear(d, ffn, bias=False), nn.Linear(d, ffn, bias=False)
        self.w2 = nn.Linear(ffn, d, bias=False)


class TBlock(nn.Module):
    def __init__(self, d, ffn):
        super().__init__()
        self.attention, self.feed_forward = TAttention(d), TFeed(d, ffn)
        self.ffn_norm, self.attention_norm = RMS(d), RMS(d)
        self.attention_layer_scale, self.ffn_layer_scale = Gamma(d, 0.1), Gamma(d, 0.1)


class WTransformer(nn.Module):
    def __init__(self, d, ffn, layers, window):
        super().__init__()
        self.layers = nn.ModuleList(TBlock(d, ffn) for _ in range(layers))
        self.norm = RMS(d)
        self.window = window

    def forward(self, x):
        x = x.transpose(1, 2)
        B, T, D = x.shape
        H = D // 64
        pos = torch.arange(T, device=x.device)
        f = 1.0 / (10000 ** (torch.arange(0, 64, 2, device=x.device).float() / 64))
        ang = torch.outer(pos.float(), f)
        cos, sin = ang.cos().bfloat16().float(), ang.sin().bfloat16().float()
        delta = pos[:, None] - pos[None]
        mask = (delta >= 0) & (delta < self.window)

        def rope(t):
            t = t.view(B, T, H, 32, 2)
            c, s = cos[None, :, None], sin[None, :, None]
            return torch.stack([t[..., 0] * c - t[..., 1] * s, t[..., 1] * c + t[..., 0] * s], -1).view(B, T, H, 64).transpose(1, 2)

        for l in self.layers:
            q, k, v = l.attention.wqkv(l.attention_norm(x)).chunk(3, -1)
            y = F.scaled_dot_product_attention(rope(q), rope(k), v.view(B, T, H, 64).transpose(1, 2), attn_mask=mask)
            x = x + l.attention_layer_scale.gamma * l.attention.wo(y.transpose(1, 2).reshape(B, T, D))
            h, f_ = l.ffn_norm(x), l.feed_forward
            x = x + l.ffn_layer_scale.gamma * f_.w2(F.silu(f_.w1(h)) * f_.w3(h))
        return self.norm(x).transpose(1, 2)


class ConvNeXt(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.dwconv = CausalConv(d, d, 7, groups=d, norm=False)
        nn.init.normal_(self.dwconv.conv.weight, std=0.2)
        self.norm = nn.LayerNorm(d, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.gamma = nn.Parameter(torch.full((d,), 0.1))

    def forward(self, x):
        y = self.norm(self.dwconv(x).transpose(1, 2))
        return x + (self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))).transpose(1, 2)


class EncoderBlock(nn.Module):
    def __init__(self, c, s, layers):
        super().__init__()
        parts = [ResidualUnit(c // 2, 1), ResidualUnit(c // 2, 3), ResidualUnit(c // 2, 9), Snake1d(c // 2),
                 CausalConv(c // 2, c, 2 * s, stride=s)]
        if layers:
            parts.append(WTransformer(c, 3 * c, layers, 512))
        self.block = nn.Sequential(*parts)

    def forward(self, x):
        return self.block(x)


class DecoderBlock(nn.Module):
    def __init__(self, ci, co, s):
        super().__init__()
        self.block = nn.Sequential(Snake1d(ci), CausalTConv(ci, co, 2 * s, s), ResidualUnit(co, 1), ResidualUnit(co, 3), ResidualUnit(co, 9))

    def forward(self, x):
        return self.block(x)


class Chain(nn.Module):
    def __init__(self, name, parts):
        super().__init__()
        setattr(self, name, nn.Sequential(*parts))
        self.name = name

    def forward(self, x):
        return getattr(self, self.name)(x)


@contextlib.contextmanager
def exact():
    """No TF32 inside."""
    old = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = old


class VQ(nn.Module):
    def __init__(self, d, n, dim):
        super().__init__()
        old = torch.nn.utils.weight_norm
        self.in_proj = old(nn.Conv1d(d, dim, 1))
        self.out_proj = old(nn.Conv1d(dim, d, 1))
        self.codebook = nn.Embedding(n, dim)
        self.codebook.weight.requires_grad_(False)
        self.register_buffer("count", torch.ones(n), persistent=False)
        self.register_buffer("total", torch.zeros(n, dim), persistent=False)
        self.soft, self.frozen = False, False

    def search(self, e):
        eh, ch = F.normalize(e, dim=1), F.normalize(self.codebook.weight, dim=1)
        dist = eh.pow(2).sum(1, keepdim=True) - 2 * torch.einsum("bdt,nd->bnt", eh, ch) + ch.pow(2).sum(1)[None, :, None]
        return dist.min(1)[1]

    def embed(self, r):
        """Latents in full float32. The late books' latents share a long mean, so that their cosines differ by a few
        thousandths only: TF32 would send nearly all frames to a handful of codes."""
        with exact():
            return self.in_proj(r)

    def forward(self, r):
        e = self.embed(r)
        with torch.no_grad(), exact():
            code = self.search(e)
            if self.training:
                self.last = e.detach().transpose(1, 2).reshape(-1, e.shape[1])
        if self.soft:
            zero = e.new_zeros(e.shape[0])
            return self.out_proj(e), code, zero, zero
        c = F.embedding(code, self.codebook.weight).transpose(1, 2)
        commit = (e - c).pow(2).mean((1, 2))
        out = self.out_proj(e + (c - e).detach())
        if self.training and not self.frozen:
            self.update(code.flatten())
        return out, code, commit, commit.detach()

    @torch.no_grad()
    def update(self, code, decay=0.99):
        n = torch.zeros_like(self.count).index_add_(0, code, torch.ones_like(code, dtype=self.count.dtype))
        t = torch.zeros_like(self.total).index_add_(0, code, self.last)
        self.count.mul_(decay).add_(n, alpha=1 - decay)
        self.total.mul_(decay).add_(t, alpha=1 - decay)
        self.codebook.weight.copy_(self.total / self.count.clamp(min=1e-4)[:, None])

    @torch.no_grad()
    def start(self):
        """Rows from the latents of the last batch."""
        rows = self.last[torch.randint(len(self.last), (len(self.count),), device=self.last.device)]
        self.codebook.weight.copy_(rows)
        self.count.fill_(len(self.last) / len(self.count))
        self.total.copy_(rows * self.count[:, None])

    @torch.no_grad()
    def revive(self):
        """Codes hardly used take a random latent of the last batch."""
        mean = self.count.mean()
        dead = self.count < 0.1 * mean
        pick = self.last[torch.randint(len(self.last), (len(dead),), device=dead.device)]
        self.count.copy_(torch.where(dead, mean * 0.4, self.count))
        self.total.copy_(torch.where(dead[:, None], pick * mean * 0.4, self.total))
        self.codebook.weight.copy_(torch.where(dead[:, None], pick, self.codebook.weight))

    def lookup(self, code):
        return self.out_proj(F.embedding(code, self.codebook.weight).transpose(1, 2))


class RVQ(nn.Module):
    def __init__(self, d, count, n, dim):
        super().__init__()
        self.quantizers = nn.ModuleList(VQ(d, n, dim) for _ in range(count))


class Quantizer(nn.Module):
    def __init__(self, s):
        super().__init__()
        d = s["input_dim"]
        self.semantic_quantizer = RVQ(d, 1, s["semantic_codebook_size"], s["codebook_dim"])
        self.quantizer = RVQ(d, s["n_codebooks"], s["codebook_size"], s["codebook_dim"])
        self.downsample = nn.Sequential(*[nn.Sequential(CausalConv(d, d, 2, stride=2, norm=False), ConvNeXt(d)) for _ in range(2)])
        self.upsample = nn.Sequential(*[nn.Sequential(CausalTConv(d, d, 2, 2, norm=False), ConvNeXt(d)) for _ in range(2)])
        for part in self.downsample:
            nn.init.normal_(part[0].conv.weight, std=(1 / (2 * d)) ** 0.5)
        self.pre_module = WTransformer(d, s["intermediate_size"], s["quantizer_layers"], s["window_size"])
        self.post_module = WTransformer(d, s["intermediate_size"], s["quantizer_layers"], s["window_size"])

    def all(self):
        return [self.semantic_quantizer.quantizers[0], *self.quantizer.quantizers]


class Codec(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.sizes = s
        c, parts = s["encoder_dim"], [CausalConv(1, s["encoder_dim"], 7, gain=10.0)]
        for i, stride in enumerate((2, 4, 8, 8)):
            c *= 2
            parts.append(EncoderBlock(c, stride, s["encoder_layers"] if i == 3 else 0))
        assert c == s["input_dim"]
        self.encoder = Chain("block", parts + [Snake1d(c), CausalConv(c, c, 3)])
        self.quantizer = Quantizer(s)
        ch, parts = s["decoder_dim"], [CausalConv(c, s["decoder_dim"], 7)]
        for i, stride in enumerate((8, 8, 4, 2)):
            parts.append(DecoderBlock(ch >> i, ch >> (i + 1), stride))
        self.decoder = Chain("model", parts + [Snake1d(ch >> 4), CausalConv(ch >> 4, 1, 7, gain=0.1), nn.Tanh()])

    def latent(self, wav, amp=False):
        q = self.quantizer
        with torch.autocast(wav.device.type, torch.bfloat16, enabled=amp):
            h = self.encoder(wav)
        return q.pre_module(q.downsample(h.float()))

    def forward(self, wav, drop=0.0, amp=False):
        """wav [B, 1, 2048 T] -> (wave, codes, commit, book, semantic part)"""
        q = self.quantizer
        r = self.latent(wav, amp)
        B = r.shape[0]
        count = len(q.all())
        keep = torch.full((B,), count, device=r.device)
        if drop > 0:
            cut = torch.rand(B, device=r.device) < drop
            keep = torch.where(cut, torch.randint(1, count, (B,), device=r.device), keep)
        z, codes, commit, book, first = 0, [], 0, 0, None
        for i, vq in enumerate(q.all()):
            part, code, cm, bk = vq(r)
            on = (i < keep).float()
            z = z + part * on[:, None, None]
            r = r - part
            commit, book = commit + (cm * on).mean(), book + (bk * on).mean()
            codes.append(code)
            first = part if first is None else first
        h = q.upsample(q.post_module(z))
        with torch.autocast(wav.device.type, torch.bfloat16, enabled=amp):
            h = self.decoder.model[:-3](h)
        return self.decoder.model[-3:](h.float()), torch.stack(codes, 1), commit, book, first

    @torch.no_grad()
    def encode(self, wav):
        r, codes = self.latent(wav), []
        for vq in self.quantizer.all():
            code = vq.search(vq.in_proj(r))
            r = r - vq.lookup(code)
            codes.append(code)
        return torch.stack(codes, 1)

    @torch.no_grad()
    def decode(self, codes):
        z = 0
        for i, vq in enumerate(self.quantizer.all()):
            z = z + vq.lookup(codes[:, i].clamp(max=vq.codebook.weight.shape[0] - 1))
        return self.decoder(self.quantizer.upsample(self.quantizer.post_module(z)))


SIZES = dict(encoder_dim=8, decoder_dim=288, input_dim=128, n_codebooks=7, codebook_size=512, semantic_codebook_size=512,
             codebook_dim=8, encoder_layers=2, quantizer_layers=2, intermediate_size=384, window_size=128)


# ---------------------------------------------------------------------------------- losses
def mel_bank(rate, n_fft, bins):
    def mel(f): return 2595 * math.log10(1 + f / 700)
    edges = 700 * (10 ** (torch.linspace(mel(0.0), mel(rate / 2), bins + 2) / 2595) - 1)
    f = torch.linspace(0, rate / 2, n_fft // 2 + 1)
    up = (f[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - f[None]) / (edges[2:] - edges[1:-1])[:, None]
    bank = torch.minimum(up, down).clamp(min=0)
    return bank / bank.sum(1, keepdim=True).clamp(min=1e-8)


class MelLoss(nn.Module):
    def __init__(self, rate=44100):
        super().__init__()
        self.spec = [(64, 10), (128, 20), (256, 40), (512, 80), (1024, 120), (2048, 160)]
        for w, b in self.spec:
            self.register_buffer(f"w{w}", torch.hann_window(w))
            self.register_buffer(f"m{w}", mel_bank(rate, w, b))

    def forward(self, x, y):
        total = 0
        for w, b in self.spec:
            out = []
            for t in (x, y):
                s = torch.stft(t, w, w // 4, window=getattr(self, f"w{w}"), return_complex=True)
                mag = (s.real.pow(2) + s.imag.pow(2) + 1e-9).sqrt() / (w / 4)
                out.append(torch.log10((getattr(self, f"m{w}") @ mag).clamp(min=1e-4)))
            total = total + (out[0] - out[1]).abs().mean()
        return total


class PeriodD(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p
        ch = [1, 16, 64, 128, 256]
        n = torch.nn.utils.parametrizations.weight_norm
        self.convs = nn.ModuleList(n(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0))) for a, b in zip(ch, ch[1:]))
        self.post = n(nn.Conv2d(256, 1, (3, 1), 1, (1, 0)))

    def forward(self, x):
        x = F.pad(x, (0, -x.shape[-1] % self.p))
        x = x.view(x.shape[0], 1, -1, self.p)
        maps = []
        for c in self.convs:
            x = F.leaky_relu(c(x), 0.1)
            maps.append(x)
        return self.post(x), maps


class SpecD(nn.Module):
    def __init__(self, w, limit):
        super().__init__()
        self.w, self.limit = w, limit
        self.register_buffer("win", torch.hann_window(w), persistent=False)
        n, c = torch.nn.utils.parametrizations.weight_norm, 24
        self.convs = nn.ModuleList([n(nn.Conv2d(2, c, (3, 9), (1, 1), (1, 4))), n(nn.Conv2d(c, c, (3, 9), (1, 2), (1, 4))),
                                    n(nn.Conv2d(c, c, (3, 9), (1, 2), (1, 4))), n(nn.Conv2d(c, c, (3, 9), (1, 2), (1, 4))),
                                    n(nn.Conv2d(c, c, (3, 3), (1, 1), (1, 1)))])
        self.post = n(nn.Conv2d(c, 1, (3, 3), (1, 1), (1, 1)))

    def forward(self, x):
        s = torch.stft(x, self.w, self.w // 4, window=self.win, return_complex=True)
        s = s[:, : int(s.shape[1] * self.limit)].transpose(1, 2)
        x = torch.stack([s.real, s.imag], 1) / (self.w / 16) ** 0.5
        maps = []
        for c in self.convs:
            x = F.leaky_relu(c(x), 0.1)
            maps.append(x)
        return self.post(x), maps


class Discriminators(nn.Module):
    """Period discriminators on 22.05 kHz, STFT ones on 44.1 kHz below ~10 kHz."""
    def __init__(self):
        super().__init__()
        self.period = nn.ModuleList(PeriodD(p) for p in (2, 3, 5, 7, 11))
        self.spec = nn.ModuleList(SpecD(w, 0.46) for w in (2048, 1024, 512))
        k = torch.arange(-24, 25).float()
        h = torch.sinc(k / 2) * torch.hann_window(51)[1:-1]
        self.register_buffer("low", (h / h.sum()).view(1, 1, -1), persistent=False)

    def forward(self, x):
        half = F.conv1d(x[:, None], self.low, padding=24)[:, 0, ::2]
        return [d(half) for d in self.period] + [d(x) for d in self.spec]


if __name__ == "__main__":
    c = Codec(SIZES)
    n = lambda m: sum(p.numel() for p in m.parameters()) * 4 / 1e6
    print("MB: all %.2f encoder %.2f quantizer %.2f decoder %.2f" % (n(c), n(c.encoder), n(c.quantizer), n(c.decoder)))
    x = torch.randn(2, 1, 2048 * 6) * 0.1
    y, codes, cm, bk, f = c(x, 0.5)
    print(y.shape, codes.shape, cm.item(), bk.item(), f.shape)
    print(MelLoss()(x[:, 0], y[:, 0]).item(), [a.shape for a, _ in Discriminators()(y[:, 0])])
