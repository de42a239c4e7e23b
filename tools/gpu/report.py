#!/usr/bin/env python3
"""Gathers what the parts of scripts/gpu-check left in --work: one results file, and a table on standard output.

What is wanted of each figure (the project's goals for an H200) stands beside it: `reach`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib

# figure: (least or most, is more better)
REACH = {
    "one_lane_fps": (450, True), "one_lane_end_to_end_fps": (420, True), "lanes_8_fps": (2000, True),
    "lanes_32_fps": (3000, True), "lanes_64_fps": (4000, True), "prefill_46_ms": (12, False),
    "prefill_168_ms": (25, False), "prefill_1024_ms": (90, False), "first_audio_plain_ms": (50, False),
    "first_audio_clone_ms": (100, False), "load_gib_s": (3, True), "bound_share": (0.57, True),
    "host_rss_gib": (2, False), "device_gb": (42, False),
}
LOAD = {"load_gib_s", "host_rss_gib"}


def read(path: pathlib.Path) -> dict | None:
    return json.loads(path.read_text()) if path.exists() and path.stat().st_size else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True, type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    args = parser.parse_args()
    figures, load = read(args.work / "figures.json"), read(args.work / "load.json")
    if figures is None and load is None:
        print("no figures were measured: no results file")
        return
    result = dict(figures or load)
    rows = [row for row in (figures or {"rows": []})["rows"] if row["name"] not in LOAD]
    rows += [row for row in (load or {"rows": []})["rows"] if row["name"] in LOAD]
    peers = json.loads(pathlib.Path(os.environ["THESPIS_PEERS"]).read_text()) if "THESPIS_PEERS" in os.environ else {}
    for row in rows:
        row["peer"] = peers.get(row["name"])
        row["reach"] = REACH.get(row["name"], (None,))[0]
    result["rows"] = rows
    result["checkpoint"] = pathlib.Path(result["checkpoint"]).name
    result["parts"] = {path.stem: "passed" for path in sorted(args.work.glob("*.passed"))}
    result["parity"] = {path.stem.removeprefix("parity-"): {k: v for k, v in (read(path) or {}).items() if k != "differing"}
                        for path in sorted(args.work.glob("parity-*.json"))}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{'figure':26}{'median':>12} {'unit':14}{'min':>12}{'max':>12}{'bound':>10}{'peer':>10}{'reach':>8}")
    for row in rows:
        text = lambda x: "-" if x is None else f"{x:.4g}"
        line = f"{row['name']:26}{row['median']:12.4g} {row['unit']:14}{row['min']:12.4g}{row['max']:12.4g}"
        print(line + f"{text(row['bound']):>10}{text(row['peer']):>10}{text(row['reach']):>8}")
    print(f"written: {args.out}")


if __name__ == "__main__":
    main()
