"""Gather what a page shows: the sections of the studies, the heads they speak of, and what is missing and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.errors import HeadscapeError
from headscape.results import FigureSpec, Finding, Result
from headscape.tensor import HeadId

__all__ = ["LINKED", "Column", "Missing", "Scene", "Section", "gather", "reason_of"]

LINKED = ("head_map", "head_matrix", "head_tree", "head_grid")
PLACE = ("block", "layer", "head")
Missing = tuple[str, "Exception | str"]


@dataclass(frozen=True)
class Column:
    """One score or role of every head: numbers with NaN, or strings with None, where a study says nothing."""

    name: str
    study: str
    values: npt.NDArray[np.float64] | list[str | None]

    @property
    def is_number(self) -> bool:
        """True for a score, False for a category."""
        return isinstance(self.values, np.ndarray)


@dataclass
class Section:
    """What one study shows; `rows[i]` is the head that row i of its frame speaks of, None when rows are not heads."""

    study: str
    title: str
    figures: list[FigureSpec] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    frame: pd.DataFrame | None = None
    rows: list[int] | None = None
    problems: list[str] = field(default_factory=list)

    def of_kind(self, *kinds: str) -> list[FigureSpec]:
        """Return its figures of some kinds."""
        return [figure for figure in self.figures if figure.kind in kinds]


@dataclass
class Scene:
    """Everything on a page but the attention maps."""

    heads: list[HeadId]
    sections: list[Section]
    missing: list[tuple[str, str]]
    columns: list[Column]

    @property
    def with_panel(self) -> Section | None:
        """The section the head panel stands in: the first that draws heads."""
        return next((s for s in self.sections if s.of_kind(*LINKED)), None)

    def find(self, kind: str) -> tuple[Section, FigureSpec] | None:
        """Return the first figure of a kind, and its section, where the section's heads are known."""
        for section in self.sections:
            if section.rows is not None and section.of_kind(kind):
                return section, section.of_kind(kind)[0]
        return None


def reason_of(problem: object) -> str:
    """One line that says what went wrong.

    >>> reason_of(KeyError("tree")), reason_of("the file is damaged"), reason_of(HeadscapeError("no tree"))
    ("KeyError: 'tree'", 'the file is damaged', 'no tree')
    """
    if not isinstance(problem, BaseException):
        return str(problem)
    if isinstance(problem, HeadscapeError):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"


def gather(results: Sequence[Result | Missing], heads: Sequence[HeadId] = ()) -> Scene:
    """Read every result once; what a study cannot give is recorded as a problem of its section.

    Parameters
    ----------
    results
        Results, or pairs (study, reason) for those that could not be loaded.
    heads
        Heads known from the capture; those the studies name are added behind them.
    """
    sections: list[Section] = []
    missing: list[tuple[str, str]] = []
    for item in results:
        if isinstance(item, Result):
            section = _section(item)
            again = sum(other.study.split("#")[0] == section.study for other in sections)
            section.study += f"#{again + 1}" if again else ""  # ids on the page stay apart
            sections.append(section)
        else:
            missing.append((str(item[0]), reason_of(item[1])))
    known = {head: i for i, head in enumerate(heads)}
    for section in sections:
        if section.frame is not None:
            section.rows = _rows(section.frame, known)
    scene = Scene(list(known), sections, missing, [])
    for section in sections:
        if section.rows is not None and section.frame is not None:
            scene.columns += _columns(section, len(known))
    taken: dict[str, int] = {}
    for column in scene.columns:
        taken[column.name] = taken.get(column.name, 0) + 1
    scene.columns = [
        Column(f"{c.name} ({c.study})" if taken[c.name] > 1 else c.name, c.study, c.values) for c in scene.columns
    ]
    return scene


def _section(result: Result) -> Section:
    study = str(getattr(result, "study", type(result).__name__))
    section = Section(study, str(getattr(result, "title", study)))
    for name, ask in (("figures", result.figures), ("findings", result.findings), ("frame", result.to_frame)):
        # any fault of a study, also one of its files' contents, is a line on the page and not the end of it
        try:
            setattr(section, name, ask())
        except Exception as error:
            section.problems.append(f"its {name} could not be made: {reason_of(error)}")
    return section


def _rows(frame: pd.DataFrame, known: dict[HeadId, int]) -> list[int] | None:
    """Which head each row speaks of; None when the rows are not heads, or a head has several rows."""
    keys = [*PLACE, *(["run"] if "run" in frame.columns else [])]
    if not set(PLACE) <= set(frame.columns) or not len(frame) or frame.duplicated(keys).any():
        return None
    blocks = frame["block"].astype(str)
    if "run" in frame.columns:  # heads of several networks: the network is part of their place
        blocks = frame["run"].astype(str) + ": " + blocks
    try:
        heads = [
            HeadId(*place) for place in zip(blocks, frame["layer"].astype(int), frame["head"].astype(int), strict=True)
        ]
    except (TypeError, ValueError):
        return None
    return [known.setdefault(head, len(known)) for head in heads]


def _columns(section: Section, n_head: int) -> list[Column]:
    assert section.frame is not None
    assert section.rows is not None
    found = []
    for name in section.frame.columns:
        if name in PLACE or name == "run":
            continue
        series = section.frame[name]
        if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
            numbers = np.full(n_head, np.nan)
            numbers[section.rows] = series.to_numpy(dtype=np.float64, na_value=np.nan)
            found.append(Column(str(name), section.study, numbers))
        else:
            words: list[str | None] = [None] * n_head
            for row, value in zip(section.rows, series, strict=True):
                words[row] = None if pd.isna(value) else str(value)
            found.append(Column(str(name), section.study, words))
    return found


def optional(data: Mapping[str, Any], key: str) -> Any:
    """Return an entry of a figure's data, None when it is absent or empty."""
    value = data.get(key)
    return None if value is None or (hasattr(value, "__len__") and len(value) == 0) else value
