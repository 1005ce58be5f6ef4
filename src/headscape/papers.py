"""The claims that the studies test, as data: read from claims.toml by findings, documents and commands."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from headscape.verdicts import Judgement

__all__ = ["Claim", "Source", "claim", "claims", "drawn_from", "sources_of"]


@dataclass(frozen=True)
class Source:
    """A work whose claims are tested; `drawn` if its figures are drawn again."""

    id: str
    authors: str
    year: int
    title: str
    where: str
    drawn: bool = False

    def __str__(self) -> str:
        return f"{self.authors} ({self.year}), {self.title}, {self.where}"

    @property
    def short(self) -> str:
        """Authors and year, where there is little room.

        >>> claim("softmax.invariance").source.short, claim("gaussian.scores").source.short
        ('Fasina et al. 2025', 'Wertich 2024')
        """
        first, *others = self.authors.replace(" and ", ", ").split(", ")
        return f"{first if len(others) > 1 else self.authors}{' et al.' if len(others) > 1 else ''} {self.year}"


@dataclass(frozen=True)
class Claim:
    """One claim: its statement, authors and place; how it is tested, against which control, by which rule.

    `learnt` marks claims about the effect of training: for these, random weights must not earn a tick. `needs` names what
    the claim is about and not every model has: see `headscape.studies.claims.needs`.
    """

    id: str
    source: Source
    place: str
    statement: str
    statistic: str
    control: str
    rule: str
    holds: str
    fails: str
    learnt: bool = False
    needs: str = "model"

    @property
    def study(self) -> str:
        """The study that tests it."""
        return self.id.split(".")[0]

    @property
    def citation(self) -> str:
        """Authors, year and place, as text cites them."""
        return f"{self.source.authors} {self.source.year}, {self.place}"

    def opening(self, judgement: Judgement, **names: str) -> str:
        """How the finding opens, by its verdict.

        >>> claim("organize.learnt").opening(Judgement("cannot tell", "one draw"))
        'We cannot tell whether training made this structure'
        """
        return judgement.opening(self.holds, self.fails).format(**names)


@cache
def claims() -> Mapping[str, Claim]:
    """All claims by id, in the order of the studies."""
    read = tomllib.loads((files("headscape") / "claims.toml").read_text(encoding="utf-8"))
    sources = {name: Source(id=name, **facts) for name, facts in read["sources"].items()}
    return {id: Claim(id=id, **facts | {"source": sources[facts["source"]]}) for id, facts in read["claims"].items()}


def claim(id: str) -> Claim:
    """A claim by its id.

    >>> claim("softmax.invariance").citation
    'Fasina, Pohle, Su and Coifman 2025, Corollary 1'
    """
    return claims()[id]


def sources_of(study: str) -> list[Source]:
    """The works whose claims a study tests."""
    return list(dict.fromkeys(one.source for one in claims().values() if one.study == study))


def drawn_from(study: str) -> Source | None:
    """The work whose figures a study draws again; None of a study that tests no claims.

    >>> drawn_from("collapse").short
    'Masumura and Taki 2025'
    """
    return next((source for source in sources_of(study) if source.drawn), None)
