"""What a study returns: tables, findings and figures as plain data, saved as plain files. Nothing here draws or computes."""

from __future__ import annotations

import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd

from headscape import hooks
from headscape.papers import claims
from headscape.records import as_records, load_record, save_record, write_table
from headscape.verdicts import Judgement, Verdict

__all__ = ["Captions", "FigureKind", "FigureSpec", "Finding", "Result", "few"]

LINE = 160  # characters of a headline
FigureKind = Literal[
    "head_map",  # coordinates (n_head, k); eigenvalues (k,): each head a point
    "head_matrix",  # values (n_head, n_head); order (n_head,): a symmetric matrix of heads in tree order
    "head_tree",  # labels (n_level, n_head); order (n_head,); names {"level:folder": name}: the tree of heads
    "head_grid",  # score: name of a column of `to_frame()`: layer x head, any score can be chosen
    "lines",  # series: list of {name, x, y, low?, high?, dash?, colour? (number of a colour)}
    "scatter",  # x, y, names?, group?; lines?: list of {name, x, y}, references such as a diagonal
    "bars",  # names, values, low?, high?, group?
    "heatmap",  # values (n_row, n_column); rows?, columns?; centre? for a diverging palette
    "violins",  # groups: list of {name, values, side?, label? (of the side, in the legend)}
    "maps",  # panels: list of {name, values (n_query, n_key), query_tokens, key_tokens, high? (of a shared scale)}
    "frames",  # frames (names), panels: list of {name, x, y ((n,) or (n_frame, n)), grid?}, names, group (n_frame, n)
    "table",  # columns: list of str; rows: list of list
]


@dataclass(frozen=True)
class Finding:
    """What was found: a sentence that opens with what it means, then the number and its control, then how sure it is.

    `judgement` is the verdict on the claim it tests, with the rule; None where the sentence only describes.

    >>> judgement = hs.judge(hs.Interval(0.9, 0.8, 1.0, 8), above=0.5, control="chance")
    >>> print(hs.Finding("Heads look back by one token.", judgement=judgement))
    Heads look back by one token. [holds: 0.9 [0.8, 1] (n = 8) lies above 0.5 (chance)]
    """

    text: str
    figure: str | None = None
    judgement: Judgement | None = None
    claim: str | None = None  # id of the claim it tests, of `headscape.papers`

    def __post_init__(self) -> None:
        """Text may be written over several lines."""
        object.__setattr__(self, "text", " ".join(self.text.split()))

    @property
    def verdict(self) -> Verdict | None:
        """holds, does not hold, cannot tell; None where nothing was claimed."""
        return None if self.judgement is None else self.judgement.verdict

    @property
    def citation(self) -> str | None:
        """Authors, year and place of the claim; None where nothing was claimed."""
        known = claims().get(self.claim or "")
        return None if known is None else known.citation

    @property
    def holds(self) -> bool | None:
        """Whether the claim holds; None if that is undecided or nothing was claimed."""
        return {"holds": True, "does not hold": False}.get(self.verdict or "")

    def __str__(self) -> str:
        if self.judgement is None:
            return self.text
        return f"{self.text} [{self.judgement.verdict}: {self.judgement.why}]"


@dataclass(frozen=True, kw_only=True)
class FigureSpec:
    """A figure as plain data; `report/` turns it into a picture.

    `data` holds arrays, lists, strings and numbers, with the keys its kind names above. `read` says how to read the
    picture, `caveat` what it does not prove, `alt` what a reader who cannot see it should know. Heads are counted as in
    the result's `to_frame()`. `paper` says which figure or table of the source paper it is ("figure 3").

    >>> curve = {"name": "training", "x": [0, 100, 200], "y": [4.5, 3.1, 2.8]}
    >>> spec = hs.FigureSpec(id="loss", title="Loss by step", kind="lines", data={"series": [curve]}, read="Lower is better.")
    >>> spec.title, spec.kind
    ('Loss by step', 'lines')
    """

    id: str
    title: str
    kind: FigureKind
    data: Mapping[str, Any] = field(repr=False)
    read: str
    caveat: str = ""
    alt: str = ""
    x_label: str = ""
    y_label: str = ""
    value_label: str = ""
    log_x: bool = False
    log_y: bool = False
    paper: str | None = None


class Captions:
    """The words of a study's figures: an entry of its figures.toml for each, with {names} that the study fills in."""

    def __init__(self, module: str) -> None:
        self._package = module.rpartition(".")[0]

    @cached_property
    def _entries(self) -> dict[str, dict[str, Any]]:
        return tomllib.loads((files(self._package) / "figures.toml").read_text(encoding="utf-8"))

    def figure(self, entry: str, data: Mapping[str, Any], **given: Any) -> FigureSpec:
        """The figure of an entry; `given` fills in the names in its words, or replaces fields."""
        words = {"id": entry} | self._entries[entry]
        filled = {name: word.format(**given) if isinstance(word, str) else word for name, word in words.items()}
        own = {each.name: given[each.name] for each in fields(FigureSpec) if each.name in given}
        words = filled | own
        return FigureSpec(data=data, **words | {"read": words["read"] + _sizes(data)})

    def lines(self, entry: str, series: Sequence[Mapping[str, Any]], **given: Any) -> FigureSpec:
        """A figure of lines, each with its name, x and y."""
        return self.figure(entry, {"series": list(series)}, **given)

    def violins(self, entry: str, groups: Mapping[str, Any], **given: Any) -> FigureSpec:
        """A figure of violins: the values of each group, by its name."""
        data = {"groups": [{"name": name, "values": values} for name, values in groups.items()]}
        return self.figure(entry, data, **given)

    def table(self, entry: str, frame: pd.DataFrame, **given: Any) -> FigureSpec:
        """A table as a figure: numbers to four digits, missing ones as a dash."""
        rows = [[_cell(value) for value in row] for row in frame.to_numpy(dtype=object)]
        data = {"columns": [str(column) for column in frame.columns], "rows": rows}
        return self.figure(entry, data, kind="table", **given)


