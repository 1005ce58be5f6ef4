"""The command that compares a model with its Gaussians."""

from __future__ import annotations

from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.records import Loading, command
from headscape.cli.shared import finish


@command(epilog="Example: `headscape gaussian runs/book --random-weights --jobs 2`")
def gaussian(
    run: o.Run,
    batches: Annotated[int, o.count("How many of the captured contexts to use; a verdict needs at least 8.")] = 10,
    block: o.Block = None,
    random_weights: o.RandomWeights = False,
    temperatures: Annotated[
        bool,
        typer.Option("--temperatures", help="Also halve and double the scores of every head, and measure the cost."),
    ] = False,
    use_model: Annotated[
        bool,
        typer.Option(
            "--model/--no-model",
            help="Run the inputs through the model again; few measurements are possible without it.",
        ),
    ] = True,
    asked: Loading = Loading(),
) -> None:
    """Predict scores, tokens and mixtures from Gaussians and compare with the model: tests of Wertich's thesis (2024)."""
    from headscape.studies.gaussian import gaussian as run_gaussian

    with asked.working("measuring") as how:
        result = run_gaussian(
            run,
            model=use_model,
            control=random_weights,
            loader=asked.loader,
            block=block,
            batches=batches,
            temperatures=temperatures,
            random_state=asked.seed,
            **how,
        )
    finish(result, asked.as_json, at=run)
