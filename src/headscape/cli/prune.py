"""The command that proposes heads to remove, with the evidence, and writes the smaller model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from headscape.cli import options as o
from headscape.cli.records import Loading, command
from headscape.cli.runs import source_of
from headscape.cli.shared import finish, listed
from headscape.errors import InputError


@dataclass(frozen=True)
class Judging:
    """What is shown to the model to choose, to fit and to judge."""

    panel: ClassVar[str] = "What it is judged on"
    text: Annotated[
        Path | None, typer.Option(help="Text file or folder; heads are chosen on one part of it and judged on another.")
    ] = None
    images: Annotated[
        Path | None, typer.Option(help="Labelled images (.npz), used in the same way for a classifier.")
    ] = None
    task: Annotated[
        Path | None, typer.Option(help="An ability of your own to keep: JSON lines with prompt and completion.")
    ] = None
    task_by: Annotated[str, typer.Option(help="Judge that task by loss or accuracy.")] = "loss"
    calibrate: Annotated[
        str | None,
        typer.Option(
            help="Text or images to calibrate on, by default a quarter of those given; `sample` is headscape's prose."
        ),
    ] = None
    repeats: Annotated[
        str,
        typer.Option(help="Share of the calibration windows that repeat their first half, which preserves copying."),
    ] = "25%"
    windows: Annotated[int, o.count("Windows of text to judge on; half as many more are used to choose heads.", 3)] = 16

    @property
    def options(self) -> dict[str, Any]:
        """As the study takes them."""
        found = asdict(self) | {"inputs": source_of(self.text, self.images), "repeats": share(self.repeats)}
        return {name: value for name, value in found.items() if name not in ("text", "images")}


@dataclass(frozen=True)
class Searching:
    """How heads are ranked and chosen."""

    panel: ClassVar[str] = "How heads are chosen"
    unit: Annotated[
        str, typer.Option(help="What is removed at a time: head, group (a key/value head with its queries), layer.")
    ] = "auto"
    evaluations: Annotated[int, o.count("How many sets of heads the search may try.")] = 8
    criterion: Annotated[
        str,
        typer.Option(
            help="How heads are ranked: auto, a criterion (novelty, gradient, l1_top, ...), or an average of ranks a+b."
        ),
    ] = "auto"
    compensation: Annotated[
        str, typer.Option(help="What replaces a removed head: auto, none, mean, scale or linear.")
    ] = "auto"
    study: Annotated[
        bool, typer.Option("--study", help="Also compare all criteria along curves, with controls: takes hours.")
    ] = False
    criteria: Annotated[str | None, typer.Option(help="Compare only these: novelty,gradient,l1_all.")] = None
    fractions: Annotated[str, typer.Option(help="Shares of heads along the curves of a study, in percent.")] = (
        "10,20,30"
    )
    block: o.Block = None

    @property
    def options(self) -> dict[str, Any]:
        """As the study takes them."""
        found = asdict(self) | {"fractions": [share(f"{part}%") for part in self.fractions.split(",")]}
        del found["criteria"]
        return found if self.criteria is None else found | {"criteria": listed(self.criteria)}


@dataclass(frozen=True)
class Writing:
    """The smaller model."""

    panel: ClassVar[str] = "The smaller model"
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Write the smaller model here: a folder, or FILE.gguf for llama.cpp.")
    ] = None
    kind: Annotated[
        str,
        typer.Option(
            help="How to write it: ragged (every layer keeps its own heads), uniform (equally many per layer), masked (set to 0), gguf, or auto."
        ),
    ] = "auto"
    numbers: Annotated[str, typer.Option(help="Number type of a GGUF file: f16, q8_0 or q4_1.")] = "f16"
    heal: Annotated[
        int,
        o.count(
            "Steps of distillation of the output projections after pruning (40 is a good start, 100 if many heads are removed).",
            0,
        ),
    ] = 0


@command(epilog="Example: `headscape prune runs/book --budget text=1%,copy=2% --out smaller.gguf`")
def prune(
    run: o.Run,
    budget: Annotated[
        str,
        typer.Option(
            help="Largest cost allowed for each ability: 1%, or one by one: text=1%,copy=2%,retrieval=5%,task=1%."
        ),
    ] = "1%",
    heads: Annotated[int | None, o.count("Remove this many heads instead of searching a budget.")] = None,
    writing: Writing = Writing(),
    judging: Judging = Judging(),
    searching: Searching = Searching(),
    asked: Loading = Loading(),
) -> None:
    """Find heads to remove within a budget for every ability, validate them on held-out text, write the smaller model."""
    from headscape.pruning.export import check_kind
    from headscape.studies.prune.study import prune as run_prune
    from headscape.studies.work.how import Work

    to, kind, numbers = writing.out_dir, writing.kind, writing.numbers
    check_kind(kind, to, numbers)
    options = judging.options | searching.options | {"out": to, "kind": kind, "heal": writing.heal}
    options |= {"budget": None if heads is not None else budget_of(budget), "n_heads": heads}
    export = None
    with asked.working("pruning") as how:
        result = run_prune(run, loader=asked.loader, random_state=asked.seed, **options, **how)
        if to is not None and result.proposal:
            steps = Work.of(**how).stage("writing and timing", 1)
            export = str(result.export(to, kind, numbers=numbers, timed=3))  # type: ignore[arg-type]
            steps.one()
    heads_line = f"{'removed' if export else 'heads to remove'}: {' '.join(map(str, result.proposal)) or 'none'}"
    beside, then = [heads_line], None
    if export is not None:
        beside.append(export)
        then = f"the landscape of what is left: headscape analyze {to}"
    finish(result, asked.as_json, at=run, beside=beside, then=then, export=export)


def budget_of(text: str) -> float | dict[str, float]:
    """A budget for every ability, or by ability.

    >>> budget_of("1%"), budget_of("text=1%,copy=2%")
    (0.01, {'text': 0.01, 'copy': 0.02})
    """
    if "=" not in text:
        return share(text)
    parts = [part.partition("=") for part in text.split(",")]
    found: dict[str, float] = {}
    for name, _, value in parts:
        if not name.strip() or not value.strip() or name.strip() in found:
            raise InputError(f"a budget by ability names each once with a share: text=1%,copy=2%; not {text!r}")
        found[name.strip()] = share(value)
    return found


def share(text: str) -> float:
    """A share as a number: 2% and 0.02 are the same.

    >>> share("2%"), share("0.02")
    (0.02, 0.02)
    """
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise InputError(f"{text.removesuffix('%')!r} is not a number; give a share as 2% or 0.02") from None
