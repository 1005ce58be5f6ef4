"""Commands that find something out: organize, report, analyze, demo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from headscape.cli.runs import capture_to, default_run, source_of
from headscape.cli.shared import (
    DeviceOption,
    EngineOption,
    JsonOption,
    ModelArgument,
    OnlineOption,
    QuietOption,
    ResumeOption,
    RunArgument,
    SchedulerOption,
    SeedOption,
    WeightsOption,
    app,
    engine_of,
    load,
    models_of,
    out,
    print_json,
    print_table,
    progress_bar,
    sayer,
)
from headscape.errors import InputError


@app.command(epilog="Example: `headscape organize runs/book --jobs 2`")
def organize(
    run: RunArgument,
    block: Annotated[str | None, typer.Option(help="Which block of an encoder-decoder.")] = None,
    kind: Annotated[str | None, typer.Option(help="probs or scores; probs where both were kept.")] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's settings instead of the default.")] = False,
    iterations: Annotated[int | None, typer.Option(help="Rounds of the questionnaire.")] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Organise the same architecture with random weights as a control.")
    ] = False,
    use_model: Annotated[
        bool, typer.Option("--model/--no-model", help="Load the model for the induction scores.")
    ] = True,
    distance: Annotated[str, typer.Option(help="exact, or sketch: estimated above 2,000 heads.")] = "exact",
    max_memory: Annotated[
        float | None, typer.Option(metavar="GB", help="Memory of a fit; 4. What needs more is worked on from disk.")
    ] = None,
    scratch: Annotated[Path | None, typer.Option(help="Folder for files of that; the temporary one.")] = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Say what memory, disk and time it will take, and do nothing.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="Batches at a time.")] = 1,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
    resume: ResumeOption = False,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Organise the heads of a run: trees, map, entropies, roles; what is stable, and what beats its null."""
    changes = {
        "n_iter": iterations,
        "distance": distance,
        "max_memory": None if max_memory is None else 1e9 * max_memory,
        "scratch": None if scratch is None else str(scratch),
    }
    if estimate:
        _estimate(run, block, kind, paper, changes, random_weights, jobs, as_json)
        return
    work = {"engine": engine_of(engine, jobs, scheduler), "jobs": jobs, "resume": resume}
    result = _organize(run, block, kind, paper, changes, random_weights, use_model, work, seed, quiet)
    if as_json:
        print_json(
            {
                "findings": [vars(finding) for finding in result.findings()],
                "table1": result.table1().to_dict("records"),
                "heads": result.to_frame().to_dict("records"),
            }
        )
        return
    _print_findings(result)


def _questionnaire(kind: str | None, paper: bool, changes: Mapping[str, Any]) -> Any:
    """The settings of the questionnaire, those that were given changed; a wrong one is said at once."""
    from headscape.geometry.questionnaire import Questionnaire

    if kind not in (None, "probs", "scores"):
        raise InputError(f"kind is probs or scores, not {kind!r}")
    given = {name: value for name, value in changes.items() if value is not None}
    settings = Questionnaire.paper(**given) if paper else Questionnaire(**given)
    settings.settings_for(3)
    return settings


def _estimate(
    path: Path,
    block: str | None,
    kind: str | None,
    paper: bool,
    changes: Mapping[str, Any],
    random_weights: bool,
    jobs: int,
    as_json: bool,
) -> None:
    from headscape.studies.organize_estimate import estimate_organize

    settings = _questionnaire(kind, paper, changes)
    found = estimate_organize(
        path,
        block=block,
        kind=kind,  # type: ignore[arg-type]
        questionnaire=settings,
        control=random_weights,
        jobs=jobs,
    )
    if as_json:
        print_json(vars(found))
        return
    print_table(f"Organising {path} would take", ["what", "how much"], found.rows())


def _organize(
    path: Path,
    block: str | None,
    kind: str | None,
    paper: bool,
    changes: Mapping[str, Any],
    random_weights: bool,
    use_model: bool,
    work: Mapping[str, Any],
    seed: int,
    quiet: bool,
) -> Any:
    from headscape.runs import Run
    from headscape.studies.organize import organize as run_organize

    settings = _questionnaire(kind, paper, changes)
    opened = Run.open(path)
    model, control = models_of(opened, use_model, random_weights, seed, "no induction scores", sayer(quiet))
    with progress_bar("organising", quiet) as progress:
        return run_organize(
            opened,
            block=block,
            kind=kind,  # type: ignore[arg-type]
            questionnaire=settings,
            model=model,
            control=control,
            random_state=seed,
            progress=progress,
            say=sayer(quiet),
            **work,
        )


