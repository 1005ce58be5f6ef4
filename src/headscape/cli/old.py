"""Options under their first names, until every command has moved to `options` and `shared`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli.shared import app, err, out, print_json, print_table, progress_bar, sayer
from headscape.errors import InputError

__all__ = ["app", "err", "out", "print_json", "print_table", "progress_bar", "sayer"]

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
    from headscape.studies.work.engines import make_engine

    return make_engine(name, jobs, scheduler)


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