def _sizes(data: Mapping[str, Any]) -> str:
    """How many inputs the intervals of a figure are based on: the "n" of its parts that have intervals.

    A band that is no interval (from the least to the largest, one standard deviation) has "range" instead.
    """
    parts = [data, *data.get("series", ())]
    for part in parts:
        if "low" in part and not {"n", "range"} & set(part):
            raise ValueError(f"{part.get('name', 'a figure')} has an interval without its n")
    known = [
        (np.atleast_1d(part["n"]), np.isfinite(np.asarray(part["low"], dtype=float)))
        for part in parts
        if "n" in part and "low" in part
    ]
    counts = (int(n) for sizes, here in known for n in (sizes[here] if len(sizes) == len(here) else sizes))
    found = sorted({n for n in counts if n})  # a formula beside them has none
    if not found:
        return ""
    return f" n = {found[0]}." if len(found) == 1 else f" n = {found[0]} to {found[-1]}."


def _cell(value: Any) -> str:
    if value is None or value is pd.NA or value != value:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def few(names: Sequence[str], n: int = 3) -> str:
    """The first names of a list.

    >>> few(["1.0", "2.3"]), few(["1.0", "2.3", "0.1", "4.2"])
    ('1.0, 2.3', '1.0, 2.3, 0.1, …')
    """
    return ", ".join(names[:n]) + (", …" if len(names) > n else "")


class Result(ABC):
    """Base class of results: saved as plain files, shown as tables, findings and figures.

    A subclass is a frozen dataclass with a `study` name, and implements `to_frame` (a table, one row per head where the
    study is about heads, with columns block, layer, head), `figures` and `findings`: all that the report needs. What
    `save` writes and `load` reads follows from its fields.

    >>> result = hs.spectra(model, rotations=20)
    >>> result.findings()[0].verdict
    'cannot tell'
    >>> result.save("kept")
    >>> type(result).load("kept").headline() == result.headline()
    True
    """

    study: ClassVar[str]
    title: ClassVar[str]

    def __init_subclass__(cls) -> None:
        setattr(cls, "__repr__", Result.__repr__)  # noqa: B010  # dataclass keeps what is there: fields fill screens

    def __repr__(self) -> str:
        return "\n- ".join([self.title, *(finding.text for finding in self.findings())])

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """The result as a table."""

    @abstractmethod
    def figures(self) -> list[FigureSpec]:
        """Its pictures, as plain data."""

    @abstractmethod
    def findings(self) -> list[Finding]:
        """What was found, in sentences."""

    def meanings(self) -> Mapping[str, str]:
        """What columns of its table mean, by their names: the page explains its scores by them."""
        return {}

    def tables(self) -> dict[str, pd.DataFrame]:
        """Every table by name, as `--json` prints them and `save` writes them beside the fields (NAME.csv)."""
        return {"heads": self.to_frame()}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """Title and rows of the short tables that a command prints at its end."""
        return []

    def headline(self) -> str:
        """What was found, in one line: by default the opening of the first finding with a verdict, or else of the first."""
        findings = sorted(self.findings(), key=lambda finding: finding.judgement is None)
        found = findings[0].text if findings else "nothing was decided"
        opening = re.split(r": |; |(?<!et al)\. ", found)[0].rstrip(".")
        return opening if len(opening) <= LINE else opening[: LINE - 1] + "…"

    def to_json(self) -> dict[str, Any]:
        """Findings and tables, for machines."""
        findings = [
            asdict(finding) | {"verdict": finding.verdict, "citation": finding.citation} for finding in self.findings()
        ]
        return {"findings": findings, **{name: as_records(table) for name, table in self.tables().items()}}

    def save(self, folder: str | Path) -> None:
        """Write result.json, result.safetensors and the tables as CSV into a folder."""
        folder = Path(folder)
        for name, table in self.tables().items():
            write_table(folder / f"{name}.csv", table)
        save_record(self, folder, study=self.study)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read back what `save` wrote; in a folder with several results (RUN/organize) the newest."""
        folder = Path(folder)
        if not (folder / "result.json").is_file():
            found = sorted(folder.glob("*/result.json"), key=lambda file: file.stat().st_mtime_ns)
            folder = found[-1].parent if found else folder
        return load_record(cls, folder, again=f"run `headscape {cls.study}` again")

    def show(self, *figures: str) -> str:
        """Single figures by their ids, as HTML that a notebook shows; "heads" is the view of its heads to explore.

        >>> hs.spectra(model, rotations=20).show("evenness")[:8]
        '<figure>'
        """
        assert hooks.render_html is not None  # the package sets it when it is imported
        return hooks.render_html(self, figures)

    def _repr_html_(self) -> str:
        # results know nothing of drawing: whoever can draw has left a hook
        try:
            return self.to_frame().to_html() if hooks.render_html is None else hooks.render_html(self)
        except ModuleNotFoundError:  # the extra "report" is not installed
            return self.to_frame().to_html()
