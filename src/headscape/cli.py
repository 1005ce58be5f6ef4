"""The command line: parses, calls, prints. Errors are one line; exit code 2 is a mistake in what was asked, 1 ours."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headscape.errors import HeadscapeError, InputError

app = typer.Typer(
    name="headscape",
    help="Map the attention heads of a transformer.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
runs_app = typer.Typer(help="List, measure and delete run directories.", invoke_without_command=True)
app.add_typer(runs_app, name="runs")
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


def _sayer(quiet: bool) -> Callable[[str], None]:
    return (lambda _: None) if quiet else (lambda line: err.print(line, highlight=False, markup=False))


@contextmanager
def _progress(what: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
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


def _print_table(title: str, columns: list[str], rows: list[list[str]], right: tuple[int, ...] = ()) -> None:
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _print_json(content: Any) -> None:
    sys.stdout.write(json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")


def _load(spec: str, device: str, weights: str, online: bool, quiet: bool) -> Any:
    from headscape.attention.models import load_model

    return load_model(spec, device=device, dtype=weights, online=online, say=_sayer(quiet))


@app.command(epilog="Example: `headscape models --get smollm2-135m`")
def models(
    get: Annotated[list[str] | None, typer.Option("--get", help="Fetch the weights of this model.")] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """List the bundled models, or fetch the weights of one."""
    from headscape.attention import bundled
    from headscape.attention.models import list_models
    from headscape.runs import human_bytes

    for name in get or []:
        folder = bundled.fetch(name, _sayer(quiet))
        out.print(str(folder), soft_wrap=True, highlight=False)
    if get:
        return
    entries = list_models()
    if as_json:
        _print_json([vars(entry) for entry in entries])
        return
    rows = [
        [e.name, e.summary, e.licence, "here" if e.present else f"fetch {human_bytes(e.download)}"] for e in entries
    ]
    _print_table("Bundled models", ["name", "what", "licence", "weights"], rows)
    out.print("Any model folder, .gguf file or hub id works too.", highlight=False)


@app.command(epilog="Example: `headscape check smollm2-135m`")
def check(
    model: ModelArgument,
    device: DeviceOption = "auto",
    weights: WeightsOption = "float32",
    online: OnlineOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Check that headscape captures a model exactly: its logits under capture against its own."""
    from headscape.attention.capture import check_parity
    from headscape.attention.tapping import way_of

    loaded = _load(model, device, weights, online, quiet)
    parity = check_parity(loaded)
    facts = {
        **loaded.describe(),
        "tapped by": way_of(loaded.module, loaded.attention),
        "attention layers captured": parity.n_layers,
        "blocks": sorted({site.block for site in loaded.sites}),
        "largest logit": parity.scale,
        "largest difference": parity.max_difference,
        "parity": "ok" if parity.ok else "FAILED",
    }
    if as_json:
        _print_json(facts)
    else:
        shown = [[k, ", ".join(map(str, v)) if isinstance(v, (list, tuple)) else str(v)] for k, v in facts.items()]
        _print_table(f"{model}", ["", ""], shown)
    if not parity.ok:
        raise HeadscapeError(f"logits under capture differ by {parity.max_difference:.2g}: {model} is not supported")


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
    chat: Annotated[bool, typer.Option("--chat", help="Put each context into the model's chat template.")] = False,
    keep_short: Annotated[bool, typer.Option("--keep-short", help="Keep texts shorter than a context.")] = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    weights: WeightsOption = "float32",
    online: OnlineOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a model on text or images and keep its attention in a run directory."""
    source = _source(text, images)
    loaded = _load(model, device, weights, online, quiet)
    stem = source.stem if isinstance(source, Path) else "sample"
    target = to or Path("runs") / f"{Path(model).name}-{stem}"
    _capture(
        loaded,
        source,
        target,
        as_json=as_json,
        quiet=quiet,
        tokens=tokens,
        batches=batches,
        keep=tuple(part.strip() for part in keep.split(",")),
        layers=_numbers(layers),
        heads=None if heads is None else [part.strip() for part in heads.split(",")],
        dtype=dtype,
        chat=chat,
        keep_short=keep_short,
        seed=seed,
    )


def _source(text: Path | None, images: Path | None) -> Path | None:
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


def _capture(loaded: Any, source: Path | None, target: Path, *, as_json: bool, quiet: bool, **options: Any) -> None:
    from headscape.attention.capture import capture as run_capture
    from headscape.attention.inputs import sample_images, sample_text
    from headscape.runs import human_bytes

    inputs: Any = source
    if source is None:
        inputs = sample_images() if loaded.images is not None else [sample_text("rank")]
        _sayer(quiet)("no input named: using the sample that comes with headscape")
    with _progress("capturing", quiet) as progress:
        found = run_capture(loaded, inputs, out=target, progress=progress, say=_sayer(quiet), **options)
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
    if as_json:
        _print_json(facts)
        return
    shown = {**facts, "bytes": human_bytes(run.n_bytes), "kept": ", ".join(found.kept)}
    shown["blocks"] = ", ".join(f"{block} ({n} heads)" for block, n in facts["blocks"].items())
    shown["shape of a batch"] = " x ".join(map(str, first.shape)) + " (query, key, head)" if first is not None else "-"
    _print_table("Captured", ["", ""], [[k, str(v)] for k, v in shown.items()])


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
        _print_json(facts)
    elif not quiet:
        _print_table("Imported", ["", ""], [[k, str(v)] for k, v in facts.items()])


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
        _print_json([{"path": str(r.path), "bytes": r.n_bytes, "batches": r.n_finished, **r.meta} for r in found])
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
        _print_table("Runs", ["run", "of", "batches", "studies", "size", "created"], rows, right=(2, 4))
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


@app.command(epilog="Example: `headscape demo`")
def demo(
    to: Annotated[Path, typer.Option("--out", help="The run directory.")] = Path("runs/demo"),
    batches: Annotated[int, typer.Option(help="How many contexts.")] = 3,
    tokens: Annotated[int, typer.Option(help="Tokens in a context.")] = 256,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Run the embedded default from end to end: SmolLM2 on the sample prose."""
    loaded = _load("smollm2-135m", "auto", "float32", False, quiet)
    _capture(loaded, None, to, as_json=False, quiet=quiet, batches=batches, tokens=tokens, seed=seed)
    out.print(f"wrote {to.resolve()}", soft_wrap=True, highlight=False)


def main() -> None:
    """Entry point: turn every failure into one line and an exit code."""
    try:
        app(standalone_mode=True)
    except HeadscapeError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("stopped; run the same command again to go on where it stopped", 130)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed: pip install 'headscape[models]'", 2)
    except MemoryError:
        _fail("out of memory; take fewer tokens, heads or batches", 1)
    except Exception as error:
        if os.environ.get("HEADSCAPE_DEBUG"):
            raise
        line = (str(error).splitlines() or [""])[0]
        _fail(f"{type(error).__name__}: {line} (a failure of ours; HEADSCAPE_DEBUG=1 shows the trace)", 1)


def _fail(message: str, code: int) -> None:
    err.print(f"error: {' '.join(message.split())}", highlight=False, markup=False, soft_wrap=True)
    raise SystemExit(code)
