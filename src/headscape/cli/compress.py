"""The command that asks how few coefficients a network needs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headscape.cli import options as o
from headscape.cli.prune import share
from headscape.cli.records import Loading, command
from headscape.cli.shared import finish


@command(epilog="Example: `headscape compress runs/book --shares 1%,2%,5%`")
def compress(
    run: o.Run,
    shares: Annotated[
        str, typer.Option(help="Shares to test: coefficients kept, over the entries of all maps.")
    ] = "0.5%,1%,2%,5%,10%,20%",
    batches: Annotated[int, o.count("How many of the captured contexts to use.")] = 8,
    block: o.Block = None,
    use_model: Annotated[
        bool, typer.Option("--model/--no-model", help="Also run the model with the rebuilt maps.")
    ] = True,
    asked: Loading = Loading(),
) -> None:
    """How few coefficients hold a network's attention maps? Haar in organized, natural and permuted order, and singular values."""
    from headscape.studies.compress import compress as run_compress

    kept = [share(part) for part in shares.split(",")]
    options: dict[str, Any] = {"shares": kept, "batches": batches, "block": block, "random_state": asked.seed}
    with asked.working("compressing") as how:
        result = run_compress(run, model=use_model, loader=asked.loader, **options, **how)
    finish(result, asked.as_json, at=run)
