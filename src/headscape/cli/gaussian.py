"""The command that compares a model with its Gaussians."""

from __future__ import annotations

from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.shared import app, finish, loader, working


@app.command(epilog="Example: `headscape gaussian runs/book --random-weights --jobs 2`")
def gaussian(
    run: o.Run,
    batches: Annotated[
        int, typer.Option(help="How many of the captured contexts to use; 8 or more to decide.", min=1, max=o.MANY)
    ] = 10,
    block: o.Block = None,
    random_weights: o.RandomWeights = False,
    use_model: Annotated[
        bool, typer.Option("--model/--no-model", help="Run the inputs through the model again; little is left without.")
    ] = True,
    jobs: o.Jobs = 1,
    engine: o.Engine = "local",
    scheduler: o.Scheduler = None,
    resume: o.Resume = False,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    online: o.Online = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Predict scores, tokens and mixtures from Gaussians, and measure them: what of Wertich's thesis (2024) holds."""
    from headscape.studies.gaussian import gaussian as run_gaussian

    with working("measuring", quiet, jobs=jobs, engine=engine, scheduler=scheduler, resume=resume) as how:
        result = run_gaussian(
            run,
            model=use_model,
            control=random_weights,
            loader=loader(device, online, quiet),
            block=block,
            batches=batches,
            random_state=seed,
            **how,
        )
    finish(result, as_json, at=run)
