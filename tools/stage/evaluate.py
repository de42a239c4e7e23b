"""Regenerate the table of models/stage/README.md: speak with the program, judge, print. tools/stage/evaluate prepares what it needs.

    python evaluate.py --program build/release/thespis --flite ROOT --text TEXT --out OUT [--sets ...] [--judges ...]

Every take is a WAV file in OUT/SET and every judgement a line of OUT/judged.jsonl; what is there is kept, so a run that was stopped goes
on, and --sets and --judges do a part. The table says how many takes each figure is from.

Sets: source = the source voices themselves (flite); rt = those through the codec and back; tag = the 60 sentences in 4 voices, seeds 1
to 3; clone = 20 sentences cloned from references of about 3 s of a source voice; strange = from a voice never trained on (espeak-ng);
long = 20 sentences of 12 to 25 words; two = two sentences in one text; history = three sentences, each heard by the next; speakers = two
speakers in one text; speed = single runs of the program, for time and memory.
Judges: default, bigram = words by pocketsphinx; pick = sentence out of the 60; align = where words end; silence; voice = Resemblyzer;
mos = DNSMOS.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time

import numpy as np
from scipy.io import wavfile

import judge
import table

VOICES = ["slt", "awb", "rms", "kal16"]
STRANGE = {"espeak-m": "en-us", "espeak-f": "en-us+f3"}
LIMIT = 330  # frames
SETS = ["source", "rt", "tag", "clone", "long", "two", "history", "speakers", "source-long", "strange", "speed"]
JUDGES = {"source": "default bigram pick align silence voice mos", "rt": "default bigram pick voice mos",
          "tag": "default pick align silence bigram voice mos", "clone": "default voice", "long": "default", "source-long": "default",
          "two": "default", "history": "default", "speakers": "default voice", "strange": "default voice"}


def run(command, **more):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


class Takes:
    """What there is to speak: {"name", "set", "voice", "text" and what the set needs}."""

    def __init__(self, a):
        self.a = a
        self.held = [line.strip() for line in open(a.text + "/heldout.txt")]
        self.long = [line.strip() for line in open(a.text + "/heldout-long.txt")]
        self.few = range(0, 60, 3)

    def path(self, take):
        return f"{self.a.out}/{take['set']}/{take['name']}.wav"

    def references(self, voice, count=5):
        """Source takes nearest to 3 seconds, as sentence numbers."""
        length = [len(judge.read(f"{self.a.out}/source/{VOICES[voice]}-{k:02d}.wav")) / judge.RATE for k in range(60)]
        return sorted(range(60), key=lambda k: abs(length[k] - 3.0))[:count]

    def of(self, name):
        make = getattr(self, "make_" + name.replace("-", "_"))
        return [dict(take, set=name) for take in make()]

    def make_source(self):
        return [dict(name=f"{v}-{k:02d}", voice=i, text=t, number=k) for k, t in enumerate(self.held) for i, v in enumerate(VOICES)]

    make_rt = make_source

    def make_source_long(self):
        return [dict(name=f"{v}-{k:02d}", voice=i, text=t, number=k) for k, t in enumerate(self.long) for i, v in enumerate(VOICES)]

    def tagged(self, seeds, texts, numbers):
        return [dict(name=f"{v}-{k:02d}-{s}", voice=i, text=texts[k], number=k, seed=s, say=f"<|speaker:{i}|> {texts[k]}")
                for s in seeds for k in numbers for i, v in enumerate(VOICES)]

    def make_tag(self):
        return self.tagged((1, 2, 3), self.held, range(60))

    def make_long(self):
        return self.tagged((1,), self.long, range(20))

    def make_clone(self):
        out = []
        for i, v in enumerate(VOICES):
            near = self.references(i)
            for n, k in enumerate(self.few):
                r = next(x for x in near[n % 5:] + near if x != k)
                out.append(dict(name=f"{v}-{k:02d}-1", voice=i, text=self.held[k], number=k, seed=1, say=self.held[k],
                                ref=f"{self.a.out}/source/{v}-{r:02d}.wav", ref_text=self.held[r]))
        return out

    def make_strange(self):
        out = []
        for name, voice in STRANGE.items():
            for n, k in enumerate(self.few):
                r = (k + 17) % 30
                ref = f"{self.a.out}/strange/ref-{name}-{r:02d}.wav"
                if not os.path.exists(ref):
                    os.makedirs(os.path.dirname(ref), exist_ok=True)
                    run(["espeak-ng", "-v", voice, "-w", ref, self.held[r]])
                out.append(dict(name=f"{name}-{k:02d}-1", voice=name, text=self.held[k], number=k, seed=1, say=self.held[k], ref=ref,
                                ref_text=self.held[r]))
        return out

    def joined(self, count, tag_second=False, step=0):
        out = []
        for n in range(10):
            parts = [self.held[(n * 3 + j * 30 + j) % 60] for j in range(count)]
            for i, v in enumerate(VOICES):
                j = (i + 1 + n % 3) % 4
                between = f"\n<|speaker:{j}|> " if tag_second else " "
                out.append(dict(name=f"{v}-{n:02d}-1", voice=i, number=n, second=j, cut=len(judge.words(parts[0])), text=" ".join(parts), seed=1,
                                say=f"<|speaker:{i}|> " + between.join(parts)))
                if not tag_second:
                    del out[-1]["cut"], out[-1]["second"]
        return out

    def make_two(self):
        return self.joined(2)

    def make_history(self):
        return self.joined(3)

    def make_speakers(self):
        return self.joined(2, tag_second=True)


def speak(a, takes, todo):
    """One batch of the program for all takes of a set."""
    lines = []
    for t in todo:
        line = dict(text=t["say"], out=takes.path(t), seed=t["seed"])
        if "ref" in t:
            line.update(ref=t["ref"], ref_text=t["ref_text"])
        lines.append(json.dumps(line))
    name = todo[0]["set"]
    with open(f"{a.out}/{name}.jsonl", "w") as f:
        f.write("\n".join(lines) + "\n")
    extra = ["--granularity", "sentence"] if name == "history" else []
    run([a.program, "speak", "--checkpoint", a.checkpoint, "--batch", f"{a.out}/{name}.jsonl", "--lanes", 2, "--max-frames", LIMIT, *extra])


def synthesise(a, takes, todo):
    env = dict(os.environ, LD_LIBRARY_PATH=a.flite + "/usr/lib/x86_64-linux-gnu")
    for t in todo:
        run([a.flite + "/usr/bin/flite", "-voice", VOICES[t["voice"]], "-t", t["text"], "-o", takes.path(t)], env=env)


def round_trip(a, takes, todo):
    for t in todo:
        codes = takes.path(t)[:-4] + ".npy"
        run([a.program, "encode", "--checkpoint", a.checkpoint, "--out", codes, f"{a.out}/source/{t['name']}.wav"])
        run([a.program, "decode", "--checkpoint", a.checkpoint, "--out", takes.path(t), codes])


def make(a, takes, name):
    every = takes.of(name)
    if name != "source":  # references are chosen among all of those
        every = [t for t in every if t["number"] % a.every == 0]
    os.makedirs(f"{a.out}/{name}", exist_ok=True)
    todo = [t for t in every if not os.path.exists(takes.path(t))]
    if todo:
        (synthesise if name.startswith("source") else round_trip if name == "rt" else speak)(a, takes, todo)
    return [t for t in every if t["number"] % a.every == 0]


def speed(a):
    """Single runs: real time, first audio, resident memory; with the machine's load, for others may be using it."""
    if os.path.exists(a.out + "/speed.json") and "speed" not in a.again:
        return
    rows = []
    for n, text in enumerate(Takes(a).held[:12]):
        child = subprocess.Popen([a.program, "speak", "--checkpoint", a.checkpoint, "--seed", str(n), "--out", a.out + "/speed.wav", text],
                                 stderr=subprocess.PIPE, text=True)
        said = child.stderr.read()
        _, status, used = os.wait4(child.pid, 0)
        found = re.search(r"first audio after ([\d.]+) s, ([\d.]+)x", said)
        if status or not found:
            raise SystemExit(said)
        rows.append(dict(first=float(found[1]), rate=float(found[2]), mib=used.ru_maxrss / 1024, load=os.getloadavg()[0]))
    json.dump(rows, open(a.out + "/speed.json", "w"))


