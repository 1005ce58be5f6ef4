"""The command that measures collapse along depth, of a model or of the networks of table 1."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli import options as o
from headscape.cli.records import Loading, command
from headscape.cli.runs import capture_to, default_run, source_of
from headscape.cli.shared import finish
from headscape.errors import InputError


@command(
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
    asked: Loading = Loading(),
) -> None:
    """Do tokens become alike along depth? By layer, beside random weights, shuffled inputs and four variants."""
    if table1 == (source is not None):
        raise InputError("name a run or a model, or ask for --table1")
    for name, value in (("--alpha", alpha or 0.0), ("--alpha-hidden", alpha_hidden)):
        if not 0 <= value < 1:  # before anything is captured
            raise InputError(f"{name} must be at least 0 and below 1, not {value}")
    if source is None:
        if text is not None or images is not None:
            raise InputError("table 1 has its own images; leave out --text and --images")
        from headscape.studies.table1 import table1 as run_table1

        target = to or Path("runs") / "table1"
        with asked.working("networks") as how:
            found = run_table1(
                target, seeds=seeds, depth=depth, alpha_hidden=alpha_hidden, random_state=asked.seed, **how
            )
        finish(found, asked.as_json, at=target)
        return
    from headscape.studies.collapse import collapse as run_collapse
    from headscape.studies.collapse.trained import collapse_trained, is_training_run

    if is_training_run(source):
        if text is not None or images is not None or to is not None or alpha is not None:
            raise InputError(f"{source} is a training run with its own inputs and attention; choose --arm and --step")
        with asked.working("measuring") as how:
            of_arm = collapse_trained(source, arm=arm, step=step, batches=batches, random_state=asked.seed, **how)
        finish(of_arm, asked.as_json, at=source)
        return

    inputs = source_of(text, images)
    run, model = Path(source), None
    if not (run / "run.json").is_file():
        default = default_run(source, inputs)
        run = to or default.with_name(f"{default.name}-hidden")
        model = asked.load(source)
        kept: dict[str, Any] = {"keep": ("hidden",), "dtype": "float32"}  # the study needs only the inputs
        capture_to(model, inputs, run, asked, brief=True, tokens=tokens, batches=batches, seed=asked.seed, **kept)
    elif inputs is not None or to is not None:
        raise InputError(f"{source} is a run and has its own inputs; leave out --text, --images and --out")
    with asked.working("measuring") as how:
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
            loader=asked.loader,
            random_state=asked.seed,
            **how,
        )
    finish(result, asked.as_json, at=run)
