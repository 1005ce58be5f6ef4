"""The command that asks whether tokens and attention collapse along depth."""

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
    app,
    load,
    out,
    print_json,
    print_table,
    progress_bar,
    sayer,
)
from headscape.cli.runs import default_run, source_of
from headscape.errors import InputError


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
        bool, typer.Option("--table1", help="Instead, table 1 of the supplement: networks of attention alone.")
    ] = False,
    text: Annotated[Path | None, typer.Option(help="For a model: a text file or a folder of them.")] = None,
    images: Annotated[Path | None, typer.Option(help="For a model: an image, a folder, or an .npz.")] = None,
    tokens: Annotated[int, typer.Option(help="For a model: tokens in a context.")] = 256,
    to: Annotated[Path | None, typer.Option("--out", help="The run directory of a model or of table 1.")] = None,
    batches: Annotated[int, typer.Option(help="How many contexts to use.")] = 5,
    block: Annotated[str | None, typer.Option(help="Which block of an encoder-decoder.")] = None,
    alpha_hidden: Annotated[float, typer.Option(help="a' of the cells with a hidden state.")] = 0.5,
    cells: Annotated[bool, typer.Option("--cells/--no-cells", help="The four cells of skip and hidden state.")] = True,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="The same architecture with random weights.")
    ] = True,
    use_model: Annotated[
        bool, typer.Option("--model/--no-model", help="Run the model of a run again; otherwise read what it kept.")
    ] = True,
    float64: Annotated[
        bool, typer.Option("--float64/--float32", help="Precision of the model; float32 residuals stop near 2e-7.")
    ] = True,
    seeds: Annotated[int, typer.Option(help="For table 1: how many networks.")] = 10,
    depth: Annotated[int, typer.Option(help="For table 1: layers.")] = 12,
    jobs: Annotated[int | None, typer.Option(help="Threads of torch; all by default.")] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    online: OnlineOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Do tokens become alike along depth? By layer, beside random weights, shuffled inputs and the four cells."""
    if table1 == (source is not None):
        raise InputError("name a run or a model, or ask for --table1")
    if jobs is not None and jobs < 1:
        raise InputError(f"jobs must be at least 1, not {jobs}")
    if not 0 <= alpha_hidden < 1:  # said before anything is captured
        raise InputError(f"--alpha-hidden is at least 0 and below 1, not {alpha_hidden}")
    if table1:
        if text is not None or images is not None:
            raise InputError("table 1 has its own images; leave --text and --images out")
        options = {"seeds": seeds, "depth": depth, "alpha_hidden": alpha_hidden, "random_state": seed}
        _print_table1(_table1(to, quiet, jobs, **options), as_json)
        return
    assert source is not None
    run = _run_of(source, source_of(text, images), to, tokens, batches, seed, device, online, quiet)
    result = _collapse(
        run,
        device,
        online,
        use_model,
        control,
        quiet,
        batches=batches,
        block=block,
        alpha_hidden=alpha_hidden,
        cells=cells,
        double=float64,
        threads=jobs,
        random_state=seed,
    )
    if as_json:
        print_json(
            {
                "findings": [vars(finding) for finding in result.findings()],
                "arms": result.by_arm.to_dict("records"),
                "layers": result.by_layer.to_dict("records"),
                "bounds": result.bounds.to_dict("records"),
                "heads": result.to_frame().to_dict("records"),
            }
        )
        return
    frame = result.by_arm
    rows = [[str(value) for value in row] for row in frame.to_numpy(dtype=object)]
    print_table(f"{run}, after the last layer", list(map(str, frame.columns)), rows)
    _print_findings(result)


def _print_findings(result: Any) -> None:
    for finding in result.findings():
        out.print(f"- {finding.text}", highlight=False, markup=False)


def _print_table1(result: Any, as_json: bool) -> None:
    frame = result.table
    if as_json:
        findings = [vars(finding) for finding in result.findings()]
        print_json(
            {"findings": findings, "table": frame.to_dict("records"), "cells": result.to_frame().to_dict("records")}
        )
        return
    for name in result.names:
        mine = [c for c in frame.columns if c == "depth" or c.startswith((f"{name}: ", "printed: "))]
        rows = [[f"{v:.3g}" for v in row] for row in frame[mine].to_numpy(dtype=float)]
        print_table(
            f"Table 1, {name}", [c.removeprefix(f"{name}: ") for c in mine], rows, right=tuple(range(len(mine)))
        )
    _print_findings(result)


def _run_of(
    source: str,
    inputs: Path | None,
    to: Path | None,
    tokens: int,
    batches: int,
    seed: int,
    device: str,
    online: bool,
    quiet: bool,
) -> Path:
    """The run named, or one made of the model named; the study needs its inputs only, so little is kept."""
    if (Path(source) / "run.json").is_file():
        if inputs is not None or to is not None:
            raise InputError(f"{source} is a run and has its inputs; leave --text, --images and --out out")
        return Path(source)
    from headscape.attention.capture import capture as run_capture
    from headscape.attention.inputs import sample_images, sample_text

    loaded = load(source, device, "float32", online, quiet)
    default = default_run(source, inputs)
    target = to or default.with_name(f"{default.name}-hidden")
    shown: Any = inputs
    if inputs is None:
        shown = sample_images() if loaded.images is not None else [sample_text("rank")]
        sayer(quiet)("no input named: using the sample that comes with headscape")
    with progress_bar("capturing", quiet) as progress:
        run_capture(
            loaded, shown, tokens, batches, ("hidden",), dtype="float32", out=target, seed=seed, progress=progress
        )
    return target


def _collapse(
    path: Path, device: str, online: bool, use_model: bool, control: bool, quiet: bool, **options: Any
) -> Any:
    from headscape.captures import open_capture
    from headscape.studies.collapse.study import collapse as run_collapse

    captured = open_capture(path)
    assert captured.run is not None
    model = other = None
    source = captured.run.model_source
    if source is not None and use_model:
        from headscape.attention.models import load_model

        try:
            model = load_model(source, device=device, online=online)
        except InputError as error:
            sayer(quiet)(f"without its model: {error}")
        if model is not None and control:
            other = load_model(source, device=device, online=online, random_init=options["random_state"])
    with progress_bar("measuring", quiet) as progress:
        return run_collapse(captured, model=model, control=other, progress=progress, say=sayer(quiet), **options)


def _table1(to: Path | None, quiet: bool, jobs: int | None, **options: Any) -> Any:
    import torch

    from headscape.runs import Run
    from headscape.studies.table1.study import check_table1
    from headscape.studies.table1.study import table1 as run_table1

    if jobs is not None:
        torch.set_num_threads(jobs)
    check_table1(options["seeds"], options["depth"], options["alpha_hidden"])
    run = Run.create(to or Path("runs") / "table1", config={"kind": "table1"})
    sayer(quiet)(f"table 1 goes to {run.path}")
    with progress_bar("networks", quiet) as progress:
        return run_table1(run, progress=progress, say=sayer(quiet), **options)
