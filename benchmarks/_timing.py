"""Times of things that are run in turns, so that other work on the machine hits all of them alike."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple


class Times(NamedTuple):
    """Medians over the repeats, in seconds."""

    wall: float
    cpu: float
    """Of all threads; hardly feels other work on the machine."""


def in_turns(calls: Mapping[str, Callable[[], object]], repeats: int, warm: bool = True) -> dict[str, Times]:
    """Run every call once to warm up, then all of them in turns, `repeats` times."""
    walls: dict[str, list[float]] = {name: [] for name in calls}
    cpus: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values() if warm else ():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            walls[name].append(time.perf_counter() - wall)
            cpus[name].append(time.process_time() - cpu)
    return {name: Times(median(walls[name]), median(cpus[name])) for name in calls}


def table(header: list[str], rows: list[list[str]]) -> str:
    """Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def keep(file: Path, header: list[str], rows: list[list[str]]) -> None:
    """Add a table to a CSV file, behind its earlier rows; lines with # say by which command, without the places of files."""
    words = sys.argv[1:]
    if "--beside" in words:
        words[words.index("--beside") + 1] = "OLD/src"
    at = words.index("--out")
    said = f"# python benchmarks/{Path(sys.argv[0]).name} {' '.join(words[:at] + words[at + 2 :])}\n"
    known = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    with file.open("w", newline="", encoding="utf-8") as out:
        out.writelines([line for line in known if line.startswith("#")] + [said])
        out.writelines(line for line in known if not line.startswith("#"))
        csv.writer(out, lineterminator="\n").writerows([*([] if known else [header]), *rows])
