"""What the organize study found, in sentences: roles, stability, and structure beyond the controls."""

from __future__ import annotations

from typing import Any

import numpy as np

from headscape.geometry.diffusion import markov_spectrum
from headscape.intervals import Interval, another, mean_interval, mean_of_pairs, of_draws
from headscape.results import Finding
from headscape.roles import MIXED, role_name
from headscape.studies.organize.result import OrganizeResult
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import Judgement, cannot_tell, judge, of_different

__all__ = ["findings"]

FEWEST_DRAWS = 3
"""Draws of random weights needed to decide what training made."""


def findings(r: OrganizeResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    found = _roles(r) + _scores(r)
    one = on_claim("organize.stability", cannot_tell("one batch; capture at least 3"), ", from one batch.")
    found += [_stability(r, "l1_top"), _stability(r, "l1_all")] if r.n_batches > 1 else [one]
    return [*found, _energy(r), *_random_weights(r), *_depth(r), *_clustered(r)]


def _judge(r: OrganizeResult, statistic: Interval, **rule: Any) -> Judgement:
    """`judge`, if no batch repeats another."""
    return of_different(r.entropies, judge(statistic, **rule))


def _roles(r: OrganizeResult) -> list[Finding]:
    if "role" not in r.heads:
        return []
    counts = r.heads["role"].value_counts()
    mixed = f"{int(counts.get(MIXED, 0))} of {len(r.heads)} heads follow no single known pattern"
    text = f"H{r.headline()[1:]}; {mixed}." if r.by_role else f"{mixed}."
    if r.settings.get("pool"):
        text += f" The run is pooled to {r.settings['pool']} blocks of tokens: patterns are about blocks."
    found = [Finding(text, "head-map")]
    if r.folder_roles:
        best = min(r.folder_roles, key=lambda folder: folder.p)
        many = "1 cluster" if len(r.folder_roles) == 1 else f"{len(r.folder_roles)} clusters"
        text = f"""
            The head tree groups heads of a kind: in {many} a role is over-represented. The clearest has
            {best.size} heads, among them {best.count} of the {int(counts[best.role])} '{best.role}' heads
            (hypergeometric p = {best.p:.1g}, uncorrected for the number of clusters).
        """
        found.append(Finding(text, "head-tree"))
    return found


def _scores(r: OrganizeResult) -> list[Finding]:
    if "score_pair" not in r.heads:
        return []
    parts = {name: r.heads[f"score_{name}"] for name in ("distance", "key", "pair")}
    medians = {name: f"{values.median():.0%}" for name, values in parts.items()}
    places = {name: r.heads.iloc[int(values.fillna(-1.0).to_numpy().argmax())] for name, values in parts.items()}
    most = {name: f"{row['layer']}.{row['head']}" for name, row in places.items()}
    text = f"""
        What decides a score: in the median head the distance of query and key explains {medians["distance"]} of the variance of
        a row's scores (most in head {most["distance"]}), the key alone {medians["key"]} ({most["key"]}), and the pair of tokens,
        which is the rest, {medians["pair"]} ({most["pair"]}). As medians these need not add up to 100 %.
    """
    found = [Finding(text, "head-grid")]
    if "sink_features" in r.heads and "role" in r.heads:
        sinks = r.heads.loc[r.heads["role"] == role_name("first"), "sink_features"].dropna()
        if len(sinks):
            text = f"""
                In the {len(sinks)} heads that attend to the first token, its five largest features account for
                {sinks.median():.0%} of its key's score (median; quartiles {sinks.quantile(0.25):.0%} and
                {sinks.quantile(0.75):.0%}).
            """
            found.append(Finding(text, "head-grid"))
    return found


def _stability(r: OrganizeResult, measure: str) -> Finding:
    from headscape.studies.organize.result import MEANINGS

    own, null = r.stability[measure], r.null_stability[measure]
    if own.w != own.w:  # one head, or heads that are all the same
        rest = f": by {measure} ({MEANINGS[measure]}) no head differs from another in any batch."
        return on_claim("organize.stability", cannot_tell("there is no ranking: no head differs from another"), rest)
    beyond = mean_of_pairs(own.overlaps_bottom - null.overlaps_bottom).within(-1, 1, own.step)
    verdict = _judge(r, beyond, above=0.0, control="no more stable than with each row's keys shuffled")
    rest = f"""
        : by {measure} ({MEANINGS[measure]}), {own.always_bottom} of the {own.n_extreme} lowest-ranked heads
        recur in all {own.n_batches} batches (chance {own.always_by_chance:.2g}). The lowest tenths of two batches
        overlap by {own.jaccard_bottom} (chance {own.chance:.2g}, shuffled {null.jaccard_bottom.value:.2g}; Kendall's
        W = {own.w:.2f}).
    """
    return on_claim("organize.stability", verdict, rest, "entropies")


def _energy(r: OrganizeResult) -> Finding:
    if r.effect.value != r.effect.value:
        why = "there is nothing to organize: all entries are equal"
        return on_claim("organize.structure", cannot_tell(why), ": all its entries are equal.", "energy")
    verdict = _judge(r, r.effect, above=1.0, control="every row shuffled and organized again")
    organized, natural, null = (float(x.mean()) for x in (r.energy[:, 0], r.energy[:, 1], r.null_energy[:, 0]))
    rest = f"""
        : after organizing, the largest 1 % of the Haar coefficients hold {organized:.3f} of the energy, {r.effect} times
        as much as when every row is shuffled first ({null:.3f}); in the natural order they hold {natural:.3f}.
        The mean (DC) coefficient is left out.
    """
    return on_claim("organize.structure", verdict, rest, "energy")


def _random_weights(r: OrganizeResult) -> list[Finding]:
    if r.control_gain is None:
        return []
    random = another(r.control_gain)
    verdict = _judge(r, r.effect, above=random, control="another draw of random weights")
    if random.n < FEWEST_DRAWS:
        verdict = cannot_tell(f"{random.n} draws of random weights do not say what another would give", r.effect)
    rest = f"""
        . Organizing concentrates the energy of the trained network {r.effect} times as much as that of its shuffled
        rows, and with random weights on the same inputs {random.value:.3g} times ({random.n} draws).
    """
    return [on_claim("organize.learnt", verdict, rest, "energy")]


def _depth(r: OrganizeResult) -> list[Finding]:
    if r.depth is None or r.depth_permuted is None:
        return []
    chance = of_draws(float(np.median(r.depth_permuted)), r.depth_permuted, len(r.depth_permuted))
    own = mean_interval(r.depth)
    verdict = _judge(r, own, above=chance, control="permuted heads, the brackets hold 95 % of n draws")
    rest = f"""
        : the distance between two heads grows with that between their layers (Mantel's rank correlation {own}; the
        largest of {len(r.depth_permuted)} permutations of the heads has {r.depth_permuted.max():.2f}).
    """
    return [on_claim("organize.depth", verdict, rest, "depth")]


def _clustered(r: OrganizeResult) -> list[Finding]:
    if r.dip is None or r.dip_ring is None:
        return []
    ring, own = of_draws(float(np.median(r.dip_ring)), r.dip_ring, len(r.dip_ring)), mean_interval(r.dip)
    verdict = _judge(
        r, own, above=ring, control="as many points on a ring, a continuous shape; the brackets hold 95 % of n draws"
    )
    values = np.abs(markov_spectrum(r.affinity, min(6, len(r.heads) - 1)).values)
    rest = f"""
        . The distances between heads have a dip of {own} (Hartigan's: 0 for one mode, 1/4 for two sharp ones), points on
        a ring {ring.value:.2g} at the median. The leading eigenvalues of the diffusion are
        {", ".join(f"{value:.2f}" for value in values)}.
    """
    return [on_claim("organize.clustered", verdict, rest, "distances")]
