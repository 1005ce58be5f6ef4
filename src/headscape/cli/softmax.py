"""The command that asks whether heads are invariant to softmax."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli.old import (
    EngineOption,
    JsonOption,
    QuietOption,
    ResumeOption,
    RunArgument,
    SchedulerOption,
    SeedOption,
    app,
    engine_of,
    models_of,
    out,
    print_json,
    print_table,
    progress_bar,
    sayer,
)
from headscape.errors import InputError


@app.command(
    epilog="Example: `headscape softmax runs/book --all --jobs 2`, after `headscape capture --keep probs,scores`"
)
def softmax(
    run: RunArgument,
    heads: Annotated[str | None, typer.Option(help="Only these heads: decoder.3.7,decoder.4.0.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All heads, as when none are named.")] = False,
    show: Annotated[str | None, typer.Option(help="Heads to draw in the report: decoder.3.7,decoder.4.0.")] = None,
    batches: Annotated[int, typer.Option(help="How many of the captured contexts to use.")] = 2,
    block: Annotated[str | None, typer.Option(help="Which block of an encoder-decoder.")] = None,
    tolerance: Annotated[
        float, typer.Option(help="Change a head may cause and pass: nats of loss, or share of the final hidden state.")
    ] = 0.01,
    paper: Annotated[bool, typer.Option("--paper", help="Organise with the paper's settings.")] = False,
    iterations: Annotated[int | None, typer.Option(help="Rounds of the questionnaire.")] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Also decompose the same architecture with random weights.")
    ] = False,
    use_model: Annotated[
        bool, typer.Option("--model/--no-model", help="Put the decompositions back into the model.")
    ] = True,
    jobs: Annotated[int, typer.Option(help="Layers at a time.")] = 1,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
    resume: ResumeOption = False,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Ask of every head whether it is invariant to softmax: pointwise, by the proof's condition, and in the model."""
    if heads is not None and every:
        raise InputError("give either --heads or --all, not both")
    result = _softmax(
        run,
        quiet,
        use_model,
        random_weights,
        paper,
        iterations,
        heads=_listed(heads),
        show=_listed(show) or (),
        batches=batches,
        block=block,
        tolerance=tolerance,
        jobs=jobs,
        engine=engine_of(engine, jobs, scheduler),
        resume=resume,
        random_state=seed,
    )
    if as_json:
        print_json(
            {
                "findings": [vars(finding) for finding in result.findings()],
                "variants": result.passing.to_dict("records"),
                "heads": result.to_frame().to_dict("records"),
            }
        )
        return
    frame = result.passing
    rows = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row] for row in frame.to_numpy(dtype=object)]
    print_table(f"What may stand for softmax: medians of {result.n_heads} heads", list(map(str, frame.columns)), rows)
    for finding in result.findings():
        out.print(f"- {finding.text}", highlight=False, markup=False)


def _listed(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


def _softmax(
    path: Path,
    quiet: bool,
    use_model: bool,
    random_weights: bool,
    paper: bool,
    iterations: int | None,
    **options: Any,
) -> Any:
    from headscape.captures import open_capture
    from headscape.geometry.questionnaire import Questionnaire
    from headscape.studies.softmax.study import check_scores
    from headscape.studies.softmax.study import softmax as run_softmax

    captured = open_capture(path)
    check_scores(captured)  # said before a model is loaded for nothing
    assert captured.run is not None
    changes: dict[str, Any] = {} if iterations is None else {"n_iter": iterations}
    settings = Questionnaire.paper(**changes) if paper else Questionnaire(**changes)
    seed = options["random_state"]
    model, control = models_of(captured.run, use_model, random_weights, seed, "no functional test", sayer(quiet))
    with progress_bar("decomposing", quiet) as progress:
        return run_softmax(
            captured,
            questionnaire=settings,
            model=model,
            control=control,
            progress=progress,
            say=sayer(quiet),
            **options,
        )
