"""The command that measures collapse along depth, of a model or of the networks of table 1."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscape.cli import options as o
from headscape.cli.runs import Source, default_run, source_of
from headscape.cli.shared import app, finish, load, loader, progress_bar, sayer, working
from headscape.errors import InputError

if TYPE_CHECKING:
    from headscape.attention.models import Model


@app.command(
    epilog="Examples: `headscape collapse smollm2-135m --tokens 256`, `headscape collapse runs/book`, "
    "`headscape collapse runs/train-gpt --arm both --step 2000`, `headscape collapse --table1`"
)
def collapse(
    source: Annotated[
        str | None,
        typer.Argument(help="A run directory, or a model: name, folder, .gguf file, hub id.", metavar="RUN|MODEL"),
    ] = None,
    table1: Annotated[
        bool, typer.Option("--table1", help="Instead, table 1 of the paper's supplement: networks of attention alone.")
    ] = False,
    text: o.Text = None,
    images: o.Images = None,
    tokens: o.Tokens = 256,
    to: Annotated[Path | None, typer.Option("--out", help="The run directory of a model or of table 1.")] = None,
    batches: o.Batches = 8,
    block: o.Block = None,
    arm: Annotated[str, typer.Option(help="Of a training run: which kind of attention.")] = "standard",
    step: Annotated[
        int | None, typer.Option(help="Of a training run: after how many steps; by default the weights judged.")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Also run it with the paper's scaled skip a x + (1 - a) attention.")
    ] = None,
    alpha_hidden: Annotated[float, typer.Option(help="a' of the variants with a hidden state.")] = 0.5,
    cells: Annotated[
        bool, typer.Option("--cells/--no-cells", help="The four variants: skip or not, hidden state or not.")
    ] = True,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="The same architecture with random weights.")
    ] = True,
    use_model: Annotated[
        bool, typer.Option("--model/--no-model", help="Run the model of a run again; otherwise read what it kept.")
    ] = True,
    float64: Annotated[
        bool, typer.Option("--float64/--float32", help="Precision of the model; float32 residuals stop near 2e-7.")
    ] = True,
    seeds: Annotated[int, typer.Option(help="For table 1: how many networks.", min=1, max=1000)] = 10,
    depth: Annotated[int, typer.Option(help="For table 1: layers.", min=1, max=1000)] = 12,
    jobs: o.Jobs = 1,
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
    """Do tokens become alike along depth? By layer, beside random weights, shuffled inputs and four variants."""
    if table1 == (source is not None):
        raise InputError("name a run or a model, or ask for --table1")
    for name, value in (("--alpha", alpha or 0.0), ("--alpha-hidden", alpha_hidden)):
        if not 0 <= value < 1:  # before anything is captured
            raise InputError(f"{name} must be at least 0 and below 1, not {value}")
    options = {"jobs": jobs, "threads": threads, "engine": engine, "scheduler": scheduler, "resume": resume}
    if source is None:
        if text is not None or images is not None:
            raise InputError("table 1 has its own images; leave out --text and --images")
        from headscape.studies.table1 import table1 as run_table1

        target = to or Path("runs") / "table1"
        with working("networks", quiet, **options) as how:  # type: ignore[arg-type]
            found = run_table1(target, seeds=seeds, depth=depth, alpha_hidden=alpha_hidden, random_state=seed, **how)
        finish(found, as_json)
        return
    from headscape.studies.collapse import collapse as run_collapse
    from headscape.studies.collapse.trained import collapse_trained, is_training_run

    if is_training_run(source):
        if text is not None or images is not None or to is not None or alpha is not None:
            raise InputError(f"{source} is a training run with its own inputs and attention; choose --arm and --step")
        with working("measuring", quiet, **options) as how:  # type: ignore[arg-type]
            of_arm = collapse_trained(source, arm=arm, step=step, batches=batches, random_state=seed, **how)
        finish(of_arm, as_json, at=source)
        return

    inputs = source_of(text, images)
    run, model = Path(source), None
    if not (run / "run.json").is_file():
        default = default_run(source, inputs)
        run = to or default.with_name(f"{default.name}-hidden")
        model = load(source, device, "float32", online, quiet)
        _capture(model, inputs, run, quiet, tokens=tokens, batches=batches, seed=seed)
    elif inputs is not None or to is not None:
        raise InputError(f"{source} is a run and has its own inputs; leave out --text, --images and --out")
    with working("measuring", quiet, **options) as how:  # type: ignore[arg-type]
        result = run_collapse(
            run,
            block=block,
            batches=batches,
            model=use_model and (model or True),
            control=control,
            alpha=alpha,
            alpha_hidden=alpha_hidden,
            cells=cells,
            double=float64,
            loader=loader(device, online, quiet),
            random_state=seed,
            **how,
        )
    finish(result, as_json, at=run)


def _capture(model: Model, source: Source, run: Path, quiet: bool, **options: Any) -> None:
    """Make a run of a model; the study needs only its inputs, so little is kept."""
    from headscape.attention.capture import capture
    from headscape.attention.inputs import sample_images, sample_text

    if source is None:
        sayer(quiet)("no input named: using the sample that comes with headscape")
    shown = source or (sample_images() if model.images is not None else [sample_text("rank")])
    with progress_bar("capturing", quiet) as bar:
        capture(model, shown, keep=("hidden",), dtype="float32", out=run, progress=bar, say=sayer(quiet), **options)
