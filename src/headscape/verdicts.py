"""Verdicts: holds, does not hold, cannot tell. The only place that decides, by a rule that is printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy.typing as npt

from headscape.intervals import Interval, distinct, exactly

__all__ = ["Judgement", "Verdict", "cannot_tell", "judge", "of_different", "strictest"]

Verdict = Literal["holds", "does not hold", "cannot tell"]


@dataclass(frozen=True)
class Judgement:
    """A verdict and the rule or reason behind it, as a reader should see it; with what was measured, where a number was.

    >>> found = hs.judge(hs.Interval(0.2, 0.1, 0.3, 8), above=0.5, control="chance")
    >>> found.verdict, found.why
    ('does not hold', '0.2 [0.1, 0.3] (n = 8) lies below 0.5 (chance)')
    """

    verdict: Verdict
    why: str
    statistic: Interval | None = field(default=None, repr=False, compare=False)

    def opening(self, holds: str, fails: str) -> str:
        """The clause that opens a finding, `holds` or `fails` by the verdict.

        >>> cannot_tell("one input").opening("heads are alike", "heads differ")
        'We cannot tell whether heads are alike'
        """
        clause = {"holds": holds, "does not hold": fails}.get(self.verdict, f"We cannot tell whether {holds}")
        return clause[0].upper() + clause[1:]


def cannot_tell(why: str, statistic: Interval | None = None) -> Judgement:
    """A claim that cannot be decided, and why: too few inputs, below numerical precision, control missing."""
    return Judgement("cannot tell", why, statistic)


def judge(
    statistic: Interval,
    *,
    above: Interval | float | None = None,
    below: Interval | float | None = None,
    control: str = "",
    floor: float | None = None,
) -> Judgement:
    """Compare a statistic with its control: the claim holds if the intervals are apart, on the claimed side.

    Parameters
    ----------
    statistic
        What was measured. For paired inputs give the paired difference, and 0 as the control.
    above, below
        The claim is that the statistic lies above or below this control (one of the two): an interval, or a number
        that is known. It does not hold where the statistic lies entirely on the other side, and is undecided where
        the intervals overlap or one of them is missing.
    control
        What the control is, for the printed rule.
    floor
        The precision of the arithmetic: a statistic smaller than that decides nothing.

    >>> hs.judge(hs.Interval(0.9, 0.8, 1.0, 8), above=0.5, control="chance")
    Judgement(verdict='holds', why='0.9 [0.8, 1] (n = 8) lies above 0.5 (chance)')
    >>> hs.judge(hs.Interval(0.9, 0.8, 1.0, 8), above=hs.Interval(0.95, 0.85, 1.05, 8), control="rows shuffled").verdict
    'cannot tell'
    >>> hs.judge(hs.Interval(0.9), above=0.5).verdict
    'cannot tell'
    """
    given = above if above is not None else below
    if given is None or (above is not None and below is not None):
        raise ValueError("a claim is that a statistic lies above its control or below it: give one of the two")
    other = given if isinstance(given, Interval) else exactly(float(given))
    name = f"{other}" + (f" ({control})" if control else "")
    if floor is not None and abs(statistic.value) < floor:
        return cannot_tell(f"{statistic.value:.2g} lies below the numerical precision of {floor:.2g}", statistic)
    for what, one in (("", statistic), (f"{control or 'the control'}: ", other)):
        if not one.known:
            return cannot_tell(f"{what}{one.why or 'too few inputs for an interval'} (n = {one.n})", statistic)
    higher, lower = statistic.low > other.high, statistic.high < other.low
    if not (higher or lower):
        equal = statistic.low == statistic.high == other.low == other.high
        return cannot_tell(f"{statistic} equals {name}" if equal else f"{statistic} and {name} overlap", statistic)
    side = "above" if higher else "below"
    verdict: Verdict = "holds" if higher == (above is not None) else "does not hold"
    return Judgement(verdict, f"{statistic} lies {side} {name}", statistic)


def of_different(measured: npt.ArrayLike, judgement: Judgement) -> Judgement:
    """The judgement, unless inputs repeat, by what was measured on each (first axis): n then counts some of them twice.

    >>> of_different([[0.1, 0.2], [0.3, 0.1], [0.1, 0.2]], Judgement("holds", "rule")).why
    'only 2 of 3 inputs are different, and n counts independent ones; capture other inputs'
    """
    different, n = distinct(measured), len(measured)  # type: ignore[arg-type]
    why = f"only {different} of {n} inputs are different, and n counts independent ones; capture other inputs"
    return judgement if different == n else cannot_tell(why, judgement.statistic)


def strictest(*judgements: Judgement) -> Judgement:
    """Of conditions that must all hold, the one that decides: one that fails, else an undecided one, else the last.

    >>> strictest(Judgement("holds", "a"), cannot_tell("b"), Judgement("does not hold", "c")).why
    'c'
    """
    order: tuple[Verdict, ...] = ("does not hold", "cannot tell")
    return next((one for verdict in order for one in judgements if one.verdict == verdict), judgements[-1])
