"""Are the sentences of tests/quality in no training text? Also not as a part of a longer line, in whatever spelling.

    python check_unseen.py --text TEXT [--sentences tests/quality/sentences.txt]

TEXT is make_text.py's folder: its draws are fixed, so the training text of the shipped weights is there again. Numbers are compared as
words. Exits 1 and names each sentence that is there.
"""
import argparse
import json
import os
import re
import sys

import make_text


def plain(text):
    text = re.sub(r"\d+", lambda m: make_text.number(int(m[0])) if int(m[0]) <= 100 else m[0], text.lower())
    return " " + " ".join(re.findall(r"[a-z0-9']+", text)) + " "


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--text", required=True)
    p.add_argument("--sentences", default=os.path.join(here, "../../tests/quality/sentences.txt"))
    a = p.parse_args()
    lines = [json.loads(line)["text"] for line in open(a.text + "/train.jsonl")]
    joined = "|".join(plain(line) for line in lines)
    sentences = [line.strip() for line in open(a.sentences)]
    found = [s for s in sentences if plain(s) in joined]
    for s in found:
        print("in the training text:", s)
    words = [len(plain(s).split()) for s in sentences]
    print(len(lines), "training lines;", len(sentences), f"sentences of {min(words)} to {max(words)} words,", len(found), "of them seen")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
