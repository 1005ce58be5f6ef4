"""The command that compares networks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.records import Working, command
from headscape.cli.shared import finish, open_page


@command(epilog="Example: `headscape compare runs/smollm2 runs/smollm2-other runs/gemma --out runs/compared`")
def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Organized runs of equal length; for others see --coarsen.", metavar="RUN_A RUN_B ..."),
    ],
    to: Annotated[Path, typer.Option("--out", help="Folder for the result and its page; resumed when it exists.")] = (
        Path("runs/compare")
    ),
    block: o.Block = None,
    coarsen: Annotated[
        int | None,
        o.count(
            "For runs of different lengths: compare maps averaged over this many clusters of tokens, a level of each "
            "run's trees. 16 works for runs of 40 tokens or more.",
            4,
        ),
    ] = None,
    draws: Annotated[
        int, o.count("At most this many distances per pair of runs: between sqrt(DRAWS) groups of batches of each.", 20)
    ] = 100,
    show: o.Open = False,
    asked: Working = Working(),
) -> None:
    """Measure how far apart networks are by their heads, relative to how far each is from itself on other input."""
    from headscape.report.compare_page import write_compare_page
    from headscape.studies.compare import coarse_runs
    from headscape.studies.compare import compare as run_compare

    with asked.working("comparing") as how:
        if coarsen is not None:
            beside = to.with_name(f"{to.name}-coarse")
            runs = coarse_runs(runs, beside, coarsen, block=block, random_state=asked.seed, **how)
        result = run_compare(runs, out=to, block=block, draws=draws, random_state=asked.seed, **how)
    page = write_compare_page(result, runs, to / "report.html")
    finish(result, asked.as_json, at=to, page=page)
    open_page(page, show, say=False)
