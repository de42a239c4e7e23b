"""The table of models/stage/README.md from what evaluate.py has judged. Each figure tells from how many takes it is."""
import json
import os

import numpy as np
from scipy.io import wavfile

import judge

VOICES = ["slt", "awb", "rms", "kal16"]
WORD_ROWS = [("source", "the source voices' own audio (flite)"), ("rt", "that through the codec and back"), ("tag", "spoken, voice by tag"),
             ("clone", "cloned from about 3 s of a source voice"), ("strange", "cloned from about 3 s of a voice never trained on"),
             ("long", "12 to 25 words, by tag"), ("source-long", "the source voices on those"), ("two", "two sentences in one text"),
             ("history", "three sentences, each with those before it as finished turns"), ("speakers", "two speakers in one text")]


def accuracy(takes, judged, name):
    """-> words recognised (1 - edits / words), takes; by all and by voice"""
    wrong, total, count = {}, {}, 0
    for t in takes:
        heard = judged.get(t, name)
        if heard is None:
            continue
        want = judge.words(t["text"])
        error = min(len(want), judge.edits(want, judge.words(heard)))
        count += 1
        for key in ("all", t["voice"]):
            wrong[key], total[key] = wrong.get(key, 0) + error, total.get(key, 0) + len(want)
    return {k: 1 - wrong[k] / total[k] for k in total}, count


