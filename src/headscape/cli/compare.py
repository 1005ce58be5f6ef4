"""The command that puts networks side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli.old import (
    EngineOption,
    JsonOption,
    QuietOption,
    ResumeOption,
    SchedulerOption,
    SeedOption,
    app,
    engine_of,
    out,
    print_json,
    print_table,
    progress_bar,
    sayer,
)


@app.command(epilog="Example: `headscape compare runs/smollm2 runs/smollm2-other runs/gemma --out runs/compared`")
def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Two or more organized runs of equally many tokens.", metavar="RUN_A RUN_B ...")
    ],
    to: Annotated[Path, typer.Option("--out", help="Folder for the result and its page; resumed when it exists.")] = (
        Path("runs/compare")
    ),
    draws: Annotated[int, typer.Option(help="Random halves of the batches that make an interval.")] = 100,
    jobs: Annotated[int, typer.Option(help="Pairs of runs at a time.")] = 1,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
    resume: ResumeOption = False,
    seed: SeedOption = 0,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say how far networks are apart, beside how far each is from itself on other input. Same weights, same network."""
    from headscape.studies.compare.study import compare as run_compare

    with progress_bar("comparing", quiet) as progress:
        result = run_compare(
            runs,
            out=to,
            draws=draws,
            jobs=jobs,
            engine=engine_of(engine, jobs, scheduler),
            resume=resume,
            random_state=seed,
            progress=progress,
            say=sayer(quiet),
        )
    page = _page(result, runs, to)
    if as_json:
        print_json(
            {
                "findings": [vars(finding) for finding in result.findings()],
                "distances": result.to_frame().to_dict("records"),
                "runs": result.runs.to_dict("records"),
            }
        )
    else:
        _print(result)
        out.print(f"{page.resolve()}", soft_wrap=True, highlight=False)
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def _print(result: Any) -> None:
    tables = (
        ("A network beside itself (1 = by every measure as far as any gets)", result.table_of_networks()),
        ("Different networks, in the same unit, with 95 % intervals", result.table()),
    )
    for title, frame in tables:
        if len(frame):
            print_table(title, list(map(str, frame.columns)), [[str(v) for v in row] for row in frame.to_numpy(object)])
    for finding in result.findings():
        out.print(f"- {finding.text}", highlight=False, markup=False)


def _page(result: Any, runs: list[Path], folder: Path) -> Path:
    from headscape.report.compare_page import write_page
    from headscape.runs import Run

    table = result.runs
    facts = [
        ("Networks", ", ".join(result.networks)),
        ("Runs", f"{len(table)} of {table['n_query'].iloc[0]} tokens: {', '.join(table['run'])}"),
        ("Intervals", f"{result.settings['draws']} random halves of {result.settings['half']} batches"),
    ]
    provenance = {"settings": dict(result.settings), "runs": {str(path): Run.open(path).meta for path in runs}}
    return write_page(result, " / ".join(result.networks), facts, provenance, folder / "report.html")
