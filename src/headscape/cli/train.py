"""The command that trains the same network with several kinds of attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli import options as o
from headscape.cli.records import Working, command
from headscape.cli.shared import finish, listed, print_frame, print_json
from headscape.errors import InputError


@command(epilog="Example: `headscape train gpt --out runs/train-gpt --text books/ --seeds 3`")
def train(
    network: Annotated[
        str,
        typer.Argument(
            help="gpt, vit (needs --images), xl, a name that --list shows, or a model to train further.",
            metavar="NETWORK",
        ),
    ] = "gpt",
    folder: Annotated[Path | None, typer.Option("--out", help="The run directory; resumed when it exists.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text file or folder; the packaged prose by default.")] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            help="For a ViT: folder of Fashion-MNIST's files (by default Debian's package), or .npz with labels."
        ),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Model folder or bundled name; bytes by default.")] = None,
    arms: Annotated[
        str,
        typer.Option(
            help="Kinds of attention to compare: standard, hidden, skip, both, rescaled, realformer, learned; longer is the "
            "positive control."
        ),
    ] = "standard,hidden,skip,both,longer",
    seeds: Annotated[int, typer.Option(help="Runs per arm, at its learning rate.", min=1, max=1000)] = 3,
    rates: Annotated[str | None, typer.Option(help="Learning rates to try: 1e-3,3e-3.")] = None,
    finalists: Annotated[
        int, typer.Option(help="Rates per arm to run with all seeds before one is chosen.", min=1, max=1000)
    ] = 1,
    search_steps: Annotated[
        int | None, typer.Option(help="Steps of the runs that choose learning rates.", min=1, max=1000000000)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps per run.", min=1, max=1000000000)] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences or images per step.", min=1, max=o.MANY)] = None,
    layers: Annotated[int | None, typer.Option(help="Instead of the network's own.", min=1, max=1000)] = None,
    heads: Annotated[int | None, typer.Option(help="Instead of the network's own.", min=1, max=1000)] = None,
    dim: Annotated[int | None, typer.Option(help="Instead of the network's own.", min=1, max=o.MANY)] = None,
    tokens: Annotated[int | None, typer.Option(help="Context of a language model.", min=2, max=o.MANY)] = None,
    patch: Annotated[int | None, typer.Option(help="Side of a patch of a ViT, in pixels.", min=1, max=o.MANY)] = None,
    alpha: Annotated[str, typer.Option(help="a of the scaled skip; several make a grid: 0.3,0.5.")] = "0.5",
    alpha_hidden: Annotated[str, typer.Option(help="a' of the hidden state; several make a grid.")] = "0.5",
    init: Annotated[str, typer.Option(help="Start of the hidden state: zero, first, debias.")] = "zero",
    evaluations: Annotated[int, typer.Option(help="Evaluations per run.", min=1, max=o.MANY)] = 10,
    patience: Annotated[
        int, typer.Option(help="Stop after so many without a better loss; 0 never.", min=0, max=o.MANY)
    ] = 0,
    accumulate: Annotated[
        int, typer.Option(help="Parts of a batch that are run one after the other.", min=1, max=o.MANY)
    ] = 1,
    autocast: Annotated[str, typer.Option(help="Number type of the forward pass: bfloat16 or float16.")] = "",
    augment: Annotated[str | None, typer.Option(help="Changes to training images: none, light, paper.")] = None,
    device: o.Device = "cpu",
    listing: Annotated[bool, typer.Option("--list", help="List the networks and stop.")] = False,
    asked: Working = Working(threads=1),
) -> None:
    """Train a network with several kinds of attention and compare them on held-out data, beside baselines and controls."""
    if listing:
        _list(asked.as_json)
        return
    if folder is None:
        raise InputError("name a run directory: --out runs/train-gpt")
    from headscape.studies.train import train as run_train

    sizes = {"layers": layers, "heads": heads, "dim": dim, "tokens": tokens, "patch": patch}
    with asked.working("training") as work:
        result = run_train(
            network,
            folder,
            text=text,
            images=images,
            tokenizer=None if tokenizer is None else _tokenizer(tokenizer),
            tokenizer_name=tokenizer or "bytes",
            arms=listed(arms) or (),
            seeds=seeds,
            rates=None if rates is None else _numbers(rates, "learning rates"),
            finalists=finalists,
            search_steps=search_steps,
            sizes={name: size for name, size in sizes.items() if size is not None},
            alpha=_numbers(alpha, "alphas"),
            alpha_hidden=_numbers(alpha_hidden, "alphas"),
            init=init,  # type: ignore[arg-type]  # checked by the study
            steps=steps,
            batch=batch,
            evaluations=evaluations,
            patience=patience,
            accumulate=accumulate,
            autocast=autocast,
            augment=augment,
            device=device,
            random_state=asked.seed,
            **work,
        )
    finish(result, asked.as_json, at=folder)


def _numbers(text: str, what: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"{what} must be numbers separated by commas, not {text!r}") from None


def _tokenizer(spec: str) -> Any:
    from headscape.attention import bundled
    from headscape.attention.loading import read_tokenizer

    source = bundled.fetch(spec, lambda _: None) if spec in bundled.BUNDLED else Path(spec)
    if not source.is_dir():
        raise InputError(f"no tokenizer at {spec}; give a model folder or one of {', '.join(bundled.BUNDLED)}")
    if bundled_gguf := next(source.glob("*.gguf"), None):
        from headscape.attention.convert import converted

        source = converted(bundled_gguf, lambda _: None)
    return read_tokenizer(source)


def _list(as_json: bool) -> None:
    import pandas as pd

    from headscape.hopfield.presets import PRESETS

    rows = []
    for name, chosen in PRESETS.items():
        net, data = chosen.network, "images" if chosen.network.kind == "vit" else "text"
        sizes = f"{net.layers} x {net.heads} x {net.dim}"
        rows.append([name, chosen.about, sizes, *map(str, (net.n_tokens, chosen.batch, chosen.steps)), data])
    columns = ["name", "what", "layers x heads x width", "tokens", "batch", "steps", "data"]
    frame = pd.DataFrame(rows, columns=columns)
    if as_json:
        print_json(frame.to_dict("records"))
    else:
        print_frame("Networks to train (images: --images, or Debian's dataset-fashion-mnist)", frame)
