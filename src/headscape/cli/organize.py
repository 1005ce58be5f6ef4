"""Commands that show the landscape of heads: organize, report, analyze, demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from headscape.checks import one_of
from headscape.cli import options as o
from headscape.cli.records import Choosing, Loading, Organizing, command
from headscape.cli.runs import capture_to, check_blocks, check_reads, default_run, heads_of, kept_of, source_of
from headscape.cli.shared import (
    app,
    finish,
    listed,
    open_page,
    print_json,
    print_table,
    progress_bar,
    sayer,
)
from headscape.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headscape.attention.models import Model
    from headscape.results import Result


@dataclass(frozen=True)
class Limits:
    """For networks of many heads or long contexts."""

    panel: ClassVar[str] = "Large networks"
    distance: Annotated[str, typer.Option(help="exact, or sketch: estimated above 2,000 heads.")] = "exact"
    max_memory: Annotated[
        float | None,
        typer.Option(
            metavar="GB", help="Memory limit per fit in GB (default 4); larger arrays are processed out of core."
        ),
    ] = None
    scratch: Annotated[
        Path | None, typer.Option(help="Folder for out-of-core files; by default the system's temporary folder.")
    ] = None

    @property
    def options(self) -> dict[str, Any]:
        """As the questionnaire takes them; a folder that cannot be written is refused."""
        from headscape.geometry.scratch import check_disk

        if self.scratch is not None:
            check_disk(0, str(self.scratch))
        memory = None if self.max_memory is None else 1e9 * self.max_memory
        return {"distance": self.distance, "max_memory": memory, "scratch": self.scratch and str(self.scratch)}


@command(epilog="Example: `headscape organize runs/book --jobs 2`")
def organize(
    run: o.Run,
    block: o.Block = None,
    kind: Annotated[str | None, typer.Option(help="probs or scores; probs where both were kept.")] = None,
    heads: o.Drawn = None,
    random_weights: o.RandomWeights = False,
    use_model: Annotated[
        bool, typer.Option("--model/--no-model", help="Load the model for the induction scores.")
    ] = True,
    organizing: Organizing = Organizing(),
    limits: Limits = Limits(),
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Print the memory, disk and time it would take; write nothing.")
    ] = False,
    asked: Loading = Loading(),
) -> None:
    """Organize the heads of a run: trees, map, entropies and roles; test what is stable over inputs and what shuffled attention has too."""
    from headscape.studies.organize import estimate_organize
    from headscape.studies.organize import organize as run_organize

    if kind is not None:
        one_of("kind", kind, ("probs", "scores"))
    questionnaire = organizing.questionnaire(**limits.options)
    options: dict[str, Any] = {"block": block, "kind": kind, "questionnaire": questionnaire}
    if estimate:
        needed = estimate_organize(run, control=random_weights, jobs=asked.jobs, **options)
        if asked.as_json:
            print_json(vars(needed))
        else:
            print_table(f"Organizing {run} would take", ["what", "how much"], needed.rows())
        return
    with asked.working("organizing") as how:
        common: dict[str, Any] = {
            "control": random_weights,
            "loader": asked.loader,
            "random_state": asked.seed,
            **options,
            **how,
        }
        common["n_basis"] = 400 if organizing.paper else None
        found = run_organize(run, model=use_model, heads=listed(heads) or (), **common)
    finish(found, asked.as_json, at=run)


@app.command(epilog="Example: `headscape report runs/book --open`")
def report(
    run: o.Run,
    figures: Annotated[Path | None, typer.Option(help="Also write every figure as a file into this folder.")] = None,
    form: Annotated[str, typer.Option("--format", help="Format of the figure files: png, svg or pdf.")] = "png",
    show: o.Open = False,
    quiet: o.Quiet = False,
) -> None:
    """Write one page that shows what was found in a run: RUN/report.html."""
    one_of("format", form, ("png", "svg", "pdf"))
    page = _report(run, figures, form, quiet)
    open_page(page, show)


def _report(path: Path, figures: Path | None, form: str, quiet: bool) -> Path:
    from headscape.report import write_figures, write_report
    from headscape.runs import Run
    from headscape.storage import check_place
    from headscape.studies import load_results

    opened = Run.open(path)
    if figures is not None:
        check_place(figures, folder=True)
    with progress_bar("writing the page", quiet) as bar:
        bar(0, 1)
        results = load_results(opened)
        page = write_report(opened, results)
        bar(1, 1)
    if figures is not None:
        written = write_figures(opened, results, figures, format=form)  # type: ignore[arg-type]
        sayer(quiet)(f"{len(written)} files in {figures}")
    return page


@command(
    epilog="Examples: `headscape analyze smollm2-135m --text book.txt`, "
    '`headscape analyze minilm-l6 --prompt "The cat sat." --prompt "The dog sat down."`'
)
def analyze(
    model: o.Model,
    prompt: o.Prompts = None,
    text: o.Text = None,
    images: o.Images = None,
    to: o.Out = None,
    block: o.Block = None,
    keep: o.Keep = "probs",
    tokens: o.Tokens = 256,
    batches: o.Batches = 10,
    pool: o.Pool = None,
    heads: o.Drawn = None,
    random_weights: o.RandomWeights = False,
    show: o.Open = False,
    asked: Choosing = Choosing(),
) -> None:
    """Capture attention, organize the heads and write the report in one command; two prompts are shown side by side."""
    source = source_of(text, images, prompt)
    target = to or default_run(model, source)
    kept = kept_of(keep)
    if not {"probs", "scores"} & set(kept):
        raise InputError(f"analyze needs maps; keep probs or scores, not {keep!r} alone")
    check_blocks(pool, None)
    drawn = heads_of(heads) or ()
    capture: dict[str, Any] = {
        "tokens": tokens,
        "batches": None if prompt else batches,
        "pool": pool,
        "random_state": asked.seed,
    }
    with asked.working("organizing") as how:
        loaded = asked.load(model)
        check_reads(loaded, text or prompt, images)
        _check_parts(loaded, block, drawn)
        capture_to(loaded, source, target, asked, brief=True, keep=kept, **capture)
        from headscape.studies.change import compare_prompts
        from headscape.studies.organize import organize as run_organize

        common: dict[str, Any] = {"control": random_weights, "loader": asked.loader, "random_state": asked.seed, **how}
        found = run_organize(target, model=loaded, block=block, heads=drawn, **common)
        results: list[Result] = found if isinstance(found, list) else [found]
        if prompt and len(prompt) == 2 and "probs" in kept and pool is None:
            results.append(compare_prompts(target, **how))
    page = _report(target, None, "png", asked.quiet)
    finish(results, asked.as_json, at=target, page=page, brief=True)
    open_page(page, show, say=False)


def _check_parts(loaded: Model, block: str | None, heads: Sequence[str]) -> None:
    """Refuse a block or heads that the network does not have, before the network is run."""
    from headscape.attention.sites import select_heads

    blocks = list(dict.fromkeys(site.block for site in loaded.sites))
    if block is not None and block not in blocks:
        raise InputError(f"{loaded.source} has no block {block!r}; there are {', '.join(blocks)}")
    if heads:
        select_heads(loaded, heads)


@app.command(epilog="Example: `headscape demo`")
def demo(
    to: Annotated[Path, typer.Option("--out", help="The run directory.")] = Path("runs/demo"),
    batches: o.Batches = 3,
    tokens: o.Tokens = 256,
    seed: o.Seed = 0,
    show: o.Open = False,
    quiet: o.Quiet = False,
) -> None:
    """Run a complete example: capture SmolLM2 on the sample text, organize its heads, write the report."""
    analyze("smollm2-135m", to=to, batches=batches, tokens=tokens, show=show, asked=Choosing(seed=seed, quiet=quiet))
