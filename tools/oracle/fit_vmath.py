#!/usr/bin/env python3
"""Fits the polynomials of src/backend/cpu/kernels/vmath.h: minimax by Lawson's weights in high precision, coefficients rounded to
float one at a time from the leading one that matters most. Needs mpmath and numpy. Prints C arrays and the error left."""
import mpmath as mp
import numpy as np

mp.mp.dps = 40


def solve(xs, fs, ws, powers):
    """Weighted least squares over the monomials x**powers, in high precision."""
    a = mp.matrix(len(xs), len(powers))
    b = mp.matrix(len(xs), 1)
    for i, x in enumerate(xs):
        for j, p in enumerate(powers):
            a[i, j] = ws[i] * x**p
        b[i] = ws[i] * fs[i]
    return list(mp.lu_solve(a.T * a, a.T * b))


def fit(name, target, weight, low, high, powers, points=120, rounds=12):
    """target(x) ~ sum c_p x**p with error * weight(x) as even as Lawson's iteration makes it."""
    xs = [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (i + mp.mpf(1) / 2) / points) for i in range(points)]
    fs = [target(x) for x in xs]
    base = [weight(x) for x in xs]
    done, left = {}, list(powers)
    while left:
        law = [mp.mpf(1)] * points
        rest = [f - sum(done[p] * x**p for p in done) for x, f in zip(xs, fs)]
        for _ in range(rounds):
            c = solve(xs, rest, [mp.sqrt(l) * w for l, w in zip(law, base)], left)
            err = [abs(f - sum(k * x**p for k, p in zip(c, left))) * w for x, f, w in zip(xs, rest, base)]
            top = max(err)
            if top == 0:
                break
            law = [l * (e / top + mp.mpf("1e-3")) for l, e in zip(law, err)]
        done[left[0]] = mp.mpf(float(np.float32(float(c[0]))))
        left = left[1:]
    err = max(abs(f - sum(done[p] * x**p for p in done)) * w for x, f, w in zip(xs, fs, base))
    print(f"/* {name}: error {float(err):.2e} */ " + ", ".join(f"{float(done[p]).hex()}f" for p in powers))


def split(value, parts):
    out = []
    for _ in range(parts):
        out.append(float(np.float32(float(value))))
        value -= mp.mpf(out[-1])
    return ", ".join(v.hex() + "f" for v in out)


one = lambda x: mp.mpf(1)
half = mp.log(2) / 2 + mp.mpf("1e-4")
fit("exp: (e^r - 1 - r) / r^2", lambda r: (mp.expm1(r) - r) / r**2, lambda r: r**2, -half, half, range(5))
s = mp.sqrt(2)
fit("log: (log(1+f) - f + f^2/2) / f^3", lambda f: (mp.log1p(f) - f + f * f / 2) / f**3, lambda f: abs(f**3 / mp.log1p(f)),
    1 / s - 1 - mp.mpf("1e-6"), s - 1 + mp.mpf("1e-6"), range(9))
fit("sin: (sin r - r) / r^3 in r^2", lambda r: (mp.sin(r) - r) / r**3, lambda r: r**3 / mp.sin(r), mp.mpf("1e-3"), mp.pi / 2 + mp.mpf("1e-3"),
    range(0, 9, 2))
fit("tanh: (tanh x - x) / x^3 in x^2", lambda x: (mp.tanh(x) - x) / x**3, lambda x: x**3 / mp.tanh(x), mp.mpf("1e-3"), mp.mpf("0.56"), range(0, 9, 2))
fit("erf: erf(x) / x - 1 in x^2", lambda x: mp.erf(x) / x - 1, lambda x: x / mp.erf(x), mp.mpf("1e-3"), mp.mpf("0.94"), range(0, 13, 2))
fit("erf: -log(erfc(a)) / a - 1 ", lambda a: -mp.log(mp.erfc(a)) / a - 1, lambda a: a * mp.erfc(a), mp.mpf("0.91"), mp.mpf("4.0"), range(8))
print("ln2:", split(mp.log(2), 3), "  with a short first part:", float(np.float32(0.693359375)).hex(), split(mp.log(2) - mp.mpf(0.693359375), 1))
print("pi:", split(mp.pi, 4))
bits = int(mp.floor(2 / mp.pi * mp.mpf(2) ** 0))
mp.mp.dps = 120
frac = 2 / mp.pi
words = []
for _ in range(8):
    frac *= mp.mpf(2) ** 32
    w = int(mp.floor(frac))
    words.append(f"0x{w:08X}u")
    frac -= w
print("2/pi:", ", ".join(words))
