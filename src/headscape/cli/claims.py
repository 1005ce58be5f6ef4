"""The command that puts the claims of the papers to the test: claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.records import Loading, command
from headscape.cli.runs import source_of
from headscape.cli.shared import finish, open_page


@command(epilog="Example: `headscape claims minilm-l6 --quick`, or `headscape claims runs/book --only softmax`")
def claims(
    source: o.RunOrModel,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this paper (fasina2025), study (softmax) or claim (its id); may be repeated."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: few short inputs, and a sample of heads for softmax.")
    ] = False,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            help="An organized run of another network, to compare with, or a run of `headscape train`; may be repeated."
        ),
    ] = None,
    text: o.Text = None,
    images: o.Images = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="The run directory of a model; resumed when it exists.")
    ] = None,
    block: o.Block = None,
    show: o.Open = False,
    asked: Loading = Loading(),
) -> None:
    """Do the papers' claims hold on this model? Runs every study they need; writes one page and one table, a row per claim."""
    from headscape.records import write_table
    from headscape.report import write_report
    from headscape.report.claims_page import write_claims_page
    from headscape.runs import Run
    from headscape.storage import write_json
    from headscape.studies import load_results
    from headscape.studies.claims import claims as run_claims
    from headscape.studies.claims.study import place_of
    from headscape.studies.claims.together import together
    from headscape.studies.work.folder import newest_by_block

    inputs = source_of(text, images)
    is_run = (Path(source) / "run.json").is_file()
    place = Path(source) if is_run else to or place_of(source, quick)
    with asked.working("testing") as how:
        result = run_claims(
            source,
            only=only or (),
            quick=quick,
            inputs=inputs,
            out=None if is_run and to is None else to or place,
            beside=beside or (),
            block=block,
            loader=asked.loader,
            random_state=asked.seed,
            **how,
        )
    run = Run.open(place)
    write_report(run, load_results(run))
    known = together(run, newest_by_block(run, result.study)[-1])
    write_table(place / "claims.csv", known.claims)
    write_json(place / "claims.json", known.to_json())
    page = write_claims_page(known, place / "claims.html")
    finish(result, asked.as_json, at=place, page=page)
    open_page(page, show, say=False)
