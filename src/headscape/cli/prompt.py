"""The command that looks at attention in few-shot prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli import options as o
from headscape.cli.records import Choosing, command
from headscape.cli.shared import finish, numbers


@command(
    epilog="Examples: `headscape prompt smollm2-135m --shots 3 --word Ant`, "
    "`headscape prompt smollm2-135m --word Ant --sweep 0,1,3,5,8`"
)
def prompt(
    model: o.Model,
    word: Annotated[str, typer.Option(help="The word to write a clue for; its maps are drawn.")] = "Ant",
    shots: Annotated[int, o.count("Number of examples before the word.", 0, 1000)] = 3,
    table: Annotated[Path | None, typer.Option(help="A CSV with columns word, clue, category.")] = None,
    prompts: Annotated[int, o.count("How many words of the category the numbers come from.", 1, 1000)] = 6,
    alphas: Annotated[
        str, typer.Option(help="Factors on the spectra of W_q and W_k, comma-separated.")
    ] = "0.5,0.707,1.414,2",
    sweep: Annotated[
        str,
        typer.Option(
            help="Also ask for each of the words after these numbers of examples, in rising order: 0,1,3,5,8. "
            "Do clues get better?"
        ),
    ] = "",
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt into the model's chat template.")] = False,
    control: o.Control = True,
    to: Annotated[
        Path | None, typer.Option("--out", help="The run directory; by default runs/NAME-prompt-WORD-SHOTS.")
    ] = None,
    asked: Choosing = Choosing(),
) -> None:
    """Ask for a crossword clue by example, and show attention between words, compared with random and scaled weights.

    These are the experiments of Wertich's thesis (2024), chapter 8.
    """
    from headscape.studies.prompt import prompt as run_prompt
    from headscape.studies.prompt.study import request

    factors, counts = numbers(alphas, float, "0.5,2"), numbers(sweep, int, "0,1,3,5,8")
    _, targets = request(
        word, shots, table, prompts, factors, random_state=asked.seed, sweep=counts
    )  # before a model is loaded for nothing
    path = to or Path("runs") / f"{Path(model).name}-prompt-{targets[0].word.lower()}-{shots}"
    options: dict[str, Any] = {"word": word, "shots": shots, "table": table, "prompts": prompts, "alphas": factors}
    options |= {"sweep": counts, "chat": chat}
    with asked.working("prompts") as how:
        loaded = asked.load(model)
        result = run_prompt(loaded, path, control=control, random_state=asked.seed, **options, **how)
    facts: dict[str, Any] = {"run": str(path), "prompt": result.text, "clues": dict(result.clues)}
    more = "do more examples help? the same command with --sweep 0,1,3,5,8"
    then = f"do its weights look random? headscape spectra {model}" if counts else more
    finish(result, asked.as_json, at=path, then=then, **facts)
