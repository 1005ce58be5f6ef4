"""The command that looks at attention in few-shot prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headscape.cli import options as o
from headscape.cli.shared import app, finish, listed, load, sayer, working
from headscape.errors import InputError


@app.command(epilog="Example: `headscape prompt smollm2-135m --shots 3 --word Ant`")
def prompt(
    model: o.Model,
    word: Annotated[str, typer.Option(help="The word to write a clue for; its maps are drawn.")] = "Ant",
    shots: Annotated[int, typer.Option(help="Examples before it.", min=0, max=1000)] = 3,
    table: Annotated[Path | None, typer.Option(help="A CSV with columns word, clue, category.")] = None,
    prompts: Annotated[
        int, typer.Option(help="How many words of the category the numbers come from.", min=1, max=1000)
    ] = 6,
    alphas: Annotated[
        str, typer.Option(help="Factors on the spectra of W_q and W_k, comma-separated.")
    ] = "0.5,0.707,1.414,2",
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    control: Annotated[
        bool, typer.Option("--control/--no-control", help="Also ask the same architecture with random weights.")
    ] = True,
    to: Annotated[
        Path | None, typer.Option("--out", help="The run directory; by default runs/NAME-prompt-WORD-SHOTS.")
    ] = None,
    jobs: o.Jobs = 1,
    threads: o.Threads = None,
    engine: o.Engine = "local",
    scheduler: o.Scheduler = None,
    resume: o.Resume = False,
    seed: o.Seed = 0,
    device: o.Device = "auto",
    weights: o.Weights = "float32",
    online: o.Online = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
) -> None:
    """Ask for a crossword clue by example, and show attention between words, beside random and scaled weights.

    These are the experiments of Wertich's thesis (2024), chapter 8.
    """
    from headscape.studies.prompt import prompt as run_prompt
    from headscape.studies.prompt.study import request

    try:
        factors = [float(part) for part in listed(alphas) or [] if part]
    except ValueError:
        raise InputError(f"'{alphas}' is not a list of numbers like 0.5,2") from None
    _, targets = request(
        word, shots, table, prompts, factors, random_state=seed
    )  # before a model is loaded for nothing
    path = to or Path("runs") / f"{Path(model).name}-prompt-{targets[0].word.lower()}-{shots}"
    options = {"jobs": jobs, "threads": threads, "engine": engine, "scheduler": scheduler, "resume": resume}
    with working("prompts", quiet, **options) as how:  # type: ignore[arg-type]
        result = run_prompt(
            load(model, device, weights, online, quiet),
            path,
            word=word,
            shots=shots,
            table=table,
            prompts=prompts,
            alphas=factors,
            control=control,
            chat=chat,
            random_state=seed,
            **how,
        )
    finish(result, as_json, at=path, run=str(path), prompt=result.text, clues=dict(result.clues))
    sayer(quiet or as_json)(f"{path}: `headscape report {path}` shows the maps")
