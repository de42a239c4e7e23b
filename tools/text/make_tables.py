#!/usr/bin/env python3
"""Write src/text/unicode_tables.c: the code point ranges that the reference tokenizer's pattern and normaliser see.

    python make_tables.py OUT.c

Letters, marks and numbers are dumped from the regular expression engine inside the `tokenizers` package (0.23.3: Unicode 16).
The code points present in Unicode 9.0, the version of its NFC, come from perl's own Unicode database.
"""
import subprocess
import sys

from tokenizers import Regex, __version__, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def class_ranges(name):
    """Ranges of \\p{name}: runs of matches over all code points in order."""
    text = "".join(map(chr, ALL))
    split = pre_tokenizers.Split(Regex(rf"\p{{{name}}}"), "removed", invert=True)
    members = [ord(piece) for piece, _ in split.pre_tokenize_str(text) for piece in piece]
    return to_ranges(members)


def to_ranges(members):
    ranges = []
    for c in members:
        if ranges and ranges[-1][1] + 1 == c:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    return ranges


def present_in_nine():
    script = r'for (0..0x10FFFF) { next if $_ >= 0xD800 && $_ <= 0xDFFF; print "$_\n" if chr($_) =~ /\p{Present_In=9.0}/ }'
    out = subprocess.run(["perl", "-e", "no warnings; " + script], check=True, capture_output=True, text=True).stdout
    return to_ranges([int(line) for line in out.split()])


def table(name, ranges):
    cells = ["{0x%04X, 0x%04X}" % tuple(r) for r in ranges]
    lines = [", ".join(cells[i : i + 6]) for i in range(0, len(cells), 6)]
    body = ",\n    ".join(lines)
    return f"const struct th_range {name}[] = {{\n    {body}}};\nconst size_t {name}_count = {len(cells)};\n"


def main():
    parts = [
        "/* unicode_tables.c - ranges of code points, first and last of each, ascending. Written by tools/text/make_tables.py from\n"
        f" * tokenizers {__version__} and perl; not edited by hand. */\n"
        "/* clang-format off */\n"
        '#include "text/unicode_tables.h"\n'
    ]
    for name, ranges in (
        ("th_letters", class_ranges("L")),
        ("th_marks", class_ranges("M")),
        ("th_numbers", class_ranges("N")),
        ("th_present_in_nine", present_in_nine()),
    ):
        print(name, len(ranges), "ranges,", sum(b - a + 1 for a, b in ranges), "code points")
        parts.append(table(name, ranges))
    with open(sys.argv[1], "w", encoding="ascii") as handle:
        handle.write("\n".join(parts))


if __name__ == "__main__":
    main()
