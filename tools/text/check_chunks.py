#!/usr/bin/env python3
"""Check how long text is cut: what must hold for every text, and what mlx-audio's public tests expect of its own cutting.

    python check_chunks.py --program BUILD/test_chunk [--texts 100000] [--seed 1] [--mlx-audio fetch|none|FOLDER]

Random texts in twelve scripts are cut in every granularity. Whatever is checked is worked out here once more, by other means: spans and line
breaks with regular expressions, graphemes with the `regex` package (left out, and said so, where that is missing). mlx-audio 0.6.2 is
fetched from the package index with pip (or read from FOLDER, which holds its unpacked package); its test cases run against our cutting and
its own cutting is compared with ours on plain prose. Nothing of it is kept.
"""

import argparse
import ast
import glob
import importlib.util
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

import re

try:
    import regex
except ImportError:
    regex = None

NONE, AUTO, SENTENCE, CLAUSE = range(4)
WHITE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
BREAK = re.compile("[\n\r\v\f\x85\u2028\u2029]")
RUN = re.compile(f"[{WHITE}]+")
TAG = re.compile(r"<\|speaker:(\d|1[0-5])\|>")
CUE = re.compile(r"\[[^\[\]]*\]")
DIGITS = re.compile("[0-9]{2}")
PAIR = re.compile(r"<(\w+)>[^<>]*</\1>")

LANGUAGES = {
    "latin": ("Hello world, the quick brown fox; Überraschung était là naïve", " ", ". ! ? , ; : ..."),
    "greek": ("Καλημέρα κόσμε πώς είσαι σήμερα", " ", ". ; ! ,"),
    "cyrillic": ("Привет мир как дела сегодня хорошо", " ", ". ! ? ,"),
    "arabic": ("مرحبا بالعالم كيف حالك اليوم", " ", ". ؟ ! ، ؛"),
    "urdu": ("آپ کیسے ہیں آج موسم اچھا", " ", "۔ ؟ ،"),
    "hebrew": ("שלום עולם מה שלומך היום", " ", ". ? ,"),
    "devanagari": ("नमस्ते दुनिया आप कैसे हैं क्षत्रिय", " ", "। ॥ ? ,"),
    "thai": ("สวัสดีชาวโลกวันนี้เป็นอย่างไรบ้าง น้ำใจ", "", " "),
    "chinese": ("你好世界今天天气怎么样我们去公园", "", "。 ！ ？ ， 、 ； ： ……"),
    "japanese": ("こんにちは世界カタカナ漢字がぎぐ", "", "。 ！ ？ 、 」"),
    "korean": ("안녕하세요 세계 오늘 날씨가 좋네요", " ", ". ! ? ,"),
    "ethiopic": ("ሰላም ለዓለም እንዴት ነህ", " ", "። ፧ ፣"),
}
ODD = ["😀", "👩\u200d👩\u200d👧", "🇩🇪", "e\u0301\u0323", "3.14", "1,000.50", "12:30", "Dr.", "U.S.", "e.g.", "\u200b", "—", '"', "(", ")"]
SPACES = [" ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", "\u3000", "\u2028", " \n "]
SPANS = ["[laughs]", "[one. two, three]", "<whisper>soft, low.</whisper>", "<br/>", "<|token|>", "[" + "long, " * 60 + "]"]