# ---------------------------------------------------------------------------------------------------------------------- judging
class Judged:
    """judged.jsonl: {"set", "name", "judge", "is"}"""

    def __init__(self, path):
        self.path, self.known = path, {}
        if os.path.exists(path):
            for line in open(path):
                x = json.loads(line)
                self.known[x["set"], x["name"], x["judge"]] = x["is"]

    def get(self, take, name):
        return self.known.get((take["set"], take["name"], name))

    def add(self, take, name, value):
        self.known[take["set"], take["name"], name] = value
        with open(self.path, "a") as f:
            f.write(json.dumps({"set": take["set"], "name": take["name"], "judge": name, "is": value}) + "\n")


def make_judge(a, name, takes):
    if name == "bigram":
        if not os.path.exists(a.out + "/lm/lm.arpa"):
            judge.make_lm(a.text, a.out + "/lm")
        return judge.Words(a.out + "/lm")
    return {"default": judge.Words, "pick": lambda: judge.Sentence(takes.held), "align": judge.Align, "silence": judge.Silence,
            "voice": lambda: judge.Voice(judge.Align()), "mos": judge.Mos}[name]()


def know_strangers(a, judged, makers, takes):
    """The mean of each strange voice's references, for the table."""
    makers.setdefault("voice", make_judge(a, "voice", takes))
    out = {}
    for name in STRANGE:
        refs = [f for f in sorted(os.listdir(a.out + "/strange")) if f.startswith(f"ref-{name}-")]
        mean = np.mean([makers["voice"].embed(judge.read(f"{a.out}/strange/{f}")) for f in refs], 0)
        out[name] = [round(float(x), 4) for x in mean / np.linalg.norm(mean)]
    judged.add({"set": "strange", "name": "references"}, "voice", out)