def _print_findings(result: Any) -> None:
    if result.n_batches > 1:
        frame = result.table1()
        rows = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row] for row in frame.to_numpy(dtype=object)]
        print_table("Heads at the ends by l1_top (the paper's table 1)", list(map(str, frame.columns)), rows)
    for finding in result.findings():
        out.print(f"- {finding.text}", highlight=False, markup=False)


@app.command(epilog="Example: `headscape report runs/book --open`")
def report(
    run: RunArgument,
    figures: Annotated[Path | None, typer.Option(help="Also write every figure as a file into this folder.")] = None,
    form: Annotated[str, typer.Option("--format", help="Of the figure files: png, svg or pdf.")] = "png",
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Write one page that shows what was found in a run: RUN/report.html."""
    _report(run, figures, form, show, quiet)


def _report(path: Path, figures: Path | None, form: str, show: bool, quiet: bool) -> None:
    import webbrowser

    from headscape.report import write_figures, write_report
    from headscape.runs import Run, human_bytes
    from headscape.studies import load_results

    if form not in ("png", "svg", "pdf"):
        raise InputError(f"format is png, svg or pdf, not {form!r}")
    opened = Run.open(path)
    results = load_results(opened)
    page = write_report(opened, results)
    if figures is not None:
        written = write_figures(opened, results, figures, format=form)  # type: ignore[arg-type]
        sayer(quiet)(f"{len(written)} files in {figures}")
    out.print(f"{page.resolve()} ({human_bytes(page.stat().st_size)})", soft_wrap=True, highlight=False)
    if show:
        webbrowser.open(page.resolve().as_uri())


@app.command(epilog="Example: `headscape analyze smollm2-135m --text book.txt`")
def analyze(
    model: ModelArgument,
    text: Annotated[Path | None, typer.Option(help="A text file or a folder of them.")] = None,
    images: Annotated[Path | None, typer.Option(help="An image, a folder of images, or an .npz with 'images'.")] = None,
    to: Annotated[Path | None, typer.Option("--out", help="The run directory; resumed when it exists.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens in a context.")] = 256,
    batches: Annotated[int, typer.Option(help="How many contexts.")] = 10,
    pool: Annotated[
        int | None, typer.Option(help="Average attention onto POOL x POOL blocks of tokens; for long contexts.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Batches at a time.")] = 1,
    engine: EngineOption = "local",
    scheduler: SchedulerOption = None,
    resume: ResumeOption = False,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Organise the same architecture with random weights as a control.")
    ] = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    weights: WeightsOption = "float32",
    online: OnlineOption = False,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Capture, organise and report in one go."""
    source = source_of(text, images)
    work = {"engine": engine_of(engine, jobs, scheduler), "jobs": jobs, "resume": resume}
    loaded = load(model, device, weights, online, quiet)
    target = to or default_run(model, source)
    options: dict[str, Any] = {"tokens": tokens, "batches": batches, "pool": pool, "seed": seed}
    capture_to(loaded, source, target, as_json=False, quiet=quiet, **options)
    result = _organize(target, None, None, False, {}, random_weights, True, work, seed, quiet)
    _print_findings(result)
    _report(target, None, "png", show, quiet)


@app.command(epilog="Example: `headscape demo`")
def demo(
    to: Annotated[Path, typer.Option("--out", help="The run directory.")] = Path("runs/demo"),
    batches: Annotated[int, typer.Option(help="How many contexts.")] = 3,
    tokens: Annotated[int, typer.Option(help="Tokens in a context.")] = 256,
    seed: SeedOption = 0,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Run the embedded default from end to end: SmolLM2 on the sample prose, organised and reported."""
    loaded = load("smollm2-135m", "auto", "float32", False, quiet)
    capture_to(loaded, None, to, as_json=False, quiet=quiet, batches=batches, tokens=tokens, seed=seed)
    result = _organize(to, None, None, False, {}, False, True, {}, seed, quiet)
    _print_findings(result)
    _report(to, None, "png", show, quiet)
