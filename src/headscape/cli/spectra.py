"""The command that compares weights with noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.records import Choosing, command
from headscape.cli.shared import finish, sayer
from headscape.errors import InputError


@command(epilog="Example: `headscape spectra smollm2-135m --jobs 2`, or `headscape spectra runs/book`")
def spectra(
    source: o.RunOrModel,
    to: Annotated[
        Path | None, typer.Option("--out", help="The run directory for a model; by default runs/NAME-weights.")
    ] = None,
    rotations: Annotated[int, o.count("Random rotations behind the p-values of the alignments.")] = 2000,
    control: o.Control = True,
    asked: Choosing = Choosing(),
) -> None:
    """Compare the spectra of all weight matrices with noise, and measure how every head aligns queries and keys."""
    from headscape.runs import Run
    from headscape.studies.spectra import spectra as run_spectra

    is_run = (Path(source) / "run.json").is_file()
    if is_run and to is not None:
        raise InputError(f"{source} is a run and keeps its own results; leave out --out")
    path = to or Path("runs") / f"{Path(source).name}-weights"
    with asked.working("layers") as how:
        if is_run:
            path, own = Path(source), asked.loader
            model = own.model(Run.open(path))
            initial = own.model(Run.open(path), random_init=asked.seed) if control else None
        else:
            model = asked.load(source)
            initial = asked.load(source, random_init=asked.seed) if control else None
        result = run_spectra(model, path, control=initial, rotations=rotations, random_state=asked.seed, **how)
    finish(result, asked.as_json, at=path, run=str(path))
    if not asked.as_json:
        sayer(asked.quiet)(f"{path}: `headscape report {path}` shows it")
