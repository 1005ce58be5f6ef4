"""Commands that make and keep runs: capture, import, runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli.old import (
    DeviceOption,
    JsonOption,
    ModelArgument,
    OnlineOption,
    QuietOption,
    RunArgument,
    SeedOption,
    WeightsOption,
    app,
    err,
    load,
    out,
    print_json,
    print_table,
    progress_bar,
    sayer,
)
from headscape.errors import InputError

runs_app = typer.Typer(help="List, measure and delete run directories.", invoke_without_command=True)
app.add_typer(runs_app, name="runs")


@app.command(
    epilog="Example: `headscape capture smollm2-135m --text book.txt --tokens 256 --batches 10 --out runs/book`"
)
def capture(
    model: ModelArgument,
    text: Annotated[Path | None, typer.Option(help="A text file or a folder of them.")] = None,
    images: Annotated[Path | None, typer.Option(help="An image, a folder of images, or an .npz with 'images'.")] = None,
    to: Annotated[Path | None, typer.Option("--out", help="The run directory; resumed when it exists.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens in a context.")] = 256,
    batches: Annotated[int, typer.Option(help="How many contexts.")] = 10,
    keep: Annotated[
        str, typer.Option(help="Comma-separated: probs, scores, queries, keys, values, hidden, head_outputs.")
    ] = "probs",
    layers: Annotated[str | None, typer.Option(help="Only these layers: 0,1,5-8.")] = None,
    heads: Annotated[str | None, typer.Option(help="Only these heads: decoder.3.7,decoder.4.0.")] = None,
    dtype: Annotated[str, typer.Option(help="Of the stored numbers: float16 or float32.")] = "float16",
    pool: Annotated[
        int | None, typer.Option(help="Average attention onto POOL x POOL blocks of tokens; for long contexts.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="With --pool: keep so many sampled rows of every head whole.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put each context into the model's chat template.")] = False,
    keep_short: Annotated[bool, typer.Option("--keep-short", help="Keep texts shorter than a context.")] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Only say what memory, disk and time it would take; write nothing.")
    ] = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    weights: WeightsOption = "float32",
    online: OnlineOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a model on text or images and keep its attention in a run directory."""
    source = source_of(text, images)
    check_blocks(pool, rows)
    loaded = load(model, device, weights, online, quiet)
    options: dict[str, Any] = {
        "tokens": tokens,
        "batches": batches,
        "keep": tuple(part.strip() for part in keep.split(",")),
        "layers": _numbers(layers),
        "heads": None if heads is None else [part.strip() for part in heads.split(",")],
        "dtype": dtype,
        "pool": pool,
        "windows": None if rows is None else f"rows:{rows}",
        "chat": chat,
        "keep_short": keep_short,
        "seed": seed,
    }
    if estimate:
        _print_estimate(loaded, source, as_json, quiet, options)
        return
    capture_to(loaded, source, to or default_run(model, source), as_json=as_json, quiet=quiet, **options)


def check_blocks(pool: int | None, rows: int | None) -> None:
    """What can be said of blocks and rows before a model is loaded for nothing."""
    if rows is not None and rows < 1:
        raise InputError(f"rows must be at least 1, not {rows}")
    if rows is not None and pool is None:
        raise InputError("--rows keeps rows beside a pooled capture; give --pool too")
    if pool is not None and pool < 1:
        raise InputError(f"pool must be at least 1, not {pool}")


def default_run(model: str, source: Path | None) -> Path:
    """Where a run goes when nobody says."""
    return Path("runs") / f"{Path(model).name}-{source.stem if source is not None else 'sample'}"


