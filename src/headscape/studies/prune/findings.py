"""What the prune study says, in sentences: the proposal first, then criteria beside their controls."""

from __future__ import annotations

from math import nan

from headscape.errors import InputError
from headscape.intervals import Interval
from headscape.pruning.criteria import CRITERIA, find_criterion
from headscape.results import Finding
from headscape.roles import MIXED
from headscape.studies.prune.result import CONTROLS, PruneResult, percent
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import Judgement, cannot_tell, judge, strictest

__all__ = ["findings"]


def findings(r: PruneResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    found = [*_proposed(r), *_against_gradients(r), *_paper(r), *_organized(r)]
    return [*found, *_compensated(r), *_correlated(r)]


def _named(name: str) -> str:
    """A criterion with its meaning."""
    try:
        return f"{name} ({find_criterion(name).about})"
    except InputError:  # a function of the user's own
        return name


def _proposed(r: PruneResult) -> list[Finding]:
    own = r.curve("proposal", proposal=True)
    if own is None:
        within = ", ".join(f"{name} {bound:.2%}" for name, bound in r.budget.items())
        none = cannot_tell("the search found no heads within the budget, so none were judged on held-out inputs")
        rest = ": the search found none on the inputs to choose on."
        return [on_claim("prune.budget", none, rest, "choice", heads="heads", budget=within)] if r.budget else []
    price, some = own.cost(0), f"{len(r.proposal)} of {len(r.heads)} heads ({r.share(len(r.proposal))})"
    how = f"removed by {_named(r.criterion)} with compensation {r.compensation}"
    drawn = "proposal" if len(r.evidence) else "abilities"  # beside other criteria, where these were judged too
    if r.main not in r.budget:
        text = f"Removing {some} costs {percent(price, r.measure)} on held-out inputs; they were {how}."
        return [Finding(text, drawn), *_kept(r), *_roles(r)]
    bound = r.budget[r.main]
    verdict = judge(price, below=bound, control="the budget")
    rest = f"""
        : on held-out inputs they cost {percent(price, r.measure)}, {how}. They were chosen on {r.settings["chosen_on"]}
        other inputs.
    """
    proposed = on_claim("prune.budget", verdict, rest, drawn, heads=some, budget=f"{bound:.2%}")
    return [proposed, *_kept(r), *_roles(r)]


def _kept(r: PruneResult) -> list[Finding]:
    """What became of every ability beside the main one."""
    found = []
    for ability in list(r.intact)[1:]:
        own = r.curve("proposal", proposal=True, ability=ability)
        if own is None:
            continue
        facts = r.abilities[r.abilities["ability"] == ability].iloc[0]
        before, now = r.levels(own)
        chance = facts.get("right by chance", nan) if own.answers else facts["chance"]
        levels = f"{'accuracy' if own.answers else 'loss'} {before:.3g} intact, {now:.3g} now, {chance:.3g} at chance"
        if not facts["binds"]:
            text = f"The intact model is not shown to beat chance in {_ABILITIES[ability]}, so no budget applies ({levels})."
            found.append(Finding(text, "abilities"))
            continue
        price = percent(
            own.cost(0), "drop of accuracy" if own.answers else "share of the advantage over chance that is lost"
        )
        if ability not in r.budget:
            found.append(Finding(f"{_ABILITIES[ability].capitalize()} costs {price}: {levels}.", "abilities"))
            continue
        verdict = judge(own.cost(0), below=r.budget[ability], control="the budget")
        names = {"ability": _ABILITIES[ability], "budget": f"{r.budget[ability]:.2%}"}
        found.append(on_claim("prune.abilities", verdict, f": {price}; {levels}.", "abilities", **names))
    return found


_ABILITIES = {
    "copy.random": "copying of random tokens",
    "copy.text": "copying of text",
    "retrieval": "retrieval of a fact stated earlier",
    "task": "the task that was given",
}


def _roles(r: PruneResult) -> list[Finding]:
    """Which roles the removed heads have."""
    named = {role: counts for role, counts in r.roles.items() if role != MIXED and counts[1]}
    if not named:
        return []
    gone = [f"{n} of {of} {role}" for role, (n, of) in sorted(named.items(), key=lambda item: -item[1][0]) if n]
    whole = [f"{role} ({of})" for role, (n, of) in named.items() if not n]
    text = f"Roles among the removed heads: {', '.join(gone) or 'none'}"
    return [Finding(f"{text}{f'; none of {_and(whole)}' if whole else ''}.", "importance")]


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _against_gradients(r: PruneResult) -> list[Finding]:
    """The chosen criterion, and the one without gradients that did best on the inputs to choose on."""
    free = [n for n in r.choice["criterion"] if n in CRITERIA and not CRITERIA[n].gradients]
    claims = {name: "prune.gradient_free" for name in free[:1] if name != r.criterion}
    rival, found = r.curve("gradient"), []
    if r.criterion == "gradient":
        found.append(Finding("Gradient importance (Michel et al. 2019) was chosen as the best criterion.", "curves"))
    for name, claim in ({r.criterion: "prune.gradients"} | claims).items():
        own = r.curve(name)
        if own is None or rival is None or own is rival:
            continue
        differences = [own.minus(rival, i) for i in range(len(own.n))]
        verdict = _everywhere(
            differences, "no difference from gradient importance, at the share of heads where it does worst"
        )
        listed = ", ".join(f"{percent(d)} at {r.share(n)}" for n, d in zip(own.n, differences, strict=True))
        rest = f". Difference of costs under the same compensation, paired by input: {listed} (below 0 is better)."
        found.append(on_claim(claim, verdict, rest, "curves", criterion=_named(name)))
    return found


def _everywhere(differences: list[Interval], control: str) -> Judgement:
    """Whether all differences lie below 0, by the one that least does; one without an interval leaves it open."""
    return strictest(*(judge(one, below=0.0, control=control) for one in sorted(differences, key=lambda d: d.value)))


def _paper(r: PruneResult) -> list[Finding]:
    found = []
    for compensation in dict.fromkeys(("none", r.compensation)):
        own, chance = r.curve("l1_top", compensation), r.curve("random", compensation)
        if own is None or chance is None:
            continue
        verdict = judge(own.area, below=chance.by_draw, control="another random choice")
        costs, random = (", ".join(f"{c.cost(i).value:+.1%}" for i in range(len(c.n))) for c in (own, chance))
        removing = f"removing {', '.join(r.share(n) for n in own.n)} of the heads by {_named('l1_top')}"
        rest = f": with compensation {compensation}, {removing} costs {costs}, at random {random}."
        found.append(on_claim("prune.l1_top", verdict, rest, "curves"))
    return found


def _organized(r: PruneResult) -> list[Finding]:
    own = r.curve("l1_all", "none")
    controls = [c for name in ("l1_all_random", "l1_all_natural") if (c := r.curve(name, "none")) is not None]
    if own is None or len(controls) < 2:
        return []
    differences = [own.minus(c) for c in controls]
    verdict = _everywhere(differences, "no difference from the better of permuted leaves and natural order")
    areas = [f"{c.area.value:+.1%}" for c in (own, *controls)]
    rest = f": removing heads by {_named('l1_all')} costs {areas[0]} (mean over shares, uncompensated)"
    rest += f", {areas[1]} on trees with permuted leaves, {areas[2]} in the natural order."
    return [on_claim("prune.organization", verdict, rest, "curves-none")]


def _compensated(r: PruneResult) -> list[Finding]:
    known = sorted((c for c in r.on() if c.criterion == r.criterion), key=lambda c: c.area.value)
    if len(known) < 2:
        return []
    parts = ", ".join(f"{c.compensation} {percent(c.area)}" for c in known)
    text = f"Compensation {known[0].compensation} has the lowest cost by {r.criterion} (mean over shares): {parts}."
    return [Finding(text, "compensation")]


def _correlated(r: PruneResult) -> list[Finding]:
    named = {n: x for n, x in r.correlations.items() if n not in CONTROLS}
    if not named:
        return []
    best, paper = max(named, key=lambda n: named[n].value), named.get("l1_top")
    text = f"Closest to the order of removing heads one at a time is {_named(best)}: Spearman {named[best]}"
    return [Finding(f"{text}{f'; l1_top has {paper}' if paper else ''}.", "correlations")]
