"""Commands that make runs: capture, import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headscape.checks import one_of
from headscape.cli import options as o
from headscape.cli.records import Ending, Fetching, command
from headscape.cli.shared import app, close, listed, print_facts, print_json, print_table, progress_bar, sayer
from headscape.errors import InputError
from headscape.fingerprints import digest
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.captures import Capture

Source = Path | list[str] | None
MAX_LAYERS = 10_000


@command(epilog="Example: `headscape capture smollm2-135m --text book.txt --tokens 256 --batches 10 --out runs/book`")
def capture(
    model: o.Model,
    text: o.Text = None,
    images: o.Images = None,
    to: o.Out = None,
    tokens: o.Tokens = 256,
    batches: o.Batches = 10,
    keep: o.Keep = "probs",
    layers: Annotated[str | None, typer.Option(help="Only these layers: 0,1,5-8.")] = None,
    heads: Annotated[str | None, typer.Option(help="Only these heads, as layer.head: 3.7,4.0 or decoder.3.7.")] = None,
    dtype: o.Stored = "float16",
    pool: o.Pool = None,
    rows: Annotated[int | None, o.count("With --pool: also keep this many sampled rows per head.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap each context in the model's chat template.")] = False,
    keep_short: Annotated[bool, typer.Option("--keep-short", help="Keep texts shorter than a context.")] = False,
    estimate: o.Estimate = False,
    seed: o.Seed = 0,
    asked: Fetching = Fetching(),
) -> None:
    """Run a model on text or images and keep its attention in a run directory."""
    source = source_of(text, images)
    check_blocks(pool, rows)
    wanted = heads_of(heads)
    one_of("dtype", dtype, ("float16", "float32"))
    options: dict[str, Any] = {
        **{"tokens": tokens, "batches": batches, "keep": kept_of(keep)},
        **{"layers": _numbers(layers), "heads": wanted, "dtype": dtype},
        **{"pool": pool, "windows": None if rows is None else f"rows:{rows}"},
        **{"chat": chat, "keep_short": keep_short, "random_state": seed},
    }
    loaded = asked.load(model)
    check_reads(loaded, text, images)
    if estimate:
        _print_estimate(loaded, source, asked, options)
    else:
        capture_to(loaded, source, to or default_run(model, source), asked, **options)


def kept_of(text: str) -> tuple[str, ...]:
    """What to keep; anything else is refused before a model is loaded."""
    from headscape.captures import KEEP

    kept = tuple(listed(text) or ())
    if not kept or not set(kept) <= set(KEEP):
        raise InputError(f"keep is a selection of {', '.join(KEEP)}, not {text!r}")
    return kept


def heads_of(text: str | None) -> list[str] | None:
    """The heads of a list like decoder.3.7,4.0; anything else is refused before a model is loaded."""
    named = listed(text)
    for head in named or ():
        HeadId.parse(head, ["the only block"])
    return named


def check_reads(loaded: Model, text: Any, images: Any) -> None:
    """Refuse text for a network that reads images, and the other way round."""
    if images and loaded.images is None:
        raise InputError(f"{loaded.source} reads text, not images; give it a text file with --text")
    if text and loaded.images is not None:
        raise InputError(f"{loaded.source} reads images, not text; give it images with --images")


def check_blocks(pool: int | None, rows: int | None) -> None:
    """Refuse --rows without --pool before a model is loaded."""
    if rows is not None and pool is None:
        raise InputError("--rows keeps rows beside a pooled capture; give --pool too")


def default_run(model: str, source: Source) -> Path:
    """The default run directory; for prompts it is named by their content."""
    name = "sample" if source is None else source.stem if isinstance(source, Path) else f"prompt-{digest(source)[:6]}"
    return Path("runs") / f"{Path(model).name}-{name}"


def source_of(text: Path | None, images: Path | None, prompts: list[str] | None = None) -> Source:
    """The one input that was given, which must exist and not be empty; None for the sample."""
    from headscape.attention.inputs import Prompts, read_texts

    given = [name for name, value in (("--text", text), ("--images", images), ("--prompt", prompts)) if value]
    if len(given) > 1:
        raise InputError(
            f"give {' or '.join(given)}, not both" if len(given) == 2 else f"give one of {', '.join(given)}"
        )
    if prompts:  # all is checked before a model is loaded for nothing
        empty = [i for i, prompt in enumerate(prompts, start=1) if not prompt.strip()]
        if empty:
            raise InputError(f"prompt {empty[0]} is empty")
        return Prompts(prompts)
    source = text if text is not None else images
    if source is not None and not source.exists():
        raise InputError(f"no file or folder {str(source)!r}")
    if text is not None:
        read_texts(text)
    return source


def _numbers(text: str | None) -> list[int] | None:
    """The numbers of a list like 0,1,5-8."""
    numbers: list[int] = []
    for part in listed(text) or []:
        first, dash, last = part.partition("-")
        try:
            ends = int(first), int(last if dash else first)
        except ValueError:
            raise InputError(f"'{text}' is not a list of numbers like 0,1,5-8") from None
        if ends[1] < ends[0]:
            raise InputError(f"'{part}' ends before it begins")
        if ends[1] - ends[0] > MAX_LAYERS:
            raise InputError(f"'{part}' names more than {MAX_LAYERS:,} layers")
        numbers += range(ends[0], ends[1] + 1)
    return numbers if text is not None else None


def _print_estimate(loaded: Model, source: Source, asked: Ending, options: dict[str, Any]) -> None:
    from headscape.attention.capture import plan_capture
    from headscape.runs import human_bytes, human_seconds

    sayer(asked.quiet)("timing a few short passes; nothing is written")
    needed = plan_capture(loaded, _inputs(loaded, source, asked.quiet), **options)
    assert needed.pace is not None
    assert needed.seconds is not None
    a, b, c = needed.pace.coefficients
    law = f"{a:.3g} + {b:.3g} n + {c:.3g} n^2"
    disk = needed.batch_bytes, needed.batch_bytes * needed.batches
    if asked.as_json:
        facts = {"tokens": needed.n_tokens, "batches": needed.batches, "memory of the model": needed.model_bytes}
        facts |= {"memory besides the model": needed.memory_bytes, "disk per batch": disk[0], "disk in total": disk[1]}
        timed = {"timed at tokens": list(needed.pace.tokens), "timed seconds": list(needed.pace.measured)}
        print_json(facts | {"seconds": needed.seconds, "seconds per batch": law} | timed)
        return
    passes = ", ".join(map(str, needed.pace.tokens))
    formula = f": {law} s per batch of n tokens" if b or c else ""
    rows = [
        ["memory", f"{human_bytes(needed.model_bytes)} for the model, about {human_bytes(needed.memory_bytes)} more"],
        ["disk", f"{human_bytes(disk[0])} per batch, {human_bytes(disk[1])} in total"],
        ["time", f"about {human_seconds(needed.seconds)} for {needed.batches} x {needed.n_tokens} tokens"],
        ["", f"an estimate from passes of {passes} tokens{formula}; excludes writing to disk, at the current load"],
    ]
    print_table("A capture would take", ["", ""], rows)


def _inputs(loaded: Model, source: Source, quiet: bool) -> Any:
    """The input that was named, or the sample."""
    from headscape.attention.inputs import sample_images, sample_text

    if source is not None:
        return source
    sayer(quiet)("no input given: using the sample that comes with headscape")
    return sample_images() if loaded.images is not None else [sample_text("rank")]


def capture_to(
    loaded: Model, source: Source, target: Path, asked: Ending, brief: bool = False, **options: Any
) -> Capture:
    """Capture into a run directory and print what was captured, unless `brief`."""
    from headscape.attention.capture import capture as run_capture
    from headscape.runs import human_bytes

    inputs = _inputs(loaded, source, asked.quiet)
    with progress_bar("capturing", asked.quiet) as progress:
        found = run_capture(loaded, inputs, out=target, progress=progress, say=sayer(asked.quiet), **options)
    if brief:
        return found
    run = found.run
    assert run is not None
    shape = (
        list(found.tensor(0, found.blocks[0], found.kind()).shape) if {"probs", "scores"} & set(found.kept) else None
    )
    blocks = {block: len(found.heads(block)) for block in found.blocks}
    facts: dict[str, Any] = {"run": str(run.path), "model": loaded.source, "batches": len(found), "blocks": blocks}
    facts |= {"shape of a batch": shape, "kept": found.kept}
    facts |= {"parity": run.meta.get("parity", {}).get("max_difference"), "bytes": run.n_bytes}
    if found.pool is not None:
        facts["pooled"] = f"{run.meta['config']['tokens']} tokens to {found.pool} blocks"
    shown = {"blocks": ", ".join(f"{block} ({n} heads)" for block, n in blocks.items())}
    shown["shape of a batch"] = "-" if shape is None else " x ".join(map(str, shape)) + " (query, key, head)"
    print_facts("Captured", facts, asked.as_json, shown | {"bytes": human_bytes(run.n_bytes)})
    return found


@app.command("import", epilog="Example: `headscape import attention.npy --layout layer,head,query,key --out runs/mine`")
def import_(
    file: Annotated[Path, typer.Argument(help="An .npy, .npz or .safetensors array of attention.", metavar="FILE")],
    to: o.Out = None,
    name: Annotated[str | None, typer.Option(help="Which array of the file.")] = None,
    layout: Annotated[
        str | None, typer.Option(help="Its axes in order; may include batch and layer. [default: query,key,head]")
    ] = None,
    kind: Annotated[str, typer.Option(help="probs or scores.")] = "probs",
    mask: Annotated[str | None, typer.Option(help="causal or full; by default inferred from the zeros.")] = None,
    dtype: o.Stored = "float16",
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Make a run from attention you already have; no model is needed."""
    from headscape.imports import import_array

    target = to or Path("runs") / file.stem
    found = import_array(file, target, name=name, layout=layout, kind=kind, mask=mask, dtype=dtype)  # type: ignore[arg-type]
    first = found.tensor(0, kind=kind)  # type: ignore[arg-type]
    if as_json or not quiet:
        print_facts("Imported", {"run": str(target), "batches": len(found), "tensor": repr(first)}, as_json)
    if not (as_json or quiet):
        made = f"{first.shape[2]} heads in {len({head.layer for head in first.heads})} layers"
        close(made, f"headscape report {target} --open", f"headscape organize {target}")
