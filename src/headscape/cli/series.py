"""The command that follows heads over training: series."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.records import Choosing, command
from headscape.cli.runs import source_of
from headscape.cli.shared import finish, open_page, tokenizer_of
from headscape.errors import InputError


@command(epilog="Example: `headscape series checkpoints --text book.txt --out runs/training`")
def series(
    folders: Annotated[
        list[Path],
        typer.Argument(help="A folder of runs or of saved checkpoints, or the runs in order.", metavar="FOLDER|RUN..."),
    ],
    to: Annotated[
        Path | None, typer.Option("--out", help="Folder for the runs of checkpoints, the result and its page.")
    ] = None,
    text: o.Text = None,
    images: o.Images = None,
    tokens: o.Tokens = 128,
    batches: o.Batches = 4,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="For checkpoints saved without one: a model folder or bundled name; by default another checkpoint's or the folder's."
        ),
    ] = None,
    block: o.Block = None,
    show: o.Open = False,
    asked: Choosing = Choosing(),
) -> None:
    """Follow every head over training: when roles begin, entropies, places on one map. Saved checkpoints are captured first."""
    from headscape.report.series_page import write_series_page
    from headscape.studies.series import capture_checkpoints
    from headscape.studies.series import series as run_series
    from headscape.studies.series.checkpoints import find_checkpoints
    from headscape.studies.work.how import Work

    source = source_of(text, images)
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        raise InputError(f"no folder {str(missing[0])!r}")
    runs: Path | list[Path] = folders[0] if len(folders) == 1 else folders
    if len(folders) > 1 and to is None:
        raise InputError("give --out: a folder for the result of these runs")
    with asked.working("following") as how:
        if isinstance(runs, Path) and find_checkpoints(runs):
            if to is None:
                raise InputError("give --out: a folder for the runs of these checkpoints")
            options = {"tokens": tokens, "batches": batches, "random_state": asked.seed}
            reader = None if tokenizer is None else tokenizer_of(tokenizer)
            runs = capture_checkpoints(runs, source, to, asked.loader, Work.of(**how), reader, **options)
        result = run_series(runs, out=to, block=block, random_state=asked.seed, **how)
    home = to or folders[0]
    page = write_series_page(result, home.resolve().name, home / "series.html")
    finish(result, asked.as_json, at=home, page=page)
    open_page(page, show, say=False)
