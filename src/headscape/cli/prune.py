"""The command that proposes heads to remove, with the evidence, and writes the smaller model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli import options as o
from headscape.cli.shared import app, finish, listed, loader, one_of, out, working
from headscape.errors import InputError


@app.command(epilog="Example: `headscape prune runs/book --budget 2% --out smaller --kind ragged`")
def prune(
    run: o.Run,
    budget: Annotated[str, typer.Option(help="Largest cost: rise of the loss, drop of accuracy; 2% or 0.02.")] = "2%",
    heads: Annotated[
        int | None, typer.Option(help="Remove this many heads instead of searching a budget.", min=1, max=o.MANY)
    ] = None,
    criterion: Annotated[str, typer.Option(help="auto, a criterion, or an average of ranks a+b.")] = "auto",
    compensation: Annotated[str, typer.Option(help="auto, none, mean, scale or linear.")] = "auto",
    criteria: Annotated[str | None, typer.Option(help="Compare only these: novelty,gradient,l1_all.")] = None,
    fractions: Annotated[str, typer.Option(help="Shares of heads along the curves, in percent.")] = "10,20,30",
    text: Annotated[Path | None, typer.Option(help="Text file or folder to choose and judge on.")] = None,
    images: Annotated[Path | None, typer.Option(help="Labelled images (.npz) to choose and judge on.")] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="More text or images to fit novelty and compensation on; `sample`: headscape's own prose."),
    ] = None,
    windows: Annotated[
        int, typer.Option(help="Windows of text to judge on; half as many more are used to choose.", min=3, max=o.MANY)
    ] = 8,
    evaluations: Annotated[int, typer.Option(help="Sets of heads the search may try.", min=1, max=o.MANY)] = 40,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Write the smaller model here.")] = None,
    kind: Annotated[str, typer.Option(help="How to write it: masked, uniform or ragged.")] = "masked",
    block: o.Block = None,
    jobs: Annotated[int, typer.Option(help="Evaluations at a time; each job loads the model.", min=1, max=1024)] = 1,
    threads: o.Threads = None,
    engine: o.Engine = "local",
    scheduler: o.Scheduler = None,
    resume: o.Resume = False,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    online: o.Online = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Find heads to remove within a budget, validate them on held-out text, and write the smaller model."""
    from headscape.pruning.export import KINDS
    from headscape.studies.prune.study import prune as run_prune

    one_of("kind", kind, sorted(KINDS))
    if text is not None and images is not None:
        raise InputError("give either --text or --images, not both")
    options: dict[str, Any] = {} if criteria is None else {"criteria": listed(criteria)}
    options |= {"budget": None if heads is not None else share(budget), "n_heads": heads, "windows": windows}
    options |= {"fractions": [share(f"{part}%") for part in fractions.split(",")], "evaluations": evaluations}
    options |= {
        "inputs": images if text is None else text,
        "calibrate": calibrate,
        "block": block,
        "random_state": seed,
    }
    options |= {"criterion": criterion, "compensation": compensation, "out": out_dir, "kind": kind}
    work = {"jobs": jobs, "threads": threads, "engine": engine, "scheduler": scheduler, "resume": resume}
    with working("pruning", quiet, **work) as how:  # type: ignore[arg-type]
        result = run_prune(run, loader=loader(device, online, quiet), **options, **how)
    export = None
    if out_dir is not None and result.proposal:
        export = str(result.export(out_dir, kind, timed=3))  # type: ignore[arg-type]
    finish(result, as_json, at=run, export=export)
    if not as_json and result.proposal:
        removed = f"removed: {' '.join(str(head) for head in result.proposal)}"
        out.print(removed if export is None else f"{removed}\n{export}", highlight=False, markup=False)


def share(text: str) -> float:
    """A share as a number: 2% and 0.02 are the same.

    >>> share("2%"), share("0.02")
    (0.02, 0.02)
    """
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise InputError(f"{text.removesuffix('%')!r} is not a number; give a share as 2% or 0.02") from None
