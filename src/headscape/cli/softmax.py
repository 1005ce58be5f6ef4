"""The command that asks whether heads are invariant to softmax."""

from __future__ import annotations

from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.records import Loading, Organizing, command
from headscape.cli.shared import finish, listed
from headscape.errors import InputError


@command(epilog="Example: `headscape softmax runs/book --all --jobs 2`, after `headscape capture --keep probs,scores`")
def softmax(
    run: o.Run,
    heads: Annotated[str | None, typer.Option(help="Only these heads, as layer.head: 3.7,4.0 or decoder.3.7.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All heads (the default).")] = False,
    show: Annotated[
        str | None, typer.Option(help="Heads to draw in the report, as layer.head: 3.7,4.0 or decoder.3.7.")
    ] = None,
    batches: Annotated[
        int, o.count("How many captured contexts to use; fewer than 8 give a verdict only if set here.")
    ] = 8,
    block: o.Block = None,
    tolerance: Annotated[
        float,
        typer.Option(help="Largest change with which a head passes: nats of loss, or share of the final hidden state."),
    ] = 0.01,
    random_weights: o.RandomWeights = False,
    use_model: Annotated[
        bool,
        typer.Option(
            "--model/--no-model", help="Also run the model with the decompositions in place of its attention."
        ),
    ] = True,
    organizing: Organizing = Organizing(),
    asked: Loading = Loading(),
) -> None:
    """Test whether heads are invariant to softmax: entry by entry, by the condition of the proof, and in the model."""
    from headscape.studies.softmax import softmax as run_softmax

    if heads is not None and every:
        raise InputError("give either --heads or --all, not both")
    with asked.working("decomposing") as how:
        result = run_softmax(
            run,
            heads=listed(heads),
            block=block,
            batches=batches,
            questionnaire=organizing.questionnaire(),
            model=use_model,
            control=random_weights,
            loader=asked.loader,
            tolerance=tolerance,
            show=listed(show) or (),
            random_state=asked.seed,
            **how,
        )
    finish(result, asked.as_json, at=run)
