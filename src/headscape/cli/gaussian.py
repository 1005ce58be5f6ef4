"""The command that holds a model against its Gaussians."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli.old import (
    JsonOption,
    QuietOption,
    RunArgument,
    SeedOption,
    app,
    out,
    print_json,
    print_table,
    progress_bar,
    sayer,
)
from headscape.errors import InputError


@app.command(epilog="Example: `headscape gaussian runs/book --random-weights --jobs 2`")
def gaussian(
    run: RunArgument,
    batches: Annotated[int, typer.Option(help="How many of the captured contexts to use.")] = 10,
    block: Annotated[str | None, typer.Option(help="Which block of an encoder-decoder.")] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Also measure the same architecture with random weights.")
    ] = False,
    use_model: Annotated[
        bool, typer.Option("--model/--no-model", help="Show the inputs to the model again; little is left without it.")
    ] = True,
    jobs: Annotated[int, typer.Option(help="Layers at a time.")] = 1,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predict scores, tokens and mixtures from Gaussians, and measure them: what of it holds in this model."""
    result = _gaussian(
        run, quiet, use_model, random_weights, batches=batches, block=block, jobs=jobs, random_state=seed
    )
    frame = result.overview
    if as_json:
        print_json(
            {
                "findings": [vars(finding) for finding in result.findings()],
                "overview": frame.to_dict("records"),
                "heads": result.to_frame().to_dict("records"),
            }
        )
        return
    print_table(
        f"Gaussians against the model, {result.n_heads} heads", list(map(str, frame.columns)), frame.to_numpy().tolist()
    )
    for finding in result.findings():
        out.print(f"- {finding.text}", highlight=False, markup=False)


def _gaussian(path: Path, quiet: bool, use_model: bool, random_weights: bool, **options: Any) -> Any:
    from headscape.captures import open_capture
    from headscape.studies.gaussian.study import gaussian as run_gaussian

    captured = open_capture(path)
    assert captured.run is not None
    model = control = None
    source = captured.run.model_source
    if random_weights and (source is None or not use_model):
        why = "was imported: there is no model" if source is None else "is measured without its model: there is none"
        raise InputError(f"{path} {why} to give random weights")
    if source is not None and use_model:
        from headscape.attention.models import load_model

        model = load_model(source)
        control = load_model(source, random_init=options["random_state"]) if random_weights else None
    with progress_bar("measuring", quiet) as progress:
        return run_gaussian(captured, model=model, control=control, progress=progress, say=sayer(quiet), **options)
