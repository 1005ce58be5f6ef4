"""Copy the results of docs/results/hopfield/plan.sh into the documentation and print their tables.

    python scripts/hopfield_tables.py runs/hopfield docs/results/hopfield > tables.md

For every comparison that has a finished result: its tables (CSV; table.csv is the one of the page) and settings go to TARGET/NAME, and its arms,
baselines and findings are printed as markdown. Nothing is written by hand.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from headscape.studies import open_result
from headscape.studies.train.figures import shown_table
from headscape.studies.train.result import TrainResult
from headscape.studies.work.folder import kept_studies


def main(runs: Path, target: Path) -> None:
    for run in sorted(file.parent for file in runs.glob("*/run.json")):
        done = [kept for kept in kept_studies(run, "train") if kept.finished is not None]
        if not done:
            print(f"## {run.name}\nnot finished\n")
            continue
        place = target / run.name
        place.mkdir(parents=True, exist_ok=True)
        for file in done[-1].path.glob("*.csv"):
            shutil.copy(file, place / file.name)
        settings = json.loads((done[-1].path / "study.json").read_text(encoding="utf-8"))
        (place / "study.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        result = open_result(run, "train")
        assert isinstance(result, TrainResult)
        shown_table(result).to_csv(place / "table.csv", index=False, lineterminator="\n")
        print(f"## {run.name}\n\n{_markdown(result)}\n")
        print("\n".join(f"* {finding}" for finding in result.findings()), end="\n\n")


def _markdown(result: TrainResult) -> str:
    frame = shown_table(result)
    rows = [list(map(str, frame.columns)), ["---"] * len(frame.columns), *frame.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
