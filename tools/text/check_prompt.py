#!/usr/bin/env python3
"""Compare our prompt rows with sglang-omni's build_prompt_rows over random requests.

    python check_prompt.py --oracle DIR --sglang-omni SO --program BUILD/test_text_vectors [--requests 1000] [--tokenizer FILE]
    python check_prompt.py --oracle DIR --sglang-omni SO --write-vectors tests/vectors/text

DIR holds drama3_ref.py (tools/oracle); SO is the unpacked sglang-omni 0.1.9 wheel. The reference builder has no history turns and refuses
blank transcripts; such requests are checked against the same segments put together here.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import torch
from tokenizers import Tokenizer

from check_tokenizer import LANGUAGES, PIECES

HERE = os.path.dirname(os.path.abspath(__file__))
VECTORS = os.path.join(HERE, "..", "..", "tests", "vectors", "text")
SPACES = ["", " ", "  ", "\n", "\t", "\u3000", "\u2028 ", "\x1c", "\u200b", "\xa0\n"]


def legal_text(rng, prompt, blank):
    """Random caller text that the reference accepts."""
    while True:
        body = "".join(rng.choice(PIECES) for _ in range(rng.randrange(0, 10)))
        if rng.random() < 0.5:
            body += rng.choice(LANGUAGES)
        if rng.random() < 0.3:
            body = f"<|speaker:{rng.randrange(16)}|>" + rng.choice(["", " "]) + body
        text = rng.choice(SPACES) + body
        if "\0" in text:
            continue
        try:
            prompt.validate_caller_text(text, "x")
            return text
        except ValueError:
            if blank and rng.random() < 0.2:
                return rng.choice(["", " ", "\u3000\n"])


def random_codes(rng, books, size):
    frames = rng.choice((1, 1, 2, 3, 5))
    zero = rng.random() < 0.1
    return [[0 if zero else rng.randrange(size) for _ in range(frames)] for _ in range(books)]


def random_request(rng, prompt, tokenizer, extended):
    books, size = rng.choice(((10, 32), (10, 32), (5, 17)))
    turns = rng.randrange(0, 4) if extended else 0
    part = lambda blank: {"text": legal_text(rng, prompt, blank), "codes": random_codes(rng, books, size)}
    return {
        "codebooks": books,
        "codebook_size": size,
        "semantic_start": tokenizer.token_to_id("<|semantic:0|>"),
        "text": legal_text(rng, prompt, False),
        "references": [part(extended) for _ in range(rng.choice((0, 1, 1, 2, 3, 16)))],
        "history": [part(False) for _ in range(turns)],
    }


def reference_rows(prompt, tokenizer, request):
    parts = [
        prompt.ReferencePart(transcript=r["text"], audio_codes=torch.tensor(r["codes"])) for r in request["references"]
    ]
    rows = prompt.build_prompt_rows(
        request["text"], parts, tokenizer, num_codebooks=request["codebooks"], codebook_size=request["codebook_size"]
    )
    return rows.tolist()


def transcript(prompt, text):
    text = prompt.with_speaker_tag(text, 0)
    body = text.lstrip(prompt.UNICODE_WHITE_SPACE)
    tag = prompt.SPEAKER_TAG_PATTERN.match(body).group(0)
    return tag + text[: len(text) - len(body)] + body[len(tag) :]


def assembled_rows(prompt, tokenizer, request):
    """The same rows from segments, with history turns and blank transcripts; and the number of system rows."""
    rows = []

    def text(string):
        rows.extend([i] + [0] * request["codebooks"] for i in tokenizer.encode(string).ids)

    def audio(codes):
        rows.extend([request["semantic_start"] + frame[0], *frame] for frame in zip(*codes))

    def user(string):
        for part in ("<|im_start|>user\n", prompt.with_speaker_tag(string, 0), prompt.MESSAGE_END, prompt.GENERATION_START):
            text(part)

    text("<|im_start|>system\n")
    text(prompt.REFERENCE_INSTRUCTION if request["references"] else prompt.TTS_INSTRUCTION)
    for i, reference in enumerate(request["references"]):
        text(f"\n\n[Reference {i + 1}]\nText: {transcript(prompt, reference['text'])}\nSpeech: ")
        audio(reference["codes"])
    text(prompt.MESSAGE_END)
    system = len(rows)
    for turn in request["history"]:
        user(turn["text"])
        audio(turn["codes"])
        text(prompt.MESSAGE_END)
    user(request["text"])
    return rows, system


def run_ours(program, tokenizer, requests):
    with tempfile.TemporaryDirectory() as folder:
        source, target = os.path.join(folder, "in"), os.path.join(folder, "out")
        with open(source, "w", encoding="utf-8", newline="\n") as handle:
            handle.writelines(json.dumps(r) + "\n" for r in requests)
        subprocess.run([program, "prompt", tokenizer, source, target], check=True)
        with open(target, "rb") as handle:
            data = handle.read()
    at, out = 0, []
    for _ in requests:
        count, width = struct.unpack_from("<II", data, at)
        cells = struct.unpack_from(f"<{count * width}i", data, at + 8)
        out.append([list(cells[i * width : (i + 1) * width]) for i in range(count)])
        at += 8 + 4 * count * width
    return out


def check(prompt, tokenizer, path, program, count, seed):
    rng = random.Random(seed)
    plain = [random_request(rng, prompt, tokenizer, False) for _ in range(count)]
    extended = [random_request(rng, prompt, tokenizer, True) for _ in range(count // 4)]
    wrong = rows = 0
    for request, ours in zip(plain, run_ours(program, path, plain)):
        rows += len(ours)
        wrong += ours != reference_rows(prompt, tokenizer, request)
    print(f"build_prompt_rows: {count} requests, {rows} rows, {wrong} differ")
    bad = sum(a != assembled_rows(prompt, tokenizer, r)[0] for r, a in zip(extended, run_ours(program, path, extended)))
    print(f"history turns and blank transcripts: {len(extended)} requests, {bad} differ")
    return wrong + bad


def write_vectors(prompt, tokenizer, folder):
    rng = random.Random("prompts")
    with open(os.path.join(folder, "prompts.jsonl"), "w", encoding="utf-8", newline="\n") as handle:
        for i in range(60):
            request = random_request(rng, prompt, tokenizer, i >= 40)
            if len(request["references"]) == 16 and i % 8:
                request["references"] = request["references"][:1]
            rows, request["system_count"] = assembled_rows(prompt, tokenizer, request)
            if i < 40:
                assert rows == reference_rows(prompt, tokenizer, request)
            start, end = request["semantic_start"], request["semantic_start"] + request["codebook_size"]
            request["rows"] = [row if start <= row[0] < end else row[0] for row in rows]
            handle.write(json.dumps(request, separators=(",", ":")) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--oracle", required=True)
    parser.add_argument("--sglang-omni", required=True)
    parser.add_argument("--program")
    parser.add_argument("--tokenizer", default=os.path.join(VECTORS, "marks.json"))
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write-vectors", metavar="DIR")
    args = parser.parse_args()
    sys.path.insert(0, args.oracle)
    import drama3_ref

    drama3_ref.install_stubs(args.sglang_omni)
    prompt, tokenizer = drama3_ref.drama3("prompt"), Tokenizer.from_file(args.tokenizer)
    if args.write_vectors:
        write_vectors(prompt, tokenizer, args.write_vectors)
        return 0
    return 1 if check(prompt, tokenizer, args.tokenizer, args.program, args.requests, args.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
