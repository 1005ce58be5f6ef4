"""The command that trains the same network with several kinds of attention."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli.old import (
    JsonOption,
    QuietOption,
    SeedOption,
    app,
    out,
    print_json,
    print_table,
    progress_bar,
    sayer,
)
from headscape.errors import InputError


@app.command(epilog="Example: `headscape train gpt --out runs/train-gpt --text books/ --seeds 3`")
def train(
    network: Annotated[
        str, typer.Argument(help="gpt, vit, xl, or a name that --list shows.", metavar="NETWORK")
    ] = "gpt",
    folder: Annotated[Path | None, typer.Option("--out", help="Run directory; the same command goes on in it.")] = None,
    text: Annotated[Path | None, typer.Option(help="Text file or folder; the packaged prose without it.")] = None,
    images: Annotated[Path | None, typer.Option(help="Folder of Fashion-MNIST's files, or .npz with labels.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Model folder or bundled name; bytes without it.")] = None,
    arms: Annotated[str, typer.Option(help="Kinds of attention to compare.")] = "standard,hidden,skip,both",
    seeds: Annotated[int, typer.Option(help="Runs an arm, at its learning rate.")] = 3,
    rates: Annotated[str | None, typer.Option(help="Learning rates to try: 1e-3,3e-3.")] = None,
    finalists: Annotated[int, typer.Option(help="Rates an arm runs with all seeds before one is taken.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Steps a run.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences or images a step.")] = None,
    layers: Annotated[int | None, typer.Option(help="In place of the network's own.")] = None,
    heads: Annotated[int | None, typer.Option(help="In place of the network's own.")] = None,
    dim: Annotated[int | None, typer.Option(help="In place of the network's own.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Context of a language model.")] = None,
    alpha: Annotated[float, typer.Option(help="a of the scaled skip.")] = 0.5,
    alpha_hidden: Annotated[float, typer.Option(help="a' of the hidden state.")] = 0.5,
    init: Annotated[str, typer.Option(help="Start of the hidden state: zero, first, debias.")] = "zero",
    evaluations: Annotated[int, typer.Option(help="Evaluations a run.")] = 10,
    patience: Annotated[int, typer.Option(help="Stop after so many without a better loss; 0 never.")] = 0,
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of a run.")] = 1,
    seed: SeedOption = 0,
    listing: Annotated[bool, typer.Option("--list", help="List the networks and stop.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a small network with standard attention, hidden state, scaled skip and both, and compare on a test part."""
    if listing:
        _list(as_json)
        return
    if folder is None:
        raise InputError("name a run directory: --out runs/train-gpt")
    sizes = {"layers": layers, "heads": heads, "dim": dim, "tokens": tokens}
    from headscape.studies.train.study import train as run_train

    with progress_bar("training", quiet) as progress:
        result = run_train(
            network,
            folder,
            text=text,
            images=images,
            tokenizer=None if tokenizer is None else _tokenizer(tokenizer),
            tokenizer_name=tokenizer or "bytes",
            arms=[part.strip() for part in arms.split(",")],
            seeds=seeds,
            rates=None if rates is None else _numbers(rates),
            finalists=finalists,
            steps=steps,
            batch=batch,
            sizes={name: size for name, size in sizes.items() if size is not None},
            alpha=alpha,
            alpha_hidden=alpha_hidden,
            init=init,  # type: ignore[arg-type]  # checked by the study
            evaluations=evaluations,
            patience=patience,
            jobs=jobs,
            threads=threads,
            random_state=seed,
            progress=progress,
            say=sayer(quiet),
        )
    if as_json:
        print_json(
            {
                "findings": [vars(finding) for finding in result.findings()],
                "arms": result.to_frame().to_dict("records"),
                "trials": result.trials.to_dict("records"),
            }
        )
        return
    table = result.figures()[0]
    print_table(table.title, list(table.data["columns"]), [list(row) for row in table.data["rows"]], right=(1, 2))
    for finding in result.findings():
        out.print(f"- {finding.text}", highlight=False, markup=False)


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(f"learning rates are numbers with commas between them, not {text!r}") from None


def _tokenizer(spec: str) -> Any:
    from headscape.attention import bundled
    from headscape.attention.loading import read_tokenizer

    source = bundled.fetch(spec, lambda _: None) if spec in bundled.BUNDLED else Path(spec)
    if not source.is_dir():
        raise InputError(f"no tokenizer at {spec}; give a model folder or one of {', '.join(bundled.BUNDLED)}")
    if bundled_gguf := next(source.glob("*.gguf"), None):
        from headscape.attention.convert import converted

        source = converted(source, bundled_gguf, lambda _: None)
    return read_tokenizer(source)


def _list(as_json: bool) -> None:
    from headscape.hopfield.presets import PRESETS

    rows = []
    for name, chosen in PRESETS.items():
        net = chosen.network
        sizes = f"{net.layers} x {net.heads} x {net.dim}"
        rows.append([name, chosen.about, sizes, str(net.n_tokens), str(chosen.batch), str(chosen.steps)])
    columns = ["name", "what", "layers x heads x width", "tokens", "batch", "steps"]
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    print_table("Networks to train", columns, rows, right=(3, 4, 5))
