"""The command that looks at attention in few-shot prompts."""

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
    SeedOption,
    WeightsOption,
    app,
    load,
    out,
    print_json,
    print_table,
    progress_bar,
    sayer,
)
from headscape.errors import InputError


@app.command(epilog="Example: `headscape prompt smollm2-135m --shots 3 --word Ant`")
def prompt(
    model: ModelArgument,
    word: Annotated[str, typer.Option(help="The word to write a clue for; its maps are drawn.")] = "Ant",
    shots: Annotated[int, typer.Option(help="Examples before it.")] = 3,
    table: Annotated[Path | None, typer.Option(help="A CSV with columns word, clue, category.")] = None,
    prompts: Annotated[int, typer.Option(help="How many words of the category the numbers come from.")] = 6,
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
    jobs: Annotated[int | None, typer.Option(help="Threads of the model; all cores by default.")] = None,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    weights: WeightsOption = "float32",
    online: OnlineOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Ask for a crossword clue by example, and show attention between words, beside random and scaled weights."""
    from headscape.attention.models import load_model
    from headscape.runs import Run
    from headscape.studies.prompt.study import prompt as run_prompt
    from headscape.studies.prompt.text import choose_shots, find_entry, read_table
    from headscape.studies.prompt.versions import check_model

    entries = read_table(table)
    target = find_entry(entries, word)
    choose_shots(entries, target, shots, seed)  # said before a model is loaded for nothing
    factors = _numbers(alphas)
    loaded = load(model, device, weights, online, quiet)
    check_model(loaded)
    first = load_model(model, device=device, dtype=weights, random_init=seed) if control else None
    path = to or Path("runs") / f"{Path(model).name}-prompt-{target.word.lower()}-{shots}"
    run = Run.create(path, config={"kind": "prompt", "seed": seed}, model=loaded.describe(), inputs={})
    with progress_bar("prompts", quiet) as progress:
        result = run_prompt(
            loaded,
            run,
            word=target.word,
            shots=shots,
            table=table,
            prompts=prompts,
            alphas=factors,
            control=first,
            chat=chat,
            threads=jobs,
            random_state=seed,
            progress=progress,
            say=sayer(quiet),
        )
    _print(result, path, as_json, quiet)


def _print(result: Any, path: Path, as_json: bool, quiet: bool) -> None:
    if as_json:
        print_json(
            {
                "run": str(path),
                "prompt": result.text,
                "clues": dict(result.clues),
                "findings": [vars(finding) for finding in result.findings()],
                "versions": result.summary().to_dict("records"),
                "layers": result.to_frame().to_dict("records"),
            }
        )
        return
    frame = result.summary()
    rows = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row] for row in frame.to_numpy(dtype=object)]
    print_table(f"A clue for {result.targets[0]}", list(map(str, frame.columns)), rows)
    for finding in result.findings():
        out.print(f"- {finding.text}", highlight=False, markup=False)
    sayer(quiet)(f"{path}: `headscape report {path}` shows the maps")


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InputError(f"'{text}' is not a list of numbers like 0.5,2") from None
