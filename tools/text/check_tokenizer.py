#!/usr/bin/env python3
"""Compare our tokenizer with the `tokenizers` package, id for id.

    python check_tokenizer.py --program BUILD/test_text_vectors [--strings 1000000] [--tokenizer tokenizer.json ...]
    python check_tokenizer.py --write-vectors tests/vectors/text

Without --tokenizer four synthetic ones are built: "letters" and "marks" (the two split patterns), "added" (tokens looked for in normalised
text, stripping ones, overlapping ones) and "whole" (ignore_merges, merges spelt as strings). Each is given every code point in several
contexts and its share of the random strings. Exit status 1 when any id differs.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LETTERS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MARKS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SURROGATES = range(0xD800, 0xE000)

LANGUAGES = """The boat isn't far; we'll row it home by 10:45, she said.|Das große Haus steht über dem Fluß.|Où étiez-vous, déjà là-bas ?
El niño comió mañana.|Não há pão.|Žluťoučký kůň úpěl ďábelské ódy.|Zażółć gęślą jaźń.|Привет, мир! Как дела?|Καλημέρα κόσμε.|İstanbul'da ışık.
Tiếng Việt có dấu.|नमस्ते दुनिया, कैसे हैं आप?|வணக்கம் உலகம்|สวัสดีชาวโลก|سلام دنیا، حال شما؟|שָׁלוֹם עוֹלָם|你好，世界。|こんにちは、世界！|안녕하세요 세계
বাংলা ভাষা|ትግርኛ ሰላም|ગુજરાતી|ქართული ენა|Հայերեն|ខ្មែរ|မြန်မာ|𝔘𝔫𝔦 👩‍👩‍👧 é ñ""".replace("\n", "|").split("|")

PIECES = (
    list("abcdefgstvmlrXYZSTVML'’`\"-.,;:!?()[]{}<>|/\\@#$%^&*_+=~0123456789")
    + [" "] * 12 + ["  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", " \n", "\n ", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u180e", "\u200b"]
    + ["\u2000", "\u2001", "\u2028", "\u3000", "\ufeff", "\u202f", "\u205f", "\u1680"]
    + ["'s", "'T", "'rE", "'Ve", "'m", "'LL", "'d", "'\u017f", "'llama", "'Re", "x'", " '", "''s", "'l", "'v"]
    + ["\u0301", "\u0323", "\u0300", "\u0308", "\u0327", "\u20dd", "\u093c", "\u094d", "\u0e33", "\u0e31", "\u05b4", "\u3099", "\u309a"]
    + ["\u07fd", "\u0898", "\u08ca", "\u09fe", "\u0c3c", "\u1ac1", "\u1df6", "\U00010d24", "\U00011930", "\U00011935", "\U0001e2ec"]
    + ["é", "e\u0301", "ñ", "Å", "\u212b", "\u2126", "\u212a", "\u1fef", "\u037e", "\u0958", "\u0915\u093c", "\u1e9b\u0323", "\ufb1d", "\u0344"]
    + ["가", "\u1100", "\u1161", "\u11a8", "각", "\u1100\u1161", "你", "好", "こ", "が", "か\u3099", "с", "й", "и\u0306", "ß", "ſ", "ﬁ", "Ⅷ", "²", "½", "٣", "๓", "𝟗"]
    + ["😀", "🎉", "👩‍👧", "❤️", "\U0001f1e9\U0001f1ea", "\U000e0041", "\ue000", "\uffff", "\U0010ffff", "…", "—", "。", "！"]
    + ["hello", " the", " world", "ing", " reference", "Speech", " to", "[sighs]", "<whisper>", "</whisper>", "isn't", "we'll"]
    + ["<|speaker:0|>", "<|speaker:15|>", "<|speaker:1", "<|speaker:16|>", "<|speaker", "<|im_", "<|im_start|>", "<|im_end|>", "<|foo|>"]
    + ["<|", "|>", "<|semantic:1|>", "<|semantic:", "<|voice|>", "<|endoftext|>"]
)


def shell(model, pattern, nfc=True):
    t = Tokenizer(model)
    if nfc:
        t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def corpus(rng):
    words = " ".join(LANGUAGES).split() + "hello the world reference Speech Text to following convert provided system user".split()
    for _ in range(1500):
        yield " ".join(rng.choice(words) for _ in range(12)) + rng.choice([".", "?", ",\n", "...\n\n", ":", "   x"])


def trained(pattern, merges, seed):
    t = shell(models.BPE(), pattern)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges, min_frequency=2, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    t.train_from_iterator(corpus(random.Random(seed)), trainer)
    return t


def special_tokens(band):
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|voice|>", "<|text|>", "<|interleave|>"]
    names += [f"<|speaker:{i}|>" for i in range(16)] + [f"<|semantic:{i}|>" for i in range(band)]
    return [AddedToken(name, special=True, normalized=False) for name in names]


def odd_tokens():
    """Tokens in raw and normalised text that overlap, strip, and differ only by normalisation."""
    return [
        AddedToken("é!", normalized=True), AddedToken("e\u0301?", normalized=True), AddedToken("ñ", normalized=False),
        AddedToken("<|x|>", normalized=False), AddedToken("<|x|><|y|>", normalized=False), AddedToken("<think>", normalized=False),
        AddedToken("[L]", normalized=False, lstrip=True), AddedToken("[R]", normalized=False, rstrip=True),
        AddedToken("[B]", normalized=True, lstrip=True, rstrip=True), AddedToken("[N]", normalized=True, rstrip=True),
        AddedToken("  ", normalized=False), AddedToken("\u3000", normalized=True), AddedToken("hello", normalized=True, special=False),
        AddedToken("hell", normalized=False, special=False), AddedToken("the", normalized=True, special=False),
    ]


ODD = ["[L]", "[R]", "[B]", "[N]", "  ", "   ", " ", "\u3000", "é!", "e\u0301!", "é?", "e\u0301?", "<|x|>", "<|y|>", "hell", "hello", "o", "ñ",
       "n\u0303", "<think>", "the", "\u0301", "!", "?"]


def synthetic(folder):
    built = {}
    t = trained(LETTERS, 400, 1)
    t.add_tokens(special_tokens(8))
    built["letters"] = json.loads(t.to_str())
    t = trained(MARKS, 400, 2)
    t.add_tokens(special_tokens(32))
    built["marks"] = json.loads(t.to_str())
    t = trained(MARKS, 200, 3)
    t.add_tokens(special_tokens(2) + odd_tokens())
    built["added"] = json.loads(t.to_str())
    t = trained(MARKS, 300, 4)
    t.add_tokens(special_tokens(2))
    built["whole"] = whole = json.loads(t.to_str())
    model = whole["model"]
    model["ignore_merges"] = True
    # Entries that merging alone cannot reach, and merges in the older spelling.
    keep = [m for i, m in enumerate(model["merges"]) if i % 3 or any("".join(m) in n for n in model["merges"])]
    model["merges"] = [" ".join(m) for m in keep]
    paths = {}
    for name, value in built.items():
        paths[name] = os.path.join(folder, name + ".json")
        with open(paths[name], "w", encoding="utf-8") as handle:
            json.dump(value, handle, ensure_ascii=False, separators=(",", ":"))
    return paths


def random_string(rng, odd):
    parts = []
    for _ in range(rng.choice((1, 2, 3, 4, 6, 8, 12, 20))):
        kind = rng.random()
        if kind < 0.75:
            parts.append(rng.choice(ODD if odd and rng.random() < 0.6 else PIECES))
        elif kind < 0.9:
            text = rng.choice(LANGUAGES)
            begin = rng.randrange(len(text))
            parts.append(text[begin : begin + rng.randrange(1, 12)])
        elif kind < 0.95:
            parts.append(unicodedata.normalize("NFD", rng.choice(LANGUAGES)[:8]))
        else:
            c = rng.randrange(1, 0x110000)
            parts.append(chr(c if c not in SURROGATES else 0xE9))
    return "".join(parts)


def code_point_strings():
    for c in range(1, 0x110000):
        if c in SURROGATES:
            continue
        x = chr(c)
        yield x
        yield "x" + x
        yield " " + x
        yield x + "\u0301"
        yield "'" + x
        yield "a" + x + "\u0323\u0301"
        yield "a\u0301" + x + "\u0323"
        decomposed = unicodedata.normalize("NFD", x)
        if decomposed != x:
            yield decomposed
            yield decomposed[::-1] + x


def fixed_strings(limit):
    segments = ["<|im_start|>system\n", "convert the provided text to speech", "<|im_end|>\n", "<|im_start|>user\n",
                "convert the provided text to speech reference to the following:", "<|im_start|>assistant\n<|voice|>",
                "\n\n[Reference 1]\nText: <|speaker:0|> One two.\nSpeech: ", "", " ", "\n", "a" * 300, "aa" * 500 + "\u0301" * 50]
    segments += ["\u0301\u0323" * 200, "'" * 99, " " * 999 + "x", "\n" * 99 + " " * 99, "<|" * 200, "<|speaker:" * 50]
    return (segments + LANGUAGES + [unicodedata.normalize("NFD", s) for s in LANGUAGES])[:limit]


def run_ours(program, tokenizer, strings):
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in"), os.path.join(folder, "out")
        with open(source, "wb") as handle:
            for s in strings:
                data = s.encode()
                handle.write(struct.pack("<I", len(data)) + data)
        subprocess.run([program, "tokens", tokenizer, source, target], check=True)
        with open(target, "rb") as handle:
            data = handle.read()
    at, out = 0, []
    for _ in strings:
        (count,) = struct.unpack_from("<I", data, at)
        out.append(list(struct.unpack_from(f"<{count}i", data, at + 4)))
        at += 4 + 4 * count
    return out


def compare(program, path, strings, name, size=100_000):
    """Counts differing strings, batch by batch."""
    reference = Tokenizer.from_file(path)
    strings, total, wrong = iter(strings), 0, 0
    while batch := [s for _, s in zip(range(size), strings)]:
        ours = run_ours(program, path, batch)
        theirs = [e.ids for e in reference.encode_batch_fast(batch)]
        for text, a, b in zip(batch, ours, theirs):
            if a != b:
                wrong += 1
                if wrong <= 10:
                    print(f"{name}: {text!r} ({text.encode('unicode_escape').decode()}): ours {a}, theirs {b}")
        total += len(batch)
    print(f"{name}: {total} strings, {wrong} differ", flush=True)
    return wrong


def write_vectors(folder):
    for name, path in synthetic(folder).items():
        rng, reference = random.Random("vectors " + name), Tokenizer.from_file(path)
        strings = fixed_strings(100) + [random_string(rng, name == "added") for _ in range(900 if name in ("letters", "marks") else 500)]
        with open(os.path.join(folder, name + ".cases"), "wb") as handle:
            for text in strings:
                data, ids = text.encode(), reference.encode(text).ids
                handle.write(struct.pack("<I", len(data)) + data + struct.pack(f"<I{len(ids)}i", len(ids), *ids))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program")
    parser.add_argument("--tokenizer", nargs="*", default=[])
    parser.add_argument("--strings", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("random", "code-points"), help="one half of the work")
    parser.add_argument("--write-vectors", metavar="DIR")
    args = parser.parse_args()
    if args.write_vectors:
        write_vectors(args.write_vectors)
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        paths = {os.path.basename(p): p for p in args.tokenizer} or synthetic(folder)
        for name, path in paths.items():
            rng = random.Random(f"{args.seed} {name}")
            wrong += compare(args.program, path, fixed_strings(1000), name + ", fixed")
            count = -(-args.strings // len(paths))
            if args.only != "code-points":
                wrong += compare(args.program, path, (random_string(rng, name == "added") for _ in range(count)), name + ", random")
            if args.only != "random":
                wrong += compare(args.program, path, code_point_strings(), name + ", code points")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
