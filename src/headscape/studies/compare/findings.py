"""The sentences of a comparison, each by a rule that the table shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headscape.results import Finding
from headscape.studies.compare.result import ALL, BATCHES, INPUT, MEASURES, NAMES, SHUFFLED, Distance

if TYPE_CHECKING:
    from headscape.studies.compare.result import CompareResult

__all__ = ["findings"]


def findings(r: CompareResult) -> list[Finding]:
    """Yardsticks, every pair, what fails, then the controls and cautions."""
    found = [_yardstick(r)]
    if len(r.networks) > 1:
        found += [_overall(r), *(_pair(r, pair) for pair in r.by(ALL)), *_not_told_apart(r), _geometry(r)]
        found += [_other_heads(r), *_shuffled(r)]
    return found + _cautions(r)


def _yardstick(r: CompareResult) -> Finding:
    parts = []
    for network in r.networks:
        found = r.yardsticks(network, ALL)
        other = f", {found[INPUT]} on other input" if INPUT in found else ""
        parts.append(f"{network} {found[BATCHES]} on other batches{other}")
    used = ", ".join(NAMES[name] for name in r.together_of)
    return Finding(
        "The yardstick of no difference, a network beside itself, where 1 is the furthest that any of them gets: "
        f"{'; '.join(parts)}. Put together are {used or 'no measures: none varies between batches'}.",
        "intervals",
    )


def _overall(r: CompareResult) -> Finding:
    pairs = r.by(ALL)
    apart = sum(pair.separated for pair in pairs)
    return Finding(
        f"{apart} of {len(pairs)} pairs of networks are separated from the yardstick: the whole interval of their "
        "distance lies above every interval of either network beside itself.",
        "intervals",
        apart == len(pairs),
    )


def _pair(r: CompareResult, pair: Distance) -> Finding:
    single = _single(r, pair)
    tells = [NAMES[d.measure] for d in single if d.separated]
    fails = [NAMES[d.measure] for d in single if not d.separated]
    words = "are told apart" if pair.separated else "are NOT told apart by all measures together"
    by = f"not by {_list(fails)} alone" if fails else "every single measure agrees"
    if not pair.separated:
        by = f"they are by {_list(tells)} alone" if tells else "nor by any single one"
    return Finding(
        f"{pair.a} and {pair.b} {words}: {pair.apart} yardsticks apart, either beside itself at most "
        f"{pair.same.high:.3g}; {by}.",
        "distances",
        pair.separated,
    )


def _single(r: CompareResult, pair: Distance) -> list[Distance]:
    return [d for d in r.distances if (d.a, d.b) == (pair.a, pair.b) and d.measure in r.together_of]


def _list(words: Sequence[str]) -> str:
    return ", ".join(words)


def _named(pairs: Sequence[Distance]) -> str:
    return _list([f"{d.a} / {d.b}" for d in pairs])


def _not_told_apart(r: CompareResult) -> list[Finding]:
    """For every measure that fails somewhere, where; silent measures hold everywhere."""
    found: list[Finding] = []
    if len(r.networks) < 3:  # the sentence on the one pair has said it
        return found
    for measure in (name for name in MEASURES if name in r.together_of):
        fails = [d for d in r.by(measure) if not d.separated]
        if fails:
            found.append(
                Finding(
                    f"By {NAMES[measure]} alone, {len(fails)} of {len(r.by(measure))} pairs are not told apart: "
                    f"{_named(fails)}.",
                    "times",
                    False,
                )
            )
    return found


def _geometry(r: CompareResult) -> Finding:
    pairs = r.by("geometry")
    return Finding(
        f"The head geometry found is an upper bound, since its matching is a local search; for {len(r.certain)} of "
        f"{len(pairs)} pairs a lower bound too lies above the yardstick, so that no better matching can undo them.",
        "distances",
        len(r.certain) == len(pairs),
    )


def _other_heads(r: CompareResult) -> Finding:
    parts, every = [], True
    for measure in ("geometry", "l1_rel", "shannon", "depth"):
        known = [d for d in r.by(measure) if d.heads.high == d.heads.high]
        if known:
            beyond = [d for d in known if d.beyond_heads]
            every = every and len(beyond) == len(known)
            parts.append(f"{NAMES[measure]} {len(beyond)} of {len(known)}")
    if not parts:
        return Finding("No network could be compared with other heads of its own: a layer has one head.", None)
    return Finding(
        "The yardstick has the same heads on both sides. A harder control is two random halves of the heads of one "
        f"network; pairs of networks further apart than these: {_list(parts)}. A pair that is not is told apart by "
        "which heads it has, not by what kind of heads.",
        "times-heads",
        every,
    )


def _shuffled(r: CompareResult) -> list[Finding]:
    parts = []
    for measure in SHUFFLED:
        pairs = [d for d in r.by(measure) if d.separated]
        if pairs:
            as_far = sum(d.shuffled.value >= d.apart.value for d in pairs)
            parts.append(f"{NAMES[measure]} {as_far} of {len(pairs)}")
    if not parts:
        return []
    return [
        Finding(
            "With every row shuffled over its keys, networks that are told apart stay at least as far apart: "
            f"{_list(parts)} pairs. There the values in the rows (how peaked attention is, and its mask) are enough to "
            "tell them apart.",
            "times",
        )
    ]


def _cautions(r: CompareResult) -> list[Finding]:
    found = []
    masks = r.runs.groupby("mask")["network"].unique()
    if len(masks) > 1:
        sides = "; ".join(f"{mask}: {_list(list(dict.fromkeys(names)))}" for mask, names in masks.items())
        found.append(
            Finding(
                f"The networks differ in their mask ({sides}): part of what separates them is that a causal head "
                "cannot look ahead.",
                None,
            )
        )
    part = r.runs[r.runs["part"].astype(bool)]["run"].tolist()
    if part:
        found.append(
            Finding(f"Only a part of the heads was captured in {_list(part)}: these are compared as is.", None)
        )
    return found