def source_of(text: Path | None, images: Path | None) -> Path | None:
    """The one input named, which must exist; None for the sample."""
    if text is not None and images is not None:
        raise InputError("give either --text or --images, not both")
    source = text if text is not None else images
    if source is not None and not source.exists():  # said before a model is loaded for nothing
        raise InputError(f"no file or folder {str(source)!r}")
    return source


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        numbers: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
        return numbers
    except ValueError:
        raise InputError(f"'{text}' is not a list of numbers like 0,1,5-8") from None


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(0.42), duration(75), duration(9000)
    ('0.42 s', '75 s', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _print_estimate(loaded: Any, source: Path | None, as_json: bool, quiet: bool, options: dict[str, Any]) -> None:
    from headscape.attention.capture import plan_capture
    from headscape.runs import human_bytes

    sayer(quiet)("timing a few short passes; nothing is written")
    needed = plan_capture(loaded, _inputs(loaded, source, quiet), **options)
    assert needed.pace is not None
    assert needed.seconds is not None
    a, b, c = needed.pace.coefficients
    facts: dict[str, Any] = {
        "tokens": needed.n_tokens,
        "batches": needed.batches,
        "memory of the model": needed.model_bytes,
        "memory beside it": needed.memory_bytes,
        "disk a batch": needed.batch_bytes,
        "disk in all": needed.batch_bytes * needed.batches,
        "seconds": needed.seconds,
        "seconds a batch": f"{a:.3g} + {b:.3g} n + {c:.3g} n^2",
        "timed at tokens": list(needed.pace.tokens),
        "timed seconds": list(needed.pace.measured),
    }
    if as_json:
        print_json(facts)
        return
    rows = [
        ["memory", f"{human_bytes(needed.model_bytes)} for the model, about {human_bytes(needed.memory_bytes)} more"]
    ]
    rows += [
        [
            "disk",
            f"{human_bytes(needed.batch_bytes)} a batch, {human_bytes(needed.batch_bytes * needed.batches)} in all",
        ]
    ]
    rows += [["time", f"about {duration(needed.seconds)} for {needed.batches} x {needed.n_tokens} tokens"]]
    timed = ", ".join(map(str, needed.pace.tokens))
    law = f": {facts['seconds a batch']} s" if b or c else ""
    rows += [
        ["", f"an estimate from passes of {timed} tokens{law}; without writing to disk, on the machine as it is now"]
    ]
    print_table("A capture would take", ["", ""], rows)


def _inputs(loaded: Any, source: Path | None, quiet: bool) -> Any:
    """What was named, or the sample."""
    from headscape.attention.inputs import sample_images, sample_text

    if source is not None:
        return source
    sayer(quiet)("no input named: using the sample that comes with headscape")
    return sample_images() if loaded.images is not None else [sample_text("rank")]


def capture_to(loaded: Any, source: Path | None, target: Path, *, as_json: bool, quiet: bool, **options: Any) -> None:
    """Capture into a run directory and print what was captured."""
    from headscape.attention.capture import capture as run_capture
    from headscape.runs import human_bytes

    inputs = _inputs(loaded, source, quiet)
    with progress_bar("capturing", quiet) as progress:
        found = run_capture(loaded, inputs, out=target, progress=progress, say=sayer(quiet), **options)
    run = found.run
    assert run is not None
    first = (
        found.tensor(0, found.blocks[0], "probs" if "probs" in found.kept else "scores")
        if {"probs", "scores"} & set(found.kept)
        else None
    )
    facts = {
        "run": str(run.path),
        "model": loaded.source,
        "batches": len(found),
        "blocks": {block: len(found.heads(block)) for block in found.blocks},
        "shape of a batch": list(first.shape) if first is not None else None,
        "kept": found.kept,
        "parity": run.meta.get("parity", {}).get("max_difference"),
        "bytes": run.n_bytes,
    }
    if found.pool is not None:
        facts["pooled"] = f"{run.meta['config']['tokens']} tokens to {found.pool} blocks"
    if as_json:
        print_json(facts)
        return
    shown = {**facts, "bytes": human_bytes(run.n_bytes), "kept": ", ".join(found.kept)}
    shown["blocks"] = ", ".join(f"{block} ({n} heads)" for block, n in facts["blocks"].items())
    shown["shape of a batch"] = " x ".join(map(str, first.shape)) + " (query, key, head)" if first is not None else "-"
    print_table("Captured", ["", ""], [[k, str(v)] for k, v in shown.items()])


@app.command("import", epilog="Example: `headscape import attention.npy --layout layer,head,query,key --out runs/mine`")
def import_(
    file: Annotated[Path, typer.Argument(help="An .npy, .npz or .safetensors array of attention.", metavar="FILE")],
    to: Annotated[Path | None, typer.Option("--out", help="The run directory.")] = None,
    name: Annotated[str | None, typer.Option(help="Which array of the file.")] = None,
    layout: Annotated[str, typer.Option(help="Its axes in order; may name batch and layer too.")] = "query,key,head",
    kind: Annotated[str, typer.Option(help="probs or scores.")] = "probs",
    mask: Annotated[str | None, typer.Option(help="causal or full; found from the zeros otherwise.")] = None,
    dtype: Annotated[str, typer.Option(help="Of the stored numbers: float16 or float32.")] = "float16",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make a run of attention you already have; no model is needed."""
    from headscape.captures import import_array

    for value, allowed in (
        (kind, ("probs", "scores")),
        (mask, (None, "causal", "full")),
        (dtype, ("float16", "float32")),
    ):
        if value not in allowed:
            raise InputError(f"{value!r} is not one of {', '.join(str(a) for a in allowed if a)}")
    target = to or Path("runs") / file.stem
    found = import_array(file, target, name=name, layout=layout, kind=kind, mask=mask, dtype=dtype)  # type: ignore[arg-type]
    first = found.tensor(0, kind=kind)  # type: ignore[arg-type]
    facts = {"run": str(target), "batches": len(found), "tensor": repr(first)}
    if as_json:
        print_json(facts)
    elif not quiet:
        print_table("Imported", ["", ""], [[k, str(v)] for k, v in facts.items()])


@runs_app.callback()
def runs(ctx: typer.Context) -> None:
    """List, measure and delete run directories."""
    if ctx.invoked_subcommand is None:
        list_runs(Path("runs"))


@runs_app.command("list", epilog="Example: `headscape runs list runs`")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where to look.")] = Path("runs"), as_json: JsonOption = False
) -> None:
    """List the runs in a folder with their sizes."""
    from headscape.runs import find_runs, human_bytes

    found, unreadable = find_runs(folder)
    if as_json:
        print_json([{"path": str(r.path), "bytes": r.n_bytes, "batches": r.n_finished, **r.meta} for r in found])
        return
    rows = [
        [
            str(r.path),
            str(r.meta.get("model", {}).get("source", r.meta.get("inputs", {}).get("file", ""))),
            f"{r.n_finished}/{r.meta.get('config', {}).get('batches', r.n_finished)}",
            ", ".join(r.studies),
            human_bytes(r.n_bytes),
            r.meta["created"][:16].replace("T", " "),
        ]
        for r in found
    ]
    if rows:
        print_table("Runs", ["run", "of", "batches", "studies", "size", "created"], rows, right=(2, 4))
    else:
        out.print(f"no runs in {folder}; `headscape capture` makes one", highlight=False)
    for problem in unreadable:
        err.print(problem, highlight=False, markup=False)


@runs_app.command("delete", epilog="Example: `headscape runs delete runs/book --yes`")
def delete_run(run: RunArgument, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Delete a run directory and everything in it."""
    from headscape.runs import Run, human_bytes

    found = Run.open(run)
    if not yes and not typer.confirm(f"Delete {run} ({human_bytes(found.n_bytes)})?"):
        return
    found.delete()
    out.print(f"deleted {run}", highlight=False)
