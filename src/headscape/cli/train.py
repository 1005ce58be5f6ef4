"""The command that trains the same network with several kinds of attention."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from headscape.cli import options as o
from headscape.cli.records import Working, command
from headscape.cli.shared import finish, listed, numbers, print_frame, print_json, tokenizer_of
from headscape.errors import InputError


@dataclass(frozen=True)
class Sizes:
    """Sizes that replace the network's own."""

    panel: ClassVar[str] = "Sizes of the network"

    layers: Annotated[int | None, o.count("Number of layers; the network's own by default.", 1, 1000)] = None
    heads: Annotated[int | None, o.count("Heads per layer; the network's own by default.", 1, 1000)] = None
    dim: Annotated[int | None, o.count("Width; the network's own by default.")] = None
    tokens: Annotated[int | None, o.count("Context of a language model.", 2)] = None
    patch: Annotated[int | None, o.count("Side of a patch of a ViT, in pixels.")] = None

    @property
    def given(self) -> dict[str, int]:
        """The sizes that were given."""
        return {name: size for name, size in asdict(self).items() if size is not None}


@dataclass(frozen=True)
class Kinds:
    """The kinds of attention that are compared."""

    panel: ClassVar[str] = "Kinds of attention"

    arms: Annotated[
        str,
        typer.Option(
            help="Kinds of attention (arms) to compare: standard; hidden (scores carried along depth), skip (scaled), both; "
            "rescaled, realformer, learned; delayed, implicit, implicit-delayed, central (other discretizations); longer is "
            "the positive control."
        ),
    ] = "standard,hidden,skip,both,longer"
    alpha: Annotated[
        str, typer.Option(help="Scaled skip a x + (1 - a) attention: a; several make a grid: 0.3,0.5.")
    ] = "0.5"
    alpha_hidden: Annotated[
        str, typer.Option(help="Share a' of the scores before in the hidden state; several make a grid.")
    ] = "0.5"
    init: Annotated[
        str, typer.Option(help="How the hidden state starts: zero, first (as the first layer's scores), debias.")
    ] = "zero"

    @property
    def options(self) -> dict[str, Any]:
        """As the study takes them."""
        alphas = {name: numbers(getattr(self, name), float, "0.3,0.5") for name in ("alpha", "alpha_hidden")}
        return {"arms": listed(self.arms) or (), "init": self.init, **alphas}


@dataclass(frozen=True)
class Search:
    """Seeds, and how learning rates are chosen."""

    panel: ClassVar[str] = "Seeds and learning rates"

    seeds: Annotated[int, o.count("Runs per kind of attention (arm).", 1, 1000)] = 3
    rates: Annotated[str | None, typer.Option(help="Learning rates to try: 1e-3,3e-3.")] = None
    finalists: Annotated[
        int, o.count("Learning rates per arm that are run with all seeds before one is chosen.", 1, 1000)
    ] = 1
    search_steps: Annotated[int | None, o.count("Steps of the runs that choose learning rates.", 1, 1000000000)] = None

    @property
    def options(self) -> dict[str, Any]:
        """As the study takes them."""
        return asdict(self) | {"rates": None if self.rates is None else numbers(self.rates, float, "1e-3,3e-3")}


@dataclass(frozen=True)
class Schedule:
    """One training run."""

    panel: ClassVar[str] = "Training"

    steps: Annotated[int | None, o.count("Steps per run.", 1, 1000000000)] = None
    batch: Annotated[int | None, o.count("Sequences or images per step.")] = None
    evaluations: Annotated[int, o.count("Evaluations per run.")] = 10
    patience: Annotated[
        int, o.count("Stop after this many evaluations without a better loss; 0 never stops early.", 0)
    ] = 0
    accumulate: Annotated[int, o.count("Gradient accumulation: parts into which a batch is split.")] = 1
    autocast: Annotated[str, typer.Option(help="Number type of the forward pass: bfloat16 or float16.")] = ""
    augment: Annotated[str | None, typer.Option(help="Changes to training images: none, light, paper.")] = None
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "cpu"


@dataclass(frozen=True)
class Training(Working):
    """How the runs are made."""

    threads: Annotated[
        int | None, typer.Option(help="Threads per run; rounding, and so the numbers, depend on them.", min=1, max=1024)
    ] = 1


@command(epilog="Example: `headscape train gpt --out runs/train-gpt --text books/ --seeds 3`")
def train(
    network: Annotated[
        str,
        typer.Argument(
            help="gpt, vit (trained on images), xl, a name that --list shows, or a model to train further.",
            metavar="NETWORK",
        ),
    ] = "gpt",
    folder: Annotated[Path | None, typer.Option("--out", help="The run directory; resumed when it exists.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text file or folder; the packaged prose by default.")] = None,
    images: Annotated[
        Path | None,
        typer.Option(
            help="For a ViT: folder of Fashion-MNIST's files or .npz with labels; by default what Debian's "
            "dataset-fashion-mnist installs, where it is."
        ),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Model folder or bundled name; bytes by default.")] = None,
    kinds: Kinds = Kinds(),
    search: Search = Search(),
    schedule: Schedule = Schedule(),
    sizes: Sizes = Sizes(),
    listing: Annotated[bool, typer.Option("--list", help="List the networks and stop.")] = False,
    asked: Training = Training(),
) -> None:
    """Train a network with several kinds of attention and compare them on held-out data, with baselines and controls."""
    if listing:
        _list(asked.as_json)
        return
    if folder is None:
        raise InputError("name a run directory: --out runs/train-gpt")
    from headscape.studies.train import train as run_train

    data: dict[str, Any] = {
        "text": text,
        "images": images,
        "tokenizer": None if tokenizer is None else tokenizer_of(tokenizer),
    }
    options = data | kinds.options | search.options | asdict(schedule)
    options |= {"tokenizer_name": tokenizer or "bytes", "sizes": sizes.given, "random_state": asked.seed}
    with asked.working("training") as how:
        result = run_train(network, folder, **options, **how)
    further = result.settings["network"]["kind"] == "model"  # which the collapse study does not take
    finish(result, asked.as_json, at=folder, then="more seeds: the same command with --seeds" if further else None)


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
