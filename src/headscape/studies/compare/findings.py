"""What a comparison found, in sentences: each network against itself, every pair, then the controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headscape.results import Finding
from headscape.studies.compare.result import ALL, BATCHES, INPUT, MEASURES, NAMES, SHUFFLED, CompareResult, Distance
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import Judgement, judge, of_different

__all__ = ["findings"]


def findings(r: CompareResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    found = [_self_distance(r), *_bottom(r)]
    if len(r.networks) > 1:
        found += [_overall(r), *(_pair(r, pair) for pair in r.by(ALL)), *_not_separated(r), _geometry(r)]
        found += [_other_heads(r), *_shuffled(r), *_larger(r)]
    return found + _cautions(r)


def _self_distance(r: CompareResult) -> Finding:
    parts = []
    for network in r.networks:
        found = r.yardsticks(network, ALL)
        other = f", {found[INPUT]} on other input" if INPUT in found else ""
        parts.append(f"{network} {found[BATCHES]} on other batches{other}")
    used = ", ".join(NAMES[name] for name in r.together_of) or "no measures, since none varies between batches"
    text = f"""
        How far a network is from itself sets the scale: in every measure, 1 is the mean self-distance of the network
        that varies most.
        Distances to itself: {"; ".join(parts)}. The measures put together are {used}.
    """
    return Finding(text, "intervals")


def _bottom(r: CompareResult) -> list[Finding]:
    """Whether the lowest heads stay the lowest on other input, of every network with several runs."""
    found = []
    for network in r.networks:
        shared = r.shared_bottom(network)
        if shared is None or r.clusters:  # a shorter copy of a run has the same inputs
            continue
        between, within, chance = shared
        verdict = of_different(r.inputs(network), judge(between, above=chance, control="chance"))
        names = _list(r.runs.loc[r.runs["network"] == network, "run"].tolist())
        rest = (
            f": of the lowest tenth of heads by l1_top (sum of the coefficients of largest support), {between} are the same on "
            f"the inputs of another run, {within} on other batches of one run; chance {chance:.2f} (runs: {names})."
        )
        found.append(on_claim("compare.bottom", verdict, rest, "runs", network=network))
    return found


def _weakest(pairs: Sequence[Distance], verdict: Callable[[Distance], Judgement]) -> tuple[Distance, Judgement]:
    """The pair that gives least support: a claim about all pairs depends on it."""
    order = {"does not hold": 0, "cannot tell": 1, "holds": 2}
    pair = min(pairs, key=lambda d: (order[verdict(d).verdict], d.apart.value))
    return pair, verdict(pair)


def _overall(r: CompareResult) -> Finding:
    pairs = r.by(ALL)
    apart = sum(pair.separated for pair in pairs)
    pair, verdict = _weakest(pairs, lambda d: d.judgement)
    rest = f"""
        : {apart} of {len(pairs)} pairs are further apart than either network is from itself, with intervals
        that do not overlap. The least certain pair is {pair.a} and {pair.b}.
    """
    return on_claim("compare.all_apart", verdict, rest, "intervals")


def _pair(r: CompareResult, pair: Distance) -> Finding:
    verdict = pair.judgement
    single = r.single(pair)
    yes, no = (_list([NAMES[d.measure] for d in single if d.separated == which]) for which in (True, False))
    by = (
        (f"not by {no} alone" if no else "every single measure agrees")
        if pair.separated
        else (f"by {yes} alone they are separated" if yes else "nor does any single measure separate them")
    )
    rest = f": they are {pair.apart} self-distances apart, and one network is {pair.same} from itself; {by}."
    return on_claim("compare.apart", verdict, rest, "distances", a=pair.a, b=pair.b)


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
            name = NAMES[measure][0].upper() + NAMES[measure][1:]
            text = f"{name} alone does not separate {len(fails)} of {len(r.by(measure))} pairs: {_list(fails)}."
            found.append(Finding(text, "times"))
    return found


def _geometry(r: CompareResult) -> Finding:
    pairs = r.by("geometry")
    _, verdict = _weakest(pairs, lambda d: d.certain)
    rest = f"""
        . The distance found is an upper bound, since matching is a local search; for {len(r.certain)} of
        {len(pairs)} pairs a lower bound (Mémoli 2011) also lies above the distance of one network to itself.
    """
    return on_claim("compare.geometry", verdict, rest, "distances")


def _other_heads(r: CompareResult) -> Finding:
    parts = []
    for measure in ("geometry", "l1_rel", "shannon", "depth"):
        known = [d for d in r.by(measure) if d.heads.known]
        if known:
            beyond = sum(d.beyond_heads.verdict == "holds" for d in known)
            parts.append(f"{NAMES[measure]} {beyond} of {len(known)}")
    if not parts:
        return Finding("No network could be compared with its own other heads: a layer has one head.")
    _, verdict = _weakest(r.by("geometry"), lambda d: d.beyond_heads)
    rest = f"""
        . A network compared with itself has the same heads on both sides; a harder control is two random halves of
        the heads of one network. Pairs of networks further apart than these: {_list(parts)}.
    """
    return on_claim("compare.kinds_of_heads", verdict, rest, "times-heads")


def _shuffled(r: CompareResult) -> list[Finding]:
    parts, left = [], 0
    for measure in SHUFFLED:
        pairs = [d for d in r.by(measure) if d.separated]
        if pairs:
            as_far = sum(d.shuffled.value >= d.apart.value for d in pairs)
            left += as_far
            parts.append(f"{NAMES[measure]} {as_far} of {len(pairs)}")
    if not parts:
        return []
    opening = (
        "Where attention goes is not always what separates networks"
        if left
        else "Networks are apart by where attention goes"
    )
    text = f"""
        {opening}: of the pairs that were separated, so many stay at least as far apart with every row shuffled over its
        keys: {_list(parts)}.
    """
    enough = " There the values in the rows (how peaked attention is, and its mask) are enough." if left else ""
    return [Finding(f"{text.strip()}{enough}", "times")]


def _larger(r: CompareResult) -> list[Finding]:
    if r.larger is None:
        return []
    high, low, verdict = r.larger
    rest = (
        ". The paper compares the sums themselves, which change with the unit of the maps; here each is the l1 norm over "
        "the l2 norm of the tri-Haar coefficients, over the largest value it can have."
    )
    return [on_claim("compare.entropy", verdict, rest, "whole", a=high, b=low)]


def _cautions(r: CompareResult) -> list[Finding]:
    found = []
    masks = r.runs.groupby("mask")["network"].unique()
    if len(masks) > 1:
        sides = "; ".join(f"{mask}: {_list(list(dict.fromkeys(names)))}" for mask, names in masks.items())
        why = "part of what separates them is that a causal head cannot look ahead"
        found.append(Finding(f"The networks differ in their mask ({sides}): {why}."))
    if r.clusters:
        text = (
            f"All maps are averages over {r.clusters} clusters of queries and of keys, a level that the trees of all runs "
            "have: what single tokens do is not compared. A run that ends in -short is a longer one with as few tokens as the "
            "shortest, drawn at random: how far it is from its own network is what length alone does."
        )
        found.append(Finding(text, "runs"))
    part = r.runs[r.runs["part"].astype(bool)]["run"].tolist()
    if part:
        found.append(Finding(f"Only some of the heads were captured in {_list(part)}: these are compared as they are."))
    return found
