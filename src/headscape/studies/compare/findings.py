"""What a comparison says, in sentences: each network beside itself, every pair, then the controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headscape.results import Finding
from headscape.studies.compare.result import ALL, BATCHES, INPUT, MEASURES, NAMES, SHUFFLED, Distance
from headscape.verdicts import Judgement

if TYPE_CHECKING:
    from headscape.studies.compare.result import CompareResult

__all__ = ["findings"]


def findings(r: CompareResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    found = [_self_distance(r)]
    if len(r.networks) > 1:
        found += [_overall(r), *(_pair(r, pair) for pair in r.by(ALL)), *_not_separated(r), _geometry(r)]
        found += [_other_heads(r), *_shuffled(r)]
    return found + _cautions(r)


def _self_distance(r: CompareResult) -> Finding:
    parts = []
    for network in r.networks:
        found = r.yardsticks(network, ALL)
        other = f", {found[INPUT]} on other input" if INPUT in found else ""
        parts.append(f"{network} {found[BATCHES]} on other batches{other}")
    used = ", ".join(NAMES[name] for name in r.together_of) or "no measures, since none varies between batches"
    text = (
        "How far a network is from itself sets the scale: 1 is by every measure the mean of the network that varies most. "
        f"Distances to itself: {'; '.join(parts)}. The measures put together are {used}."
    )
    return Finding(text, "intervals")


def _weakest(pairs: Sequence[Distance], verdict: Callable[[Distance], Judgement]) -> tuple[Distance, Judgement]:
    """The pair that least supports that all are apart: a claim about all pairs stands or falls with it."""
    order = {"does not hold": 0, "cannot tell": 1, "holds": 2}
    pair = min(pairs, key=lambda d: (order[verdict(d).verdict], d.apart.value))
    return pair, verdict(pair)


def _overall(r: CompareResult) -> Finding:
    pairs = r.by(ALL)
    apart = sum(pair.separated for pair in pairs)
    pair, verdict = _weakest(pairs, lambda d: d.judgement)
    opening = {
        "holds": "All networks are distinguishable",
        "does not hold": "Not all networks are distinguishable",
        "cannot tell": "Whether all networks are distinguishable cannot be told",
    }[verdict.verdict]
    text = (
        f"{opening}: {apart} of {len(pairs)} pairs are further apart than either network is from itself, with intervals "
        f"that do not overlap. The least certain pair is {pair.a} and {pair.b}."
    )
    return Finding(text, "intervals", verdict, "compare.all_apart")


def _pair(r: CompareResult, pair: Distance) -> Finding:
    verdict = pair.judgement
    single = r.single(pair)
    yes, no = (_list([NAMES[d.measure] for d in single if d.separated == which]) for which in (True, False))
    names = f"{pair.a} and {pair.b}"
    opening = {
        "holds": f"{names} are different networks by their heads",
        "does not hold": f"{names} are no further apart than one network from itself",
        "cannot tell": f"Whether {names} differ by their heads cannot be told",
    }[verdict.verdict]
    by = (
        (f"not by {no} alone" if no else "every single measure agrees")
        if pair.separated
        else (f"by {yes} alone they are separated" if yes else "nor does any single measure separate them")
    )
    text = f"{opening}: they are {pair.apart} self-distances apart, and one network is {pair.same} from itself; {by}."
    return Finding(text, "distances", verdict, "compare.apart")


def _list(words: Sequence[str]) -> str:
    return ", ".join(words)


def _not_separated(r: CompareResult) -> list[Finding]:
    """For every measure that fails somewhere, where; measures that are not mentioned separate every pair."""
    found: list[Finding] = []
    if len(r.networks) < 3:  # the sentence on the one pair has said it
        return found
    for measure in (name for name in MEASURES if name in r.together_of):
        fails = [f"{d.a} / {d.b}" for d in r.by(measure) if not d.separated]
        if fails:
            text = f"{NAMES[measure].capitalize()} alone does not separate {len(fails)} of {len(r.by(measure))} pairs: {_list(fails)}."
            found.append(Finding(text, "times"))
    return found


def _geometry(r: CompareResult) -> Finding:
    pairs = r.by("geometry")
    _, verdict = _weakest(pairs, lambda d: d.certain)
    opening = {
        "holds": "That the head geometries differ does not depend on how well heads were matched",
        "does not hold": "That the head geometries differ may depend on how well heads were matched",
        "cannot tell": "Whether the head geometries would differ under a better matching of heads cannot be told for all pairs",
    }[verdict.verdict]
    text = (
        f"{opening}. The distance found is an upper bound, since matching is a local search; for {len(r.certain)} of "
        f"{len(pairs)} pairs a lower bound (Memoli 2011) also lies above the distance of one network to itself."
    )
    return Finding(text, "distances", verdict, "compare.geometry")


def _other_heads(r: CompareResult) -> Finding:
    parts = []
    for measure in ("geometry", "l1_rel", "shannon", "depth"):
        known = [d for d in r.by(measure) if d.heads.known]
        if known:
            beyond = sum(d.beyond_heads.verdict == "holds" for d in known)
            parts.append(f"{NAMES[measure]} {beyond} of {len(known)}")
    if not parts:
        return Finding("No network could be compared with other heads of its own: a layer has one head.")
    _, verdict = _weakest(r.by("geometry"), lambda d: d.beyond_heads)
    opening = {
        "holds": "The networks have different kinds of heads",
        "does not hold": "The networks differ in which heads they have, not in what kind of heads",
        "cannot tell": "Whether all networks differ in what kind of heads they have cannot be told",
    }[verdict.verdict]
    text = (
        f"{opening}. A network beside itself has the same heads on both sides; a harder control is two random halves of "
        f"the heads of one network. Pairs of networks further apart than these: {_list(parts)}."
    )
    return Finding(text, "times-heads", verdict, "compare.kinds_of_heads")


def _shuffled(r: CompareResult) -> list[Finding]:
    parts = []
    for measure in SHUFFLED:
        pairs = [d for d in r.by(measure) if d.separated]
        if pairs:
            as_far = sum(d.shuffled.value >= d.apart.value for d in pairs)
            parts.append(f"{NAMES[measure]} {as_far} of {len(pairs)}")
    if not parts:
        return []
    text = (
        "Where attention goes is not always what separates networks: with every row shuffled over its keys, pairs that "
        f"were separated stay at least as far apart by {_list(parts)}. There the values in the rows (how peaked "
        "attention is, and its mask) are enough."
    )
    return [Finding(text, "times")]


def _cautions(r: CompareResult) -> list[Finding]:
    found = []
    masks = r.runs.groupby("mask")["network"].unique()
    if len(masks) > 1:
        sides = "; ".join(f"{mask}: {_list(list(dict.fromkeys(names)))}" for mask, names in masks.items())
        why = "part of what separates them is that a causal head cannot look ahead"
        found.append(Finding(f"The networks differ in their mask ({sides}): {why}."))
    part = r.runs[r.runs["part"].astype(bool)]["run"].tolist()
    if part:
        found.append(Finding(f"Only some of the heads were captured in {_list(part)}: these are compared as they are."))
    return found
