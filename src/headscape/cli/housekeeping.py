"""`headscape runs`: list, measure and delete run directories and their studies."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscape.cli import options as o
from headscape.cli.shared import app, out, print_json, print_table
from headscape.errors import InputError

if TYPE_CHECKING:
    from headscape.runs import Run
    from headscape.studies.work.folder import Kept

runs_app = typer.Typer(help="List, measure and delete run directories.", invoke_without_command=True)
app.add_typer(runs_app, name="runs")


@runs_app.callback()
def runs(ctx: typer.Context) -> None:
    """List, measure and delete run directories."""
    if ctx.invoked_subcommand is None:
        list_runs(Path("runs"))


@runs_app.command(
    "list", epilog="Example: `headscape runs list runs`; `headscape runs list runs/book` lists its studies"
)
def list_runs(
    folder: Annotated[Path, typer.Argument(help="A folder of runs, or one run.")] = Path("runs"),
    as_json: o.Json = False,
) -> None:
    """List the runs in a folder with their sizes and studies; of one run, list every study."""
    from headscape.runs import find_runs, human_bytes

    found, damaged = find_runs(folder)
    if as_json:
        facts = [{**run.meta, "path": str(run.path), "bytes": run.n_bytes, "batches": run.n_finished} for run in found]
        for run, fact in zip(found, facts, strict=True):
            fact["studies"] = [_study(kept) for kept in _kept(run)]
        print_json([*facts, *({"path": str(path), "damaged": why} for path, why in damaged.items())])
        return
    rows = [_row(run) for run in found]
    rows += [[str(path), f"damaged: {why}", "", "", "", ""] for path, why in damaged.items()]
    if not rows:
        out.print(f"no runs in {folder}; `headscape capture` makes one")
        return
    columns = ["run", "of", "batches", "studies (finished/kept)", "size", "created"]
    print_table("Runs", columns, rows, right=(2, 4))
    studies = [_study(kept) for run in found if run.path == folder for kept in _kept(run)]
    if studies:
        lines = [[one["study"], one["key"], one["finished"] or "no", human_bytes(one["bytes"])] for one in studies]
        print_table("Studies", ["study", "key", "finished", "size"], lines, right=(3,))


def _row(run: Run) -> list[str]:
    from headscape.runs import human_bytes

    source = run.model_source or run.meta.get("inputs", {}).get("file", "")
    expected = run.meta.get("config", {}).get("batches", run.n_finished + len(run.missing_batches))
    batches = f"{run.n_finished}/{expected}"
    done = Counter(kept.study for kept in _kept(run) if kept.finished is not None)
    counts = Counter(kept.study for kept in _kept(run))
    studies = ", ".join(f"{name} {done[name]}/{n}" for name, n in counts.items())
    created = run.meta["created"][:16].replace("T", " ")
    return [str(run.path), str(source), batches, studies, human_bytes(run.n_bytes), created]


def _kept(run: Run) -> list[Kept]:
    """The studies that are on disk, finished or not."""
    from headscape.studies import STUDIES
    from headscape.studies.work.folder import kept_studies

    return [kept for name in STUDIES for kept in kept_studies(run, name)]


def _study(kept: Kept) -> dict[str, Any]:
    when = None if kept.finished is None else datetime.fromtimestamp(kept.finished, UTC).isoformat(" ", "minutes")
    return {"study": kept.study, "key": kept.path.name, "finished": when, "bytes": kept.n_bytes}


@runs_app.command(
    "delete",
    epilog="Example: `headscape runs delete runs/book --yes`, or one study: `headscape runs delete runs/book --study organize`",
)
def delete_run(
    run: o.Run,
    study: Annotated[
        str | None, typer.Option(help="Delete only this study: organize, or organize/2f9c (the start of its key).")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a run directory and everything in it, or one of its studies."""
    from headscape.runs import Run, human_bytes

    found = Run.open(run)
    if run.is_symlink():
        raise InputError(f"{run} is a link; name the folder it points to: {run.resolve()}")
    doomed = found if study is None else _one_study(found, study)
    others = _not_ours(found) if study is None else []
    if others and yes:
        raise InputError(f"{run} also holds {', '.join(others)}, which headscape did not write; move that away first")
    more = f" with {', '.join(others)}, which headscape did not write" if others else ""
    if not yes and not typer.confirm(f"Delete {doomed.path} ({human_bytes(doomed.n_bytes)}){more}?"):
        return
    doomed.delete()
    out.print(f"deleted {doomed.path}")


def _not_ours(run: Run) -> list[str]:
    """What is in a run directory that no command wrote."""
    from headscape.storage import LOCK, PARTIAL
    from headscape.studies import STUDIES

    pages = ("report.html", "series.html", "claims.html", "claims.csv", "claims.json")
    ours = {"run.json", "attention", *pages, *STUDIES}
    return sorted(p.name for p in run.path.iterdir() if p.name not in ours and not p.name.endswith((LOCK, PARTIAL)))


def _one_study(run: Run, asked: str) -> Kept:
    """The study named by its kind or by kind/key; the first letters of the key are enough."""
    name, _, key = asked.partition("/")
    every = _kept(run)
    found = [kept for kept in every if kept.study == name and kept.path.name.startswith(key)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(f"{kept.study}/{kept.path.name}" for kept in found or every) or "none"
    if not found:
        raise InputError(f"{run.path} has no study {asked!r}; there are: {there}")
    raise InputError(f"{run.path} has {len(found)} studies {asked!r}; name one of {there}")
