"""The command that asks whether weights look random."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli.old import (
    DeviceOption,
    JsonOption,
    OnlineOption,
    QuietOption,
    SeedOption,
    WeightsOption,
    app,
    load,
    out,
    print_json,
    print_table,
    progress_bar,
    sayer,
)
from headscape.errors import InputError


@app.command(epilog="Example: `headscape spectra smollm2-135m --jobs 2`, or `headscape spectra runs/book`")
def spectra(
    source: Annotated[
        str, typer.Argument(help="A run directory, or a model: name, folder, .gguf or hub id.", metavar="MODEL|RUN")
    ],
    to: Annotated[
        Path | None, typer.Option("--out", help="The run directory for a model; by default runs/NAME-weights.")
    ] = None,
    rotations: Annotated[int, typer.Option(help="Random rotations behind the p-values of the alignments.")] = 2000,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Also look at the same architecture with random weights.")
    ] = True,
    jobs: Annotated[int, typer.Option(help="Layers at a time.")] = 1,
    seed: SeedOption = 0,
    device: DeviceOption = "cpu",
    weights: WeightsOption = "float32",
    online: OnlineOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Hold the spectra of all weight matrices against noise, and say how every head aligns queries and keys."""
    from headscape.attention.models import load_model
    from headscape.studies.spectra.study import spectra as run_spectra

    run, name = _run_of(source, to)
    model = load(name, device, weights, online, quiet)
    first = load_model(name, device=device, dtype=weights, random_init=seed) if control else None
    if run is None:
        run = _run_for(model, name, to, seed)
    with progress_bar("layers", quiet) as progress:
        result = run_spectra(
            model,
            run,
            control=first,
            rotations=rotations,
            jobs=jobs,
            random_state=seed,
            progress=progress,
            say=sayer(quiet),
        )
    if as_json:
        print_json(
            {
                "run": str(run.path),
                "findings": [vars(finding) for finding in result.findings()],
                "kinds": result.summary().to_dict("records"),
                "matrices": result.matrices.to_dict("records"),
                "heads": result.to_frame().to_dict("records"),
            }
        )
        return
    brackets = "; at initialisation in brackets" if control else ""
    print_table(f"Matrices by kind, medians over layers{brackets}", *_table(result.summary()))
    for finding in result.findings():
        out.print(f"- {finding.text}", highlight=False, markup=False)
    sayer(quiet)(f"{run.path}: `headscape report {run.path}` shows it")


def _table(frame: Any) -> tuple[list[str], list[list[str]]]:
    """Columns and rows for a terminal: what was there before training stands in brackets."""
    shown = [str(column) for column in frame.columns if not str(column).endswith(", initial")]
    rows = []
    for record in frame.to_dict("records"):
        row = []
        for column in shown:
            value, first = record[column], record.get(f"{column}, initial")
            text = f"{value:.3g}" if isinstance(value, float) else str(value)
            row.append(text if first is None else f"{text} ({first:.2g})")
        rows.append(row)
    return shown, rows


def _run_of(source: str, to: Path | None) -> tuple[Any, str]:
    """The run named, if it is one, and its model."""
    from headscape.runs import Run

    if not (Path(source) / "run.json").is_file():
        return None, source
    if to is not None:
        raise InputError(f"{source} is a run and keeps its own results; leave --out away")
    run = Run.open(source)
    name = run.model_source
    if name is None:
        raise InputError(f"{source} was imported: there are no weights to look at; name a model instead")
    return run, name


def _run_for(model: Any, name: str, to: Path | None, seed: int) -> Any:
    """A run without a capture, for a model."""
    from headscape.runs import Run

    path = to or Path("runs") / f"{Path(name).name}-weights"
    return Run.create(path, config={"kind": "weights", "seed": seed}, model=model.describe(), inputs={})
