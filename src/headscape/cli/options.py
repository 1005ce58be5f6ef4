"""The options that commands share, each with its one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

MANY = 1_000_000
"""The largest count a command accepts, so that a typing error is refused before anything is loaded."""


def count(about: str, least: int = 1, most: int = MANY) -> Any:
    """An option that is a whole number."""
    return typer.Option(help=about, min=least, max=most)


Model = Annotated[str, typer.Argument(help="Bundled name, folder, .gguf file or hub id.", metavar="MODEL")]
Run = Annotated[Path, typer.Argument(help="A run directory.", metavar="RUN")]
RunOrModel = Annotated[
    str, typer.Argument(help="A run directory, or a model: name, folder, .gguf file, hub id.", metavar="RUN|MODEL")
]

Text = Annotated[
    Path | None,
    typer.Option(help="A text file or a folder of them; without any input, the sample that comes with headscape."),
]
Prompts = Annotated[
    list[str] | None,
    typer.Option("--prompt", help="A prompt, kept whole at its own length; repeat the option for several."),
]
Keep = Annotated[
    str, typer.Option(help="What to keep, comma-separated: probs, scores, queries, keys, values, hidden, head_outputs.")
]
Images = Annotated[Path | None, typer.Option(help="An image, a folder of images, or an .npz with 'images'.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="The run directory, resumed when it exists; by default one under runs/, named after the input."
    ),
]
Tokens = Annotated[int, count("Tokens per context.")]
Batches = Annotated[int, count("How many contexts to run, each a batch of its own.")]
Control = Annotated[
    bool, typer.Option("--control/--no-control", help="Measure the same architecture with random weights too.")
]
Stored = Annotated[str, typer.Option("--dtype", help="Number type on disk: float16 or float32.")]
Estimate = Annotated[
    bool, typer.Option("--estimate", help="Print the memory, disk and time it would take; write nothing.")
]
Pool = Annotated[int | None, count("Average attention onto POOL x POOL blocks of tokens; for long contexts.")]
Block = Annotated[
    str | None, typer.Option(help="Which block of an encoder-decoder: encoder, decoder or decoder.cross.")
]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights", help="Also run the same architecture with random weights, as a control.")
]
Drawn = Annotated[
    str | None,
    typer.Option("--heads", help="Heads to draw before and after organizing, as layer.head: 3.7,4.0 or decoder.3.7."),
]
Paper = Annotated[bool, typer.Option("--paper", help="The settings of Fasina et al. (2025) instead of the defaults.")]
Iterations = Annotated[int | None, count("Iterations of the organizing algorithm, the questionnaire.", 1, 1000)]

Jobs = Annotated[int, count("How many units of work to run in parallel.", 1, 1024)]
Threads = Annotated[int | None, count("Threads per unit of work; by default the cores shared by the jobs.", 1, 1024)]
Engine = Annotated[
    str,
    typer.Option("--engine", help="Where to run: local (processes on this machine) or dask."),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        help="tcp://HOST:PORT of a Dask scheduler; by default a local cluster of --jobs workers.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Stop with an error instead of starting over if settings changed since an earlier run."
    ),
]
Seed = Annotated[int, count("Random seed.", 0, 2**63 - 1)]
Device = Annotated[
    str,
    typer.Option(
        help="auto, cpu, cuda, mps; split (over devices, memory and disk), or disk (layer by layer).",
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        "--weights", help="Number type of the weights: float32, bfloat16, float16, or auto (that of the files)."
    ),
]
Online = Annotated[bool, typer.Option("--online", help="Allow a hub id to be downloaded.")]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the result.")]