def cut(program, cases):
    """[(granularity, target, speakers, text)] -> for each a list of (source begin, source end, speakers, speaks, text)."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in"), os.path.join(folder, "out")
        with open(source, "wb") as handle:
            for granularity, limit, speakers, text in cases:
                data = text.encode()
                handle.write(struct.pack("<4I", granularity, limit, speakers, len(data)) + data)
        subprocess.run([program, "cut", source, target], check=True)
        with open(target, "rb") as handle:
            data = handle.read()
    at, results = 0, []
    for _ in cases:
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        chunks = []
        for _ in range(count):
            *head, size = struct.unpack_from("<5I", data, at)
            chunks.append((*head, data[at + 20 : at + 20 + size].decode()))
            at += 20 + size
        results.append(chunks)
    return results


# ---- random texts ----


def random_text(rng):
    words, space, marks = rng.choice(list(LANGUAGES.values()))
    pieces, tagged = [], rng.random() < 0.3
    long_words = not space
    for _ in range(rng.choice((3, 10, 30, 80, 200))):
        if long_words:
            begin = rng.randrange(len(words))
            pieces.append(words[begin : begin + rng.randrange(1, 20)])
        else:
            pieces.append(rng.choice(words.split()))
        kind = rng.random()
        if kind < 0.2:
            pieces.append(rng.choice(marks.split() or [" "]))
        elif kind < 0.26:
            pieces.append(rng.choice(ODD))
        elif kind < 0.29:
            pieces.append(rng.choice(SPANS))
        elif kind < 0.33 and tagged:
            pieces.append(f"<|speaker:{rng.randrange(16)}|>")
        if space or kind > 0.95:
            pieces.append(rng.choice(SPACES) if rng.random() < 0.97 else "")
    return "".join(pieces)


def fold(text):
    def one(match):
        if not BREAK.search(match.group()):
            return match.group()
        return "" if match.start() == 0 or match.end() == len(text) else " "

    return RUN.sub(one, text)


def bare(text):
    return RUN.sub("", TAG.sub("", text))


def turns_of(text):
    """What a chunk must read like that came from this source."""
    parts = TAG.split(text)
    turns = [(None, parts[0])] + list(zip(parts[1::2], parts[2::2]))
    return [(speaker, fold(body).strip(WHITE)) for speaker, body in turns if body.strip(WHITE)]


def clusters_cut(text, cuts, limit):
    """Cuts (code point positions) inside a grapheme cluster that would have fitted."""
    inside = set()
    for match in regex.finditer(r"\X", text):
        if match.end() - match.start() > 1 and len(match.group().encode()) <= limit:
            inside.update(range(match.start() + 1, match.end()))
    return [at for at in cuts if at in inside]


def problems(case, chunks):
    granularity, target, speakers, text = case
    data = text.encode()
    tagged = TAG.search(text) is not None
    if [c[0] for c in chunks] != [0] + [c[1] for c in chunks[:-1]] or chunks[-1][1] != len(data):
        return "the ranges do not tile the text"
    if len(chunks) == 1 and chunks[0][4] == text:
        few = len(data) <= target and chunks[0][2] <= speakers
        return None if granularity == NONE or few or text == fold(text).strip(WHITE) else "untouched, though it does not fit"
    if granularity == NONE:
        return "cut under NONE"
    cuts = []
    for begin, end, many, _, chunk in chunks:
        source = data[begin:end].decode()
        cuts.append(len(data[:begin].decode()))
        if bare(source) != bare(chunk):
            return "a chunk does not hold what its source holds"
        if not tagged and chunk != fold(source).strip(WHITE):
            return "a chunk's white space differs"
        if tagged:
            lines = chunk.split("\n")
            if not all(re.match(r"<\|speaker:\d+\|> \S", line) for line in lines):
                return "a line of a chunk has no tag"
            if many != len({TAG.match(line).group(1) for line in lines}) or many > speakers:
                return "too many speakers, or miscounted"
            bodies = [TAG.sub("", line)[1:] for line in lines]
            if bodies != [body for _, body in turns_of(source)]:
                return "a turn's white space differs"
        if len(chunk.encode()) > target:
            spans = [m.group() for p in (CUE, PAIR) for m in p.finditer(chunk)]
            if not any(len(span.encode()) + 15 > target for span in spans):
                return "longer than the target without a reason"
        elif "\n" in chunk and not tagged:
            return "a line break is left"
    for pattern in (CUE, PAIR):
        for match in pattern.finditer(text):
            if any(match.start() < at < match.end() for at in cuts) and not TAG.search(match.group()):
                return "a span is cut"
    for at in cuts[1:]:
        if DIGITS.match(text, at - 1):
            return "a number is cut"
    if regex is not None and clusters_cut(text, cuts, target - 15):
        return "a grapheme is cut"
    return None


def check_random(program, count, seed):
    rng, wrong, chunks_seen, done = random.Random(seed), 0, 0, 0
    while done < count:
        cases = []
        for _ in range(min(10_000, count - done)):
            text = random_text(rng)
            target = rng.choice((60, 100, 300, 300, 300))
            cases.append((rng.choice((NONE, AUTO, AUTO, AUTO, SENTENCE, CLAUSE)), target, rng.choice((1, 2, 3, 3)), text))
        for case, chunks in zip(cases, cut(program, cases)):
            chunks_seen += len(chunks)
            problem = problems(case, chunks) if case[3].strip(WHITE) else ("chunks of a blank" if chunks else None)
            if problem:
                wrong += 1
                if wrong <= 5:
                    print(f"{problem}: {case!r}\n   {[c[4] for c in chunks]!r}")
        done += len(cases)
    print(f"random: {done} texts in {len(LANGUAGES)} scripts, {chunks_seen} chunks, {wrong} texts wrong", flush=True)
    if regex is None:
        print("random: graphemes were not checked: the package `regex` is missing")
    return wrong


# ---- mlx-audio ----


def package_folder(folder, where):
    if where != "fetch":
        return where
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", folder, "mlx-audio==0.6.2"]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(glob.glob(os.path.join(folder, "mlx_audio-*.whl"))[0]) as wheel:
        wheel.extractall(folder)
    return folder


def forced(text):
    """The text with line breaks after it: they fold away, but the text is too long to be left untouched."""
    return text + "\n" * 301


def their_tests(program, folder):
    """Their test cases of cutting, taken from the file's syntax tree because its imports need their framework, run on ours."""

    def split_text(text, limit=300, max_speakers=3):
        return [c[4] for c in cut(program, [(AUTO, limit, max_speakers, forced(text))])[0]]

    def flatten_lines(text):  # ours trims the edges of a chunk: what is in between is compared
        inner = text.strip(WHITE)
        head = text[: text.index(inner)]
        return head + cut(program, [(AUTO, 10**6, 3, forced(inner) + "\n" * 10**6)])[0][0][4] + text[len(head) + len(inner) :]

    path = os.path.join(folder, "mlx_audio", "tts", "tests", "test_fish_drama3.py")
    with open(path, encoding="utf-8") as handle:
        tree = ast.parse(handle.read())
    (tests,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "TestChunking"]
    cutting = [n for n in tests.body if isinstance(n, ast.FunctionDef) and {"split_text", "flatten_lines"} & {
        name.id for name in ast.walk(n) if isinstance(name, ast.Name)}]
    tests.body = cutting
    names = {"unittest": unittest, "split_text": split_text, "flatten_lines": flatten_lines}
    exec(compile(ast.Module([tests], []), path, "exec"), names)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(names["TestChunking"])
    result = unittest.TextTestRunner(verbosity=0, stream=sys.stdout).run(suite)
    print(f"mlx-audio: {result.testsRun} test cases of its cutting, {len(result.failures) + len(result.errors)} fail on ours")
    return len(result.failures) + len(result.errors) + (0 if result.testsRun >= 8 else 1)


