"""What the commands share: the application, the bar, tables and JSON, and the one end of every study."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table

from headscape.checks import one_of
from headscape.errors import InputError
from headscape.papers import claim

if TYPE_CHECKING:
    import pandas as pd

    from headscape.results import Result
    from headscape.studies.work.models import Loader

Number = TypeVar("Number", int, float)
app = typer.Typer(
    name="headscape",
    help="Map the attention heads of a transformer.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Plain(Console):
    """Plain text: names come from other people's files, so neither rich nor the terminal may interpret them."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def print(self, *objects: Any, **how: Any) -> None:
        """Print, with a blank for every character that a terminal would take as a command."""
        super().print(*(_shown(one) if isinstance(one, str) else one for one in objects), **how)


def _shown(text: str) -> str:
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


out, err = Plain(), Plain(stderr=True)


def sayer(quiet: bool) -> Callable[[str], None]:
    """A function that prints lines, or one that prints nothing."""
    return (lambda _: None) if quiet else (lambda line: err.print(line, soft_wrap=True))


class Bars:
    """One bar per stage, with count, rate and time left; a study calls it with the units done and their number."""

    def __init__(self, what: str, quiet: bool) -> None:
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        ]
        self._bar = Progress(*columns, console=err, disable=quiet)
        self._name = what
        self._task: TaskID | None = None

    def stage(self, name: str) -> None:
        """Begin another bar."""
        self._name, self._task = name, None

    def __call__(self, done: int, total: int) -> None:
        self._bar.start()  # only now: an error before the first step stays one line
        if self._task is None:
            self._task = self._bar.add_task(self._name, total=total, rate="")
        speed = self._bar.tasks[-1].speed
        rate = "" if not speed else f"{speed:.2g}/s" if speed >= 1 else f"{1 / speed:.2g} s each"
        rate = "" if speed and speed > 100 else rate  # what was there already counts as done at once
        self._bar.update(self._task, completed=done, total=total, rate=rate)

    def close(self) -> None:
        """Leave the bars as they are and give the terminal back."""
        if self._bar.live.is_started:
            self._bar.stop()


@contextmanager
def progress_bar(what: str, quiet: bool) -> Iterator[Bars]:
    """Bars inside a with block."""
    bars = Bars(what, quiet)
    try:
        yield bars
    finally:
        bars.close()


LONGEST_NAME = 24
"""Up to this length words of the first column are not broken, so that names can be copied."""


def print_table(title: str, columns: list[str], rows: list[list[str]], right: tuple[int, ...] = ()) -> None:
    """Print a small table."""
    table = Table(box=None, header_style="bold")
    for i, column in enumerate(columns):
        words = [word for row in rows for word in row[i].split()] if i == 0 else []
        whole = min(LONGEST_NAME, max(map(len, words), default=0)) or None
        table.add_column(column, justify="right" if i in right else "left", overflow="fold", min_width=whole)
    for row in rows:
        table.add_row(*(_shown(cell).replace("\n", " ") for cell in row))
    if columns and _width(table) > out.width:  # rich makes room for that column only after it has shared out the others
        table.columns[0].width = table.columns[0].min_width
    out.print(title, style="italic", soft_wrap=True)  # as wide as it is, however narrow the table
    out.print(table)


def _width(table: Table) -> int:
    """How wide a table comes out, also where that is more than the terminal has."""
    return max(sum(part.cell_length for part in line) for line in Segment.split_lines(out.render(table)))


