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
    "`headscape collapse --table1`"
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
    jobs: Annotated[int | None, typer.Option(help="Threads of torch; all by default.", min=1, max=1024)] = None,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    online: o.Online = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Do tokens become alike along depth? By layer, beside random weights, shuffled inputs and four variants."""
    if table1 == (source is not None):
        raise InputError("name a run or a model, or ask for --table1")
    if not 0 <= alpha_hidden < 1:  # before anything is captured
        raise InputError(f"--alpha-hidden must be at least 0 and below 1, not {alpha_hidden}")
    if source is None:
        if text is not None or images is not None:
            raise InputError("table 1 has its own images; leave out --text and --images")
        from headscape.studies.table1 import table1 as run_table1

        target = to or Path("runs") / "table1"
        with working("networks", quiet, threads=jobs) as how:
            found = run_table1(target, seeds=seeds, depth=depth, alpha_hidden=alpha_hidden, random_state=seed, **how)
        finish(found, as_json)
        return
    from headscape.studies.collapse import collapse as run_collapse

    inputs = source_of(text, images)
    run, model = Path(source), None
    if not (run / "run.json").is_file():
        default = default_run(source, inputs)
        run = to or default.with_name(f"{default.name}-hidden")
        model = load(source, device, "float32", online, quiet)
        _capture(model, inputs, run, quiet, tokens=tokens, batches=batches, seed=seed)
    elif inputs is not None or to is not None:
        raise InputError(f"{source} is a run and has its own inputs; leave out --text, --images and --out")
    with working("measuring", quiet, threads=jobs) as how:
        result = run_collapse(
            run,
            block=block,
            batches=batches,
            model=use_model and (model or True),
            control=control,
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