def word_table(sets, judged):
    out = ["| words recognised | takes | all | " + " | ".join(VOICES) + " |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for name in ("default", "bigram"):
        for key, what in WORD_ROWS:
            got, n = accuracy(sets[key], judged, name)
            if n:
                cells = [f"{got[v]:.3f}" if v in got else "" for v in ("all", 0, 1, 2, 3)]
                out.append(f"| {what}{' (bigram of the training text)' if name == 'bigram' else ''} | {n} | " + " | ".join(cells) + " |")
    return out


def same_takes(sets, judged, name, judge_name="default"):
    """Words of `name` and of the source on the same sentences and voices: the difference that the bound is about."""
    have = [t for t in sets[name] if judged.get(t, judge_name) is not None]
    source = {(t["voice"], t["number"]): t for t in sets["source"]}
    pairs = [(t, source[t["voice"], t["number"]]) for t in have if judged.get(source[t["voice"], t["number"]], judge_name) is not None]
    return accuracy([t for t, _ in pairs], judged, judge_name)[0], accuracy([s for _, s in pairs], judged, judge_name)[0], len(pairs)


def values(takes, judged, name):
    return [(t, judged.get(t, name)) for t in takes if judged.get(t, name) not in (None, [])]


def share(good, n):
    return f"{sum(good)} of {n} ({100 * sum(good) / n:.1f} %)"


def length(takes, take):
    with open(takes.path(take), "rb") as f:
        rate, wave = wavfile.read(f)
    return len(wave) / rate


def ends(takes, sets, judged, limit):
    out = []
    for t, e in values(sets["tag"], judged, "align"):
        out.append(length(takes, t) - e[-1])
    if out:
        good = [x <= 0.6 for x in out]
        yield "ends within 0.6 s of its last word", share(good, len(out)) + f"; median {np.median(out):.2f} s, longest {max(out):.2f} s"
    quiet = values(sets["tag"], judged, "silence")
    if quiet:
        yield "falls silent (1 s or more 45 dB below its loudest)", share([v >= 1 for _, v in quiet], len(quiet))
    ratio = []
    source = {(t["voice"], t["number"]): t for t in sets["source"]}
    frames = []
    for t in sets["tag"]:
        if os.path.exists(takes.path(t)):
            seconds = length(takes, t)
            ratio.append(seconds / length(takes, source[t["voice"], t["number"]]))
            frames.append(seconds * 44100 / 2048)
    if ratio:
        yield "loops (longer than 1.5 times the source voice's take)", share([r > 1.5 for r in ratio], len(ratio)) + f"; longest {max(ratio):.2f} times"
        yield "runs into the frame limit", share([f >= limit - 1 for f in frames], len(frames))


def centroids(sets, judged):
    out = []
    for v in range(4):
        got = [e for t, e in values(sets["source"], judged, "voice") if t["voice"] == v]
        if not got:
            return None
        out.append(np.mean(got, 0) / np.linalg.norm(np.mean(got, 0)))
    return np.array(out)


def likeness(sets, judged):
    middle = centroids(sets, judged)
    if middle is None:
        return
    for name, what in (("rt", "codec's round trip"), ("tag", "by tag"), ("clone", "cloned from 3 s")):
        rows = [(t["voice"], middle @ np.array(e)) for t, e in values(sets[name], judged, "voice")]
        if rows:
            own, other = [s[v] for v, s in rows], [max(np.delete(s, v)) for v, s in rows]
            yield f"nearest to its own voice, {what}", share([a > b for a, b in zip(own, other)], len(rows)) + f"; cosine {np.mean(own):.2f} to its own, {np.mean(other):.2f} to the next"
    good = [int(np.argmax(middle @ np.array(part))) == v for t, e in values(sets["speakers"], judged, "voice") if len(e) == 2 and all(e)
            for part, v in zip(e, (t["voice"], t["second"]))]
    if good:
        yield "each half of a text of two speakers nearest to its own", share(good, len(good))
    rows = values(sets["strange"], judged, "voice")
    refs = {n: np.array(e) for n, e in judged.known.get(("strange", "references", "voice"), {}).items()}
    for name in refs:
        got = np.array([e for t, e in rows if t["voice"] == name])
        if len(got):
            near = [VOICES[int(np.argmax(middle @ e))] for e in got]
            yield (f"voice never trained on, {name}", f"cosine {np.mean(got @ refs[name]):.2f} to it, {np.mean(np.max(got @ middle.T, 1)):.2f} to the nearest trained voice; sounds like "
                   + ", ".join(f"{v} {near.count(v)}" for v in VOICES if v in near) + f" of {len(near)}")


def figures(a, takes, sets, judged):
    for name in ("tag", "clone", "rt"):
        ours, source, n = same_takes(sets, judged, name)
        if n:
            yield f"words behind the source voices on the same {n} takes, {name}", f"{100 * (source['all'] - ours['all']):.1f} points ({ours['all']:.3f}, {source['all']:.3f})"
    for name in ("source", "rt", "tag"):
        got = values(sets[name], judged, "pick")
        if got:
            yield f"right sentence out of 60, {name}", share([v == t["number"] for t, v in got], len(got))
    yield from ends(takes, sets, judged, 330)
    yield from likeness(sets, judged)
    for name in ("source", "rt", "tag"):
        got = values(sets[name], judged, "mos")
        if got:
            by = [np.mean([v for t, v in got if t["voice"] == i]) for i in range(4)]
            yield f"DNSMOS overall, {name}", f"{np.mean([v for _, v in got]):.2f} (" + ", ".join(f"{v} {x:.2f}" for v, x in zip(VOICES, by)) + f"; {len(got)} takes)"
    if os.path.exists(a.out + "/speed.json"):
        rows = json.load(open(a.out + "/speed.json"))
        middle = {k: np.median([r[k] for r in rows]) for k in rows[0]}
        yield (f"speed, first audio, resident memory ({len(rows)} runs, {os.cpu_count()} processors, load {middle['load']:.1f})",
               f"{middle['rate']:.1f}x real time, {middle['first']:.2f} s, {max(r['mib'] for r in rows):.0f} MiB")


def markdown(a, takes, judged):
    sets = {name: takes.of(name) if os.path.isdir(f"{a.out}/{name}") else [] for name, _ in WORD_ROWS}
    out = word_table(sets, judged) + ["", "| measured | |", "| --- | --- |"]
    return "\n".join(out + [f"| {what} | {value} |" for what, value in figures(a, takes, sets, judged)])