def compare_prose(program, folder, count, seed):
    """Plain prose: ours needs no more chunks than theirs, as both fill them in order and ours does not count the blanks at the edges."""
    path = os.path.join(folder, "mlx_audio", "tts", "models", "fish_drama3", "chunking.py")
    spec = importlib.util.spec_from_file_location("chunking", path)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    rng, texts = random.Random(f"prose {seed}"), []
    for _ in range(count):
        words, _, _ = LANGUAGES[rng.choice(("greek", "cyrillic", "korean"))]
        words = re.sub(r"[^\w ]", "", words).split()
        sentences = [" ".join(rng.choice(words) for _ in range(rng.randrange(3, 15))) for _ in range(rng.randrange(5, 40))]
        texts.append("".join(s + rng.choice(".!?") + " " for s in sentences).replace("; ", ". "))
    wrong = equal = 0
    for text, chunks in zip(texts, cut(program, [(AUTO, 300, 3, t) for t in texts])):
        ours, other = [c[4] for c in chunks], theirs.split_text(text)
        equal += ours == other
        if len(ours) > len(other) or " ".join(ours) != " ".join(other):
            wrong += 1
            if wrong <= 3:
                print(f"prose: ours {ours}\n       theirs {other}")
    print(f"mlx-audio: {count} texts of prose, {equal} cut the same, {wrong} with more chunks or other words")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mlx-audio", default="fetch")
    args = parser.parse_args()
    wrong = check_random(args.program, args.texts, args.seed)
    if args.mlx_audio != "none":
        with tempfile.TemporaryDirectory() as folder:
            package = package_folder(folder, args.mlx_audio)
            wrong += their_tests(args.program, package)
            wrong += compare_prose(args.program, package, 2000, args.seed)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
