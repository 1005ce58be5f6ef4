"""Gather what a page shows: the sections of the studies, the heads they describe, and what is missing and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError

from headscape.captures import Capture, open_capture
from headscape.errors import HeadscapeError
from headscape.report.text import slug
from headscape.results import FigureSpec, Finding, Result
from headscape.runs import Run
from headscape.tensor import HeadId

__all__ = ["LINKED", "READING", "Column", "Missing", "Scene", "Section", "gather", "gather_run", "reason_of"]

LINKED = ("head_map", "head_matrix", "head_grid", "head_tree")  # pictures of heads, in their order on the page
READING = (HeadscapeError, SafetensorError, OSError, KeyError, ValueError)  # what a damaged batch may raise
PLACE = ("block", "layer", "head")
Missing = tuple[str, "Exception | str"]


@dataclass(frozen=True)
class Column:
    """One score or role of every head: numbers with NaN, or strings with None, where a study has no value."""

    name: str
    study: str
    values: npt.NDArray[np.float64] | list[str | None]
    about: str = ""

    @property
    def is_number(self) -> bool:
        """True for a score, False for a category."""
        return isinstance(self.values, np.ndarray)


@dataclass
class Section:
    """What one study shows; row i of its frame describes head `rows[i]`. `rows` is None when rows are not heads."""

    study: str
    title: str
    figures: list[FigureSpec] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    frame: pd.DataFrame | None = None
    rows: list[int] | None = None
    meanings: Mapping[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def of_kind(self, *kinds: str) -> list[FigureSpec]:
        """Return its figures of some kinds."""
        return [figure for figure in self.figures if figure.kind in kinds]

    def anchor(self, figure: str) -> str:
        """Return the id of a figure on the page."""
        return f"fig-{slug(self.study)}-{slug(figure)}"


@dataclass
class Scene:
    """Everything on a page but the attention maps."""

    heads: list[HeadId]
    sections: list[Section]
    missing: list[tuple[str, str]]
    columns: list[Column]

    @property
    def with_panel(self) -> Section | None:
        """The section that holds the head panel: the first that draws heads."""
        return next((s for s in self.sections if s.of_kind(*LINKED)), None)

    def heads_of(self, section: Section) -> list[HeadId]:
        """The head of each row of a section's frame."""
        return [self.heads[row] for row in section.rows or []]


def reason_of(problem: object) -> str:
    """One line that says what went wrong.

    >>> reason_of(KeyError("tree")), reason_of("the file is damaged"), reason_of(HeadscapeError("no tree"))
    ("KeyError: 'tree'", 'the file is damaged', 'no tree')
    """
    ours = not isinstance(problem, BaseException) or isinstance(problem, HeadscapeError)
    return str(problem) if ours else f"{type(problem).__name__}: {problem}"


def gather_run(run: Run, results: Sequence[Result | Missing]) -> tuple[Scene, Capture | None, str]:
    """The scene of a run, its capture, and why there is none."""
    try:
        capture, problem = open_capture(run), ""
    except HeadscapeError as error:
        return gather(results), None, reason_of(error)
    return gather(results, [head for block in capture.blocks for head in capture.heads(block)]), capture, problem


def gather(results: Sequence[Result | Missing], heads: Sequence[HeadId] = ()) -> Scene:
    """Read every result once; whatever a study cannot provide is recorded as a problem of its section.

    A result that could not be loaded is a pair (study, reason). `heads` are those of the capture; heads that only the
    studies name are added after them.
    """
    scene = Scene([], [], [], [])
    for item in results:
        if not isinstance(item, Result):
            scene.missing.append((str(item[0]), reason_of(item[1])))
            continue
        section = _section(item)
        again = sum(other.study.split("#")[0] == section.study for other in scene.sections)
        section.study += f"#{again + 1}" if again else ""  # ids on the page stay distinct
        if sum(isinstance(other, Result) and other.study == item.study for other in results) > 1:  # a block each
            section.title += f": {block}" if (block := getattr(item, "block", "")) else ""
        scene.sections.append(section)
    known = {head: i for i, head in enumerate(heads)}
    for section in scene.sections:
        section.rows = None if section.frame is None else _rows(section.frame, known)
    scene.heads = list(known)
    columns = _joined([column for section in scene.sections for column in _columns(section, len(known))])
    times = Counter(column.name for column in columns)
    scene.columns = [replace(c, name=f"{c.name} ({c.study})") if times[c.name] > 1 else c for c in columns]
    return scene


def _joined(columns: list[Column]) -> list[Column]:
    """Columns of one name that a study gives for one block after the other, as one."""
    found: list[Column] = []
    for column in columns:
        study = column.study.split("#")[0]
        at = next((i for i, c in enumerate(found) if (c.name, c.study) == (column.name, study)), None)
        before = None if at is None else found[at]
        if at is None or before is None or before.is_number != column.is_number:
            found.append(column)
            continue
        pairs = list(zip(before.values, column.values, strict=True))
        if any(not pd.isna(a) and not pd.isna(b) for a, b in pairs):  # of the same heads
            found.append(column)
            continue
        both: Any = [b if pd.isna(a) else a for a, b in pairs]
        found[at] = replace(before, values=np.array(both) if before.is_number else both)
    return found


def _section(result: Result) -> Section:
    study = str(getattr(result, "study", type(result).__name__))
    section = Section(study, str(getattr(result, "title", study)))
    asks = {"figures": result.figures, "findings": result.findings, "frame": result.to_frame}
    for name, ask in (asks | {"meanings": result.meanings}).items():
        # any error in a study, even one caused by the contents of its files, is a line on the page and not the end of it
        try:
            setattr(section, name, ask())
        except Exception as error:
            section.problems.append(f"its {name} could not be computed: {reason_of(error)}")
    return section


def _rows(frame: pd.DataFrame, known: dict[HeadId, int]) -> list[int] | None:
    """The head that each row describes; None when the rows are not heads, or a head has several rows."""
    keys = [*PLACE, *(["run"] if "run" in frame.columns else [])]
    if not set(PLACE) <= set(frame.columns) or not len(frame) or frame.duplicated(keys).any():
        return None
    blocks = frame["block"].astype(str)
    if "run" in frame.columns:  # heads of several networks: the network is part of their place
        blocks = frame["run"].astype(str) + ": " + blocks
    try:
        places = zip(blocks, frame["layer"].astype(int), frame["head"].astype(int), strict=True)
        heads = [HeadId(*place) for place in places]
    except (TypeError, ValueError):
        return None
    return [known.setdefault(head, len(known)) for head in heads]


def _columns(section: Section, n_head: int) -> list[Column]:
    """The scores and roles of a section whose rows are heads."""
    if section.rows is None or section.frame is None:
        return []
    found = []
    for name, series in section.frame.drop(columns=[*PLACE, "run"], errors="ignore").items():
        if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
            numbers = np.full(n_head, np.nan)
            numbers[section.rows] = series.to_numpy(dtype=np.float64, na_value=np.nan)
            found.append(Column(str(name), section.study, numbers, section.meanings.get(str(name), "")))
        else:
            words: list[str | None] = [None] * n_head
            for row, value in zip(section.rows, series, strict=True):
                words[row] = None if pd.isna(value) else str(value)
            found.append(Column(str(name), section.study, words))
    return found
