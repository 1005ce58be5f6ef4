"""What the commands share: options, the bar, tables, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headscape.errors import InputError

app = typer.Typer(
    name="headscape",
    help="Map the attention heads of a transformer.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console()
err = Console(stderr=True)

ModelArgument = Annotated[str, typer.Argument(help="Bundled name, folder, .gguf file or hub id.", metavar="MODEL")]
RunArgument = Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the result.")]
SeedOption = Annotated[int, typer.Option(help="Settles every random choice.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
OnlineOption = Annotated[bool, typer.Option("--online", help="Allow a hub id to be downloaded.")]
WeightsOption = Annotated[
    str, typer.Option("--weights", help="Number type of the weights: float32, bfloat16, float16.")
]
EngineOption = Annotated[
    str, typer.Option("--engine", help="Who works: local (processes of this machine) or dask (a cluster).")
]
SchedulerOption = Annotated[
    str | None,
    typer.Option("--scheduler", help="tcp://HOST:PORT of a Dask scheduler; a cluster of --jobs processes without."),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Redo only what is missing, as always; refuse, rather than start anew, if settings are not those before.",
    ),
]


def engine_of(name: str, jobs: int, scheduler: str | None) -> Any:
    """The engine the options ask for."""
    from headscape.studies.engines import make_engine

    return make_engine(name, jobs, scheduler)


def sayer(quiet: bool) -> Callable[[str], None]:
    """What prints lines worth reading, or nothing."""
    return (lambda _: None) if quiet else (lambda line: err.print(line, highlight=False, markup=False))


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """One bar with count, rate and time left."""
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    ]
    bar = Progress(*columns, console=err, disable=quiet)
    task = bar.add_task(what, total=None, rate="")

    def update(done: int, total: int) -> None:
        bar.start()  # only now: an error before the first step stays one line
        speed = bar.tasks[0].speed
        rate = "" if not speed else f"{speed:.2g}/s" if speed >= 1 else f"{1 / speed:.2g} s each"
        bar.update(task, completed=done, total=total, rate=rate)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


def print_table(title: str, columns: list[str], rows: list[list[str]], right: tuple[int, ...] = ()) -> None:
    """Print a small table."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def print_json(content: Any) -> None:
    """Print JSON for machines."""
    sys.stdout.write(json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")


def load(spec: str, device: str, weights: str, online: bool, quiet: bool) -> Any:
    """Load a model and say what is fetched."""
    from headscape.attention.models import load_model

    return load_model(spec, device=device, dtype=weights, online=online, say=sayer(quiet))


def models_of(
    run: Any, use_model: bool, random_weights: bool, seed: int, without: str, say: Callable[[str], None]
) -> tuple[Any, Any]:
    """The model of a run and, if asked for, the same with random weights; None for what is not wanted.

    A study that can do without its model goes on when it cannot be loaded, and says what is left out (`without`).
    """
    source = run.model_source
    if source is None and random_weights:
        raise InputError(f"{run.path} was imported: there is no model to give random weights")
    if source is None or not (use_model or random_weights):
        return None, None
    from headscape.attention.models import load_model

    model = None
    try:
        model = load_model(source) if use_model else None
    except InputError as error:
        say(f"{without}: {error}")
    return model, load_model(source, random_init=seed) if random_weights else None
