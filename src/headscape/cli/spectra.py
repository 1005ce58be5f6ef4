"""The command that compares weights with noise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.shared import app, finish, load, loader, sayer, working
from headscape.errors import InputError


@app.command(epilog="Example: `headscape spectra smollm2-135m --jobs 2`, or `headscape spectra runs/book`")
def spectra(
    source: o.RunOrModel,
    to: Annotated[
        Path | None, typer.Option("--out", help="The run directory for a model; by default runs/NAME-weights.")
    ] = None,
    rotations: Annotated[
        int, typer.Option(help="Random rotations behind the p-values of the alignments.", min=1, max=o.MANY)
    ] = 2000,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Also measure the same architecture with random weights.")
    ] = True,
    jobs: o.Jobs = 1,
    seed: o.Seed = 0,
    device: o.Device = "cpu",
    weights: o.Weights = "float32",
    online: o.Online = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Compare the spectra of all weight matrices with noise, and measure how every head aligns queries and keys."""
    from headscape.attention.models import load_model
    from headscape.runs import Run
    from headscape.studies.spectra import spectra as run_spectra

    is_run = (Path(source) / "run.json").is_file()
    if is_run and to is not None:
        raise InputError(f"{source} is a run and keeps its own results; leave --out away")
    path = to or Path("runs") / f"{Path(source).name}-weights"
    with working("layers", quiet, jobs=jobs) as how:
        if is_run:
            path, own = Path(source), loader(device, online, quiet, weights)
            model = own.model(Run.open(path))
            initial = own.model(Run.open(path), random_init=seed) if control else None
        else:
            model = load(source, device, weights, online, quiet)
            initial = (
                load_model(source, device=device, dtype=weights, online=online, random_init=seed) if control else None
            )
        result = run_spectra(model, path, control=initial, rotations=rotations, random_state=seed, **how)
    finish(result, as_json, at=path, run=str(path))
    if not as_json:
        sayer(quiet)(f"{path}: `headscape report {path}` shows it")