def judge_set(a, takes, every, judged, makers):
    name = every[0]["set"]
    if name == "strange" and (not a.judges or "voice" in a.judges):
        know_strangers(a, judged, makers, takes)
    for j in JUDGES[name].split():
        if a.judges and j not in a.judges:
            continue
        todo = [t for t in every if judged.get(t, j) is None]
        if j in ("mos", "voice") and name in ("source", "rt", "tag"):  # 20 sentences of each voice, one seed
            todo = [t for t in todo if t["number"] in takes.few and t.get("seed", 1) == 1]
        if a.seed_one:
            todo = [t for t in todo if t.get("seed", 1) == 1]
        start = time.time()
        for t in todo:
            if j not in makers:
                makers[j] = make_judge(a, j, takes)
            judged.add(t, j, makers[j](judge.read(takes.path(t)), t))
        if todo:
            print(f"{name}: {j}, {len(todo)} takes, {time.time() - start:.0f} s", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--program", required=True)
    p.add_argument("--checkpoint", default=os.path.join(here, "../../models/stage"))
    p.add_argument("--flite", required=True, help="root with usr/bin/flite and usr/lib")
    p.add_argument("--text", required=True, help="folder of make_text.py")
    p.add_argument("--out", required=True)
    p.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    p.add_argument("--judges", nargs="+", help="only these")
    p.add_argument("--seed-one", action="store_true", help="of the set tag, judge seed 1 alone")
    p.add_argument("--every", type=int, default=1, help="only every n-th sentence, to begin with")
    p.add_argument("--again", nargs="*", default=[], help="speed: measure anew")
    p.add_argument("--table", action="store_true", help="only print the table of what is judged")
    a = p.parse_args()
    a.out = os.path.abspath(a.out)
    os.makedirs(a.out, exist_ok=True)
    takes, judged, makers = Takes(a), Judged(a.out + "/judged.jsonl"), {}
    if not a.table:
        for name in a.sets:
            if name == "speed":
                speed(a)
            else:
                judge_set(a, takes, make(a, takes, name), judged, makers)
    print(table.markdown(a, takes, judged))


if __name__ == "__main__":
    sys.exit(main())
