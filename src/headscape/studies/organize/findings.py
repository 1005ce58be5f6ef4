"""What the organize study says, in sentences: roles, stability, and structure beyond the controls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headscape.intervals import mean_interval
from headscape.results import Finding
from headscape.roles import MIXED
from headscape.studies.organize.stability import mean_of_pairs
from headscape.verdicts import cannot_tell, judge

if TYPE_CHECKING:
    from headscape.studies.organize.result import OrganizeResult

__all__ = ["findings"]


def findings(r: OrganizeResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    found = _roles(r)
    found += [_stability(r, "l1_top"), _stability(r, "l1_all")] if r.n_batches > 1 else [_one_batch()]
    return [*found, _energy(r), *_random_weights(r)]


def _roles(r: OrganizeResult) -> list[Finding]:
    if "role" not in r.heads:
        return []
    counts = r.heads["role"].value_counts()
    named = r.headline() if r.by_role else ""
    mixed = f"{int(counts.get(MIXED, 0))} of {len(r.heads)} heads follow no single known pattern"
    text = f"Heads with a known pattern: {named}; {mixed}." if named else f"{mixed}."
    if r.settings.get("pool"):
        text += f" The run is pooled to {r.settings['pool']} blocks of tokens: patterns are about blocks."
    found = [Finding(text, "head-map")]
    if r.folder_roles:
        best = min(r.folder_roles, key=lambda folder: folder.p)
        text = (
            f"The head tree groups heads of a kind: in {len(r.folder_roles)} clusters a role is over-represented. The "
            f"clearest has {best.size} heads and {best.count} of the {int(counts[best.role])} '{best.role}' heads "
            f"(hypergeometric p = {best.p:.1g}, uncorrected for the number of clusters)."
        )
        found.append(Finding(text, "head-tree"))
    return found


def _one_batch() -> Finding:
    text = "Whether the ranking of heads is stable cannot be told from one batch."
    return Finding(text, None, cannot_tell("one batch; capture at least 3"))


def _stability(r: OrganizeResult, measure: str) -> Finding:
    from headscape.studies.organize.result import MEANINGS

    own, null = r.stability[measure], r.null_stability[measure]
    beyond = mean_of_pairs(own.overlaps_bottom - null.overlaps_bottom)
    verdict = judge(beyond, above=0.0, control="the same with each row's keys shuffled")
    opening = {
        "holds": "The ranking of heads is stable, beyond what the sharpness of their rows gives",
        "does not hold": "The ranking of heads is no more stable than after shuffling each row's keys",
        "cannot tell": "Whether the ranking of heads is stable beyond its null cannot be told",
    }[verdict.verdict]
    text = (
        f"{opening}: by {measure} ({MEANINGS[measure]}), {own.always_bottom} of the {own.n_extreme} lowest-ranked heads "
        f"recur in all {own.n_batches} batches (chance {own.always_by_chance:.2g}). The lowest tenths of two batches "
        f"overlap by {own.jaccard_bottom} (chance {own.chance:.2g}, shuffled {null.jaccard_bottom.value:.2g}; Kendall's "
        f"W = {own.w:.2f})."
    )
    return Finding(text, "entropies", verdict, "organize.stability")


def _energy(r: OrganizeResult) -> Finding:
    verdict = judge(r.effect, above=1.0, control="every row shuffled and organized again")
    opening = {
        "holds": "Attention has more structure than its null",
        "does not hold": "Attention has no more structure than its null",
        "cannot tell": "Whether attention has more structure than its null cannot be told",
    }[verdict.verdict]
    organized, natural, null = (float(x.mean()) for x in (r.energy[:, 0], r.energy[:, 1], r.null_energy[:, 0]))
    text = (
        f"{opening}: after organizing, the largest 1 % of the Haar coefficients hold {organized:.3f} of the energy, and "
        f"{null:.3f} when every row is shuffled first ({r.effect} times as much); {natural:.3f} in the natural order. "
        "The mean (DC) coefficient is left out."
    )
    return Finding(text, "energy", verdict, "organize.structure")


def _random_weights(r: OrganizeResult) -> list[Finding]:
    if r.control_gain is None:
        return []
    verdict = judge(mean_interval(r.gain - r.control_gain), above=0.0, control="random weights on the same inputs")
    opening = {
        "holds": "Training made this structure",
        "does not hold": "Training is not what makes this structure: random weights gain more from being organized",
        "cannot tell": "Whether training made this structure cannot be told",
    }[verdict.verdict]
    text = (
        f"{opening}. Organizing concentrates the energy of the trained network {r.effect} times as much as its null, that "
        f"of random weights on the same inputs {mean_interval(r.control_gain)} times."
    )
    return [Finding(text, "energy", verdict, "organize.learnt")]
