"""The command that proposes heads to remove, with the evidence, and writes the smaller model."""

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
    out,
    print_json,
    print_table,
    progress_bar,
    sayer,
)
from headscape.errors import InputError


@app.command(epilog="Example: `headscape prune runs/book --budget 2% --out smaller --kind ragged`")
def prune(
    run: RunArgument,
    budget: Annotated[str, typer.Option(help="Largest cost: rise of the loss, drop of accuracy; 2% or 0.02.")] = "2%",
    heads: Annotated[int | None, typer.Option(help="Remove this many heads instead of searching a budget.")] = None,
    criterion: Annotated[str, typer.Option(help="auto, a criterion, or an average of ranks a+b.")] = "auto",
    compensation: Annotated[str, typer.Option(help="auto, none, mean, scale or linear.")] = "auto",
    criteria: Annotated[str | None, typer.Option(help="Compare only these: novelty,gradient,l1_all.")] = None,
    fractions: Annotated[str, typer.Option(help="Shares of heads along the curves, in percent.")] = "10,20,30",
    text: Annotated[Path | None, typer.Option(help="Text file or folder to choose and judge on.")] = None,
    images: Annotated[Path | None, typer.Option(help="Labelled images (.npz) to choose and judge on.")] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(help="More text or images to fit novelty and compensation on; `sample`: the prose of headscape."),
    ] = None,
    windows: Annotated[int, typer.Option(help="Windows of text to judge on; half as many again are chosen on.")] = 8,
    evaluations: Annotated[int, typer.Option(help="Sets of heads the search may try.")] = 40,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Write the smaller model here.")] = None,
    kind: Annotated[str, typer.Option(help="How to write it: masked, uniform or ragged.")] = "masked",
    block: Annotated[str | None, typer.Option(help="Which block of an encoder-decoder.")] = None,
    jobs: Annotated[int, typer.Option(help="Evaluations at a time; each job loads the model.")] = 1,
    threads: Annotated[int | None, typer.Option(help="Threads of the model; all cores, shared by the jobs.")] = None,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
    resume: ResumeOption = False,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say which heads can go within a budget, prove it on other text, and write the smaller model."""
    from headscape.pruning.export import KINDS

    if kind not in KINDS:
        raise InputError(f"kind is one of {', '.join(sorted(KINDS))}, not {kind!r}")
    if text is not None and images is not None:
        raise InputError("give either --text or --images, not both")
    if out_dir is not None and (out_dir.is_file() or (out_dir.is_dir() and any(out_dir.iterdir()))):
        raise InputError(f"{out_dir} exists and is not an empty folder; choose another place or remove it")
    options: dict[str, Any] = {} if criteria is None else {"criteria": [c.strip() for c in criteria.split(",")]}
    inputs = text if text is not None else images
    model, result = _prune(
        run,
        quiet,
        inputs=inputs,
        calibrate=_calibration(calibrate),
        criterion=criterion,
        compensation=compensation,
        budget=None if heads is not None else share(budget),
        n_heads=heads,
        fractions=[share(part + "%") for part in fractions.split(",")],
        windows=windows,
        block=block,
        evaluations=evaluations,
        jobs=jobs,
        threads=threads,
        engine=engine_of(engine, jobs, scheduler),
        resume=resume,
        random_state=seed,
        **options,
    )
    export = None
    if out_dir is not None and result.proposal:
        export = _export(model, result, run, out_dir, kind, (inputs, windows, seed, _calibration(calibrate)))
    if as_json:
        print_json(
            {
                "criterion": result.criterion,
                "compensation": result.compensation,
                "heads": [str(head) for head in result.proposal],
                "findings": [vars(finding) for finding in result.findings()],
                "evidence": result.evidence.to_dict("records"),
                "costs": result.table.to_dict("records"),
                "export": None if export is None else str(export),
            }
        )
        return
    shown = result.table[result.table["compensation"] == result.compensation]
    for title, frame in (
        (f"Cost of removing heads with compensation {result.compensation} ({result.unit})", shown),
        ("The proposal beside as many heads by other criteria", result.evidence),
    ):
        if len(frame):
            print_table(title, [str(c) for c in frame.columns], frame.astype(str).to_numpy().tolist())
    for finding in result.findings():
        out.print(f"- {finding.text}", highlight=False, markup=False)
    if result.proposal:
        out.print(f"removed: {' '.join(str(head) for head in result.proposal)}", highlight=False, markup=False)
    if export is not None:
        out.print(str(export), highlight=False, markup=False)


def share(text: str) -> float:
    """A share as a number: 2% and 0.02 are the same.

    >>> share("2%"), share("0.02")
    (0.02, 0.02)
    """
    try:
        return float(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        raise InputError(f"{text.removesuffix('%')!r} is not a number; give a share as 2% or 0.02") from None


def _prune(path: Path, quiet: bool, **options: Any) -> tuple[Any, Any]:
    from headscape.attention.models import load_model
    from headscape.captures import open_capture
    from headscape.studies.prune.study import prune as run_prune

    captured = open_capture(path)
    assert captured.run is not None
    source = captured.run.model_source
    if source is None:
        raise InputError(f"{path} was imported: there is no model to prune")
    if not (captured.run.path / "organize" / "result.json").is_file():
        sayer(quiet)(f"criteria of the organised heads are left out; for them run: headscape organize {path}")
    model = load_model(source)
    with progress_bar("pruning", quiet) as progress:
        return model, run_prune(captured, model=model, progress=progress, say=sayer(quiet), **options)


def _calibration(given: str | None) -> Any:
    from headscape.attention.inputs import sample_text

    return [sample_text("rank")] if given == "sample" else given


def _export(model: Any, result: Any, path: Path, target: Path, kind: str, given: tuple[Any, int, int, Any]) -> Any:
    """Write the model with the very folds that were judged: fitted on the same samples."""
    from headscape.attention.sites import select_heads
    from headscape.captures import open_capture
    from headscape.pruning.compensation import folds_of, moments_on
    from headscape.pruning.export import export_pruned
    from headscape.studies.prune.inputs import inputs_of

    folds = None
    if result.compensation != "none":
        moments = moments_on(model, inputs_of(model, open_capture(path), *given).fit)
        folds = folds_of(model, select_heads(model, result.proposal), moments, result.compensation)
    return export_pruned(model, result.proposal, target, kind, folds=folds, timed=3)  # type: ignore[arg-type]
