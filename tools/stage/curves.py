"""Curves of training logs (train_codec.py's log-codec.txt, train_lm.py's log-lm.txt) as one PNG.

    python curves.py --out curves.png --codec log-codec.txt [more in order] --lm log-lm.txt [more]
"""
import argparse
import ast
import re

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def codec(paths):
    """-> rows of (step over all files, mel, phone loss), steps at which files begin"""
    rows, begins, offset = [], [], 0
    for path in paths:
        begins.append(offset)
        last = first = None
        for line in open(path):
            m = re.search(r"step (\d+) .*? mel ([\d.]+) phone ([\d.]+)", line)
            if m:
                last = int(m[1])
                first = last if first is None else first
                rows.append((offset + last, float(m[2]), float(m[3])))
        offset = rows[-1][0]
    return rows, begins


def lm(paths):
    """-> training rows (step, losses), held-out rows (step, losses)"""
    train, held = [], []
    for path in paths:
        for line in open(path):
            m = re.search(r"step (\d+) .*? norm [\d.]+ (\{.*?\}) held-out ?(.*)", line)
            if not m:
                continue
            train.append((int(m[1]), next(iter(ast.literal_eval(m[2]).values()))))
            if m[3].strip():
                # a score and two lists, or one list
                lists = [ast.literal_eval(x) for x in re.findall(r"\[[^\[\]]*\]", m[3])]
                held.append((int(m[1]), lists[0]))
    return train, held


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--codec", nargs="+", required=True)
    p.add_argument("--lm", nargs="+", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--title", default="")
    a = p.parse_args()
    fig, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    rows, begins = codec(a.codec)
    for axis, column, name in ((axes[0], 1, "codec: mel distance"), (axes[1], 2, "codec: phone loss of code 0, nats")):
        axis.plot([r[0] for r in rows], [r[column] for r in rows], ".-", color="tab:blue")
        for b in begins[1:]:
            axis.axvline(b, color="gray", linestyle=":")
        axis.set_title(name)
    axes[0].set_yscale("log")
    train, held = lm(a.lm)
    for index, name, color in ((0, "main token", "tab:red"), (1, "code 1", "tab:green"), (7, "code 7", "tab:purple")):
        axes[2].plot([s for s, _ in train], [x[index] for _, x in train], "-", color=color, label=name)
        axes[2].plot([s for s, _ in held], [x[index] for _, x in held], "o--", color=color, label=name + ", held out")
    axes[2].set_title("language model: loss, nats")
    axes[2].legend(fontsize=7)
    for axis in axes:
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    fig.suptitle(a.title)
    fig.savefig(a.out, dpi=90)


if __name__ == "__main__":
    main()