def print_json(content: Any) -> None:
    """Print JSON for machines."""
    sys.stdout.write(json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")


def print_facts(title: str, facts: Mapping[str, Any], as_json: bool, shown: Mapping[str, str] | None = None) -> None:
    """Print facts as JSON, or as a table of two columns with some of them (`shown`) in words for people."""
    if as_json:
        print_json(facts)
        return
    words = {k: ", ".join(map(str, v)) if isinstance(v, (list, tuple)) else str(v) for k, v in facts.items()}
    print_table(title, ["", ""], [[name, text] for name, text in (words | dict(shown or {})).items()])


NEXT = {  # what a reader may want after a study
    "prune": "the same command with --out FOLDER writes the smaller model",
    "softmax": "do its weights look random? headscape spectra {run}",
    "spectra": "how far do Gaussians predict its scores? headscape gaussian {run}",
    "gaussian": "do tokens become alike along depth? headscape collapse {run}",
    "claims": "the figures behind them: headscape report {run} --open",
    "compare": "which heads have which role in each of them? headscape heads RUN",
    "series": "the heads of one checkpoint by role: headscape heads RUN",
    "train": "do its tokens become alike along depth? headscape collapse {run}",
    "laws": "the same for a trained network: headscape gaussian RUN",
    "table1": "the same for a trained network: headscape collapse MODEL",
}


def finish(
    found: Result | Sequence[Result],
    as_json: bool,
    at: Path | str,
    page: Path | None = None,
    brief: bool = False,
    beside: Sequence[str] = (),
    then: str | None = None,
    **more: Any,
) -> None:
    """The end of a command: its short tables and findings, or all of it as JSON together with `more` facts.

    Several results (the blocks of an encoder-decoder) get a heading each, or a place in the JSON, by their block. Three
    lines close it: what was found, where to look (the page, or how to make that of the run `at`), what to do next;
    `brief` prints only these. `beside` are the command's own lines above them, `then` replaces what to do next.
    """
    results = found if isinstance(found, Sequence) else [found]
    if as_json:
        parts = [result.to_json() for result in results]
        blocks = [getattr(result, "block", result.study) for result in results]
        print_json(more | (parts[0] if len(parts) == 1 else dict(zip(blocks, parts, strict=True))))
        return
    for result in [] if brief else results:
        if len(results) > 1:
            out.print(f"{result.title}{f': {b}' if (b := getattr(result, 'block', '')) else ''}", style="bold")
        for title, frame in result.summary():
            print_frame(title, frame)
        findings = result.findings()
        for finding in findings:
            out.print(f"- {finding}")
        known = [claim(finding.claim) for finding in findings if finding.citation is not None and finding.claim]
        for source in dict.fromkeys(one.source for one in known):
            out.print(f"Claims tested: {source}.", style="dim")
    several = sum(hasattr(result, "block") for result in results) > 1
    lines = [f"{f'{b}: ' if several and (b := getattr(r, 'block', '')) else ''}{r.headline()}" for r in results]
    look = f"headscape report {at} --open" if page is None else page.resolve()
    for line in beside:
        out.print(line, soft_wrap=True)
    close("; ".join(lines), look, then or _next(results, at))


def close(found: str, look: Path | str, then: str) -> None:
    """The three lines at the end: what was found, where to look, what to do next."""
    for line in (f"found  {found}", f"look   {look}", f"next   {then}"):
        out.print(line, soft_wrap=True)


def _next(results: Sequence[Result], run: Path | str) -> str:
    """What to do after a study; after organizing, that depends on the roles that were found."""
    found = [roles for result in results if isinstance(roles := getattr(result, "by_role", None), dict)]
    if not found:
        return NEXT.get(results[0].study, "headscape heads {run}").format(run=run)
    from headscape.roles import find_role
    from headscape.runs import Run

    roles = next(filter(None, found), None)
    first = f" --role {shlex.quote(find_role(next(iter(roles))))}" if roles else ""
    block = " --block BLOCK" if len(found) > 1 else ""
    prune = f", or which can be removed: headscape prune {run}{block}" if Run.open(run).model_source else ""
    return f"headscape heads {run}{first}{prune}"


def print_frame(title: str, frame: pd.DataFrame) -> None:
    """Print a table of a result; numbers to three digits, on the right."""
    columns = [str(column) for column in frame.columns]
    rows = [
        ["-" if v != v else f"{v:.3g}" if isinstance(v, float) else str(v) for v in row]
        for row in frame.to_numpy(object)
    ]
    numbers = [i for i, dtype in enumerate(frame.dtypes) if dtype.kind in "fiu"]
    print_table(title, columns, rows, right=tuple(numbers))


def tokenizer_of(spec: str) -> Any:
    """The tokenizer of a model folder or a bundled model."""
    from headscape.attention import bundled
    from headscape.attention.loading import read_tokenizer

    source = bundled.fetch(spec, lambda _: None) if spec in bundled.BUNDLED else Path(spec)
    if not source.is_dir():
        raise InputError(f"no tokenizer at {spec}; give a model folder or one of {', '.join(bundled.BUNDLED)}")
    if bundled_gguf := next(source.glob("*.gguf"), None):
        from headscape.attention.convert import converted

        source = converted(bundled_gguf, lambda _: None)
    return read_tokenizer(source)


def loader(device: str, online: bool, quiet: bool, weights: str | None = None) -> Loader:
    """How a model is loaded, and what is fetched is said; settings that no model can be loaded with are refused."""
    from headscape.studies.work.models import Loader

    one_of("device", device.partition(":")[0], ("auto", "cpu", "cuda", "mps", "split", "disk"))
    if weights is not None:
        one_of("weights", weights, ("float32", "bfloat16", "float16", "auto"))
    return Loader(device, weights, online, sayer(quiet))


def open_page(page: Path, show: bool, say: bool = True) -> None:
    """Print where a page is, and open it in the browser if requested."""
    if say:
        out.print(f"{page.resolve()}", soft_wrap=True)
    if show:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())


def listed(text: str | None) -> list[str] | None:
    """The parts of a list with commas."""
    return None if text is None else [part.strip() for part in text.split(",")]


def numbers(text: str | None, kind: Callable[[str], Number], example: str) -> list[Number]:
    """The numbers of a list with commas."""
    try:
        return [kind(part) for part in listed(text) or [] if part]
    except ValueError:
        raise InputError(f"'{text}' is not a list of numbers like {example}") from None
