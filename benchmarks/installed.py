"""What headscape and its extras take on disk, from the packages installed in this environment.

    python benchmarks/installed.py [--out docs/results/benchmarks/installed.csv]

Each package is counted once, with everything it requires here and nothing of what the rows above it have counted. Libraries of a
GPU build of torch are separate packages and would be counted too; the pinned build has none.
"""

from __future__ import annotations

import argparse
import csv
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from _timing import table

EXTRAS = {
    "none": "the questionnaire, trees, wavelets, imported attention (numpy, scipy, numba, pandas, scikit-learn)",
    "models": "loading and capturing models (torch for CPUs, transformers, accelerate, gguf)",
    "report": "pages and figures (plotly, matplotlib)",
    "scale": "Dask clusters",
}


def plain(name: str) -> str:
    """The name of a package as all its spellings share it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(name: str, extra: str, known: set[str]) -> set[str]:
    """Packages that a package needs with an extra and that are not known yet, itself included."""
    try:
        needs = [Requirement(line) for line in distribution(name).requires or ()]
    except PackageNotFoundError:  # not needed on this platform
        return set()
    found = {plain(name)} - known
    for need in needs:
        wanted = need.marker is None or need.marker.evaluate({"extra": extra})
        if wanted and plain(need.name) not in known | found:
            for option in need.extras or {""}:
                found |= closure(need.name, option, known | found)
    return found


def size(name: str) -> int:
    """Bytes of the files of a package."""
    files = [Path(str(file.locate())) for file in distribution(name).files or ()]
    return sum(file.stat().st_size for file in files if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="CSV file for the table")
    given = parser.parse_args()
    known: set[str] = set()
    rows = []
    for extra, adds in EXTRAS.items():
        new = closure("headscape", "" if extra == "none" else extra, known - {"headscape"})
        total = sum(map(size, new - {"headscape"}))
        known |= new
        shown = f"{total / 1e9:.1f} GB" if total >= 1e8 else f"{total / 1e6:.0f} MB"
        rows.append([extra if extra == "none" else f"`{extra}`", adds, shown])
    rows.append(["`all`", "the three above", ""])
    print(table(["extra", "adds", "on disk"], rows))
    if given.out:
        with given.out.open("w", newline="", encoding="utf-8") as file:
            file.write("# python benchmarks/installed.py; Linux, Python 3.11, torch for CPUs\n")
            csv.writer(file, lineterminator="\n").writerows([["extra", "adds", "on disk"], *rows])


if __name__ == "__main__":
    main()
