"""The command that measures collapse along depth, of a model or of the networks of table 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from headscape.attention.wrapping import Model
from headscape.cli import options as o
from headscape.cli.records import Loading, command
from headscape.cli.runs import capture_to, default_run, source_of
from headscape.cli.shared import finish
from headscape.errors import InputError


@dataclass(frozen=True)
class Trained:
    """Which network of a training run."""

    panel: ClassVar[str] = "Networks of a training run"
    arm: Annotated[str, typer.Option(help="For a training run: which arm (kind of attention).")] = "standard"
    step: Annotated[
        int | None, typer.Option(help="For a training run: at which step; by default the weights that were evaluated.")
    ] = None


@dataclass(frozen=True)
class Table1:
    """The networks of table 1."""

    panel: ClassVar[str] = "Table 1"
    table1: Annotated[
        bool,
        typer.Option(
            "--table1", help="Instead of a model: attention-only networks, as in table 1 of Masumura and Taki (2025)."
        ),
    ] = False
    seeds: Annotated[int, o.count("For table 1: how many networks.", 1, 1000)] = 10
    depth: Annotated[int, o.count("For table 1: layers.", 1, 1000)] = 12


@dataclass(frozen=True)
class Variants:
    """Which variants of a model are run as well."""

    panel: ClassVar[str] = "Variants and controls"
    alpha: Annotated[
        float | None,
        typer.Option(help="Also run it with the scaled skip a x + (1 - a) attention of Masumura and Taki (2025)."),
    ] = None
    alpha_hidden: Annotated[
        float,
        typer.Option(
            help="Share a' of the scores before, in variants with a hidden state (scores carried along depth)."
        ),
    ] = 0.5
    cells: Annotated[
        bool, typer.Option("--cells/--no-cells", help="Run four variants: with or without skip, hidden state or none.")
    ] = True
    control: o.Control = True
    use_model: Annotated[
        bool, typer.Option("--model/--no-model", help="Run the model again; otherwise use only what the run kept.")
    ] = True
    float64: Annotated[
        bool, typer.Option("--float64/--float32", help="Precision of the model; float32 residuals stop near 2e-7.")
    ] = True

    def __post_init__(self) -> None:
        for name, value in (("--alpha", self.alpha or 0.0), ("--alpha-hidden", self.alpha_hidden)):
            if not 0 <= value < 1:  # before anything is captured
                raise InputError(f"{name} must be at least 0 and below 1, not {value}")


@command(
    epilog="Examples: `headscape collapse smollm2-135m --tokens 256`, `headscape collapse runs/book`, "
    "`headscape collapse runs/train-gpt --arm both --step 2000`, `headscape collapse --table1`"
)
def collapse(
    source: Annotated[
        str | None,
        typer.Argument(help="A run directory, or a model: name, folder, .gguf file, hub id.", metavar="RUN|MODEL"),
    ] = None,
    text: o.Text = None,
    images: o.Images = None,
    tokens: o.Tokens = 256,
    to: Annotated[Path | None, typer.Option("--out", help="The run directory of a model or of table 1.")] = None,
    batches: o.Batches = 8,
    block: o.Block = None,
    variants: Variants = Variants(),
    trained: Trained = Trained(),
    table: Table1 = Table1(),
    asked: Loading = Loading(),
) -> None:
    """Measure whether tokens become alike along depth, compared with random weights, shuffled inputs, no skip and a hidden state."""
    from headscape.hopfield.trained import is_training_run

    if table.table1 == (source is not None):
        raise InputError("name a run or a model, or ask for --table1")
    training = source is not None and is_training_run(source)
    if trained != Trained() and not training:
        raise InputError("--arm and --step choose a network of a training run (headscape train); leave them out")
    if source is None:
        if text is not None or images is not None:
            raise InputError("table 1 has its own images; leave out --text and --images")
        _table1(to or Path("runs") / "table1", table, variants.alpha_hidden, asked)
        return
    if training:
        if any(given is not None for given in (text, images, to, block)) or variants != Variants():
            raise InputError(f"{source} is a training run with its own inputs and attention; choose --arm and --step")
        _trained(source, trained, batches, asked)
        return
    inputs = source_of(text, images)
    run, model = Path(source), None
    if not (run / "run.json").is_file():
        default = default_run(source, inputs)
        run = to or default.with_name(f"{default.name}-hidden")
        model = asked.load(source)
        kept: dict[str, Any] = {"keep": ("hidden",), "dtype": "float32"}  # the study needs only the inputs
        capture_to(
            model, inputs, run, asked, brief=True, tokens=tokens, batches=batches, random_state=asked.seed, **kept
        )
    elif inputs is not None or to is not None:
        raise InputError(f"{source} is a run and has its own inputs; leave out --text, --images and --out")
    _model(run, model, {"block": block, "batches": batches}, variants, asked)


def _table1(to: Path, table: Table1, alpha_hidden: float, asked: Loading) -> None:
    from headscape.studies.table1 import table1 as run_table1

    options: dict[str, Any] = {"seeds": table.seeds, "depth": table.depth, "alpha_hidden": alpha_hidden}
    with asked.working("networks") as how:
        found = run_table1(to, random_state=asked.seed, **options, **how)
    finish(found, asked.as_json, at=to)


def _trained(source: str, trained: Trained, batches: int, asked: Loading) -> None:
    from headscape.studies.collapse.trained import collapse_trained

    options: dict[str, Any] = {"arm": trained.arm, "step": trained.step, "batches": batches}
    with asked.working("measuring") as how:
        found = collapse_trained(source, random_state=asked.seed, **options, **how)
    finish(found, asked.as_json, at=source, then="another network of the run: the same command with --arm or --step")


def _model(run: Path, model: Model | None, options: dict[str, Any], variants: Variants, asked: Loading) -> None:
    from headscape.studies.collapse import collapse as run_collapse

    options |= {"alpha": variants.alpha, "alpha_hidden": variants.alpha_hidden, "cells": variants.cells}
    options |= {
        "control": variants.control,
        "double": variants.float64,
        "model": variants.use_model and (model or True),
    }
    with asked.working("measuring") as how:
        found = run_collapse(run, loader=asked.loader, random_state=asked.seed, **options, **how)
    finish(found, asked.as_json, at=run)
