"""Copy the results of docs/results/hopfield/plan.sh into the documentation.

    python scripts/hopfield_tables.py runs/hopfield docs/results/hopfield
    python docs/make_tables.py hopfield collapse

For every comparison that has a finished result, its tables go to TARGET/NAME: those of the result as CSV, table.csv (the
arms, as the page shows them), similarity.csv and entropy.csv (figures 4 to 20 of the paper in numbers), findings.json and
settings. The second command writes them into the pages.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from headscape.storage import write_json
from headscape.studies import open_result
from headscape.studies.train.figures import paper_tables, shown_table
from headscape.studies.train.result import TrainResult
from headscape.studies.work.folder import kept_studies


def main(runs: Path, target: Path) -> None:
    for run in sorted(file.parent for file in runs.glob("*/run.json")):
        done = [kept for kept in kept_studies(run, "train") if kept.finished is not None]
        if not done:
            print(f"{run.name}: not finished")
            continue
        place = target / run.name
        place.mkdir(parents=True, exist_ok=True)
        for file in done[-1].path.glob("*.csv"):
            shutil.copy(file, place / file.name)
        settings = json.loads((done[-1].path / "study.json").read_text(encoding="utf-8"))
        (place / "study.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        result = open_result(run, "train")
        assert isinstance(result, TrainResult)
        for name, table in {"arms": result.to_frame(), "table": shown_table(result), **paper_tables(result)}.items():
            table.to_csv(place / f"{name}.csv", index=False, lineterminator="\n")
        said = [(f.claim, f.verdict, f.judgement and f.judgement.why, f.text) for f in result.findings()]
        write_json(
            place / "findings.json", [dict(zip(("claim", "verdict", "why", "text"), f, strict=True)) for f in said]
        )
        print(f"{run.name}: {len(result.settings['seeds'])} seeds of {', '.join(result.arms)}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
