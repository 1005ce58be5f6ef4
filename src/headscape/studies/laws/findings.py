"""What the random draws show about chapters 5 and 6 of Wertich's thesis (2024), each statement with its control."""

from __future__ import annotations

import numpy as np

from headscape.results import Finding
from headscape.studies.laws.result import LawsResult, mean_of_draws, share_of_draws
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import judge

__all__ = ["findings"]

NEARLY = 0.95
HARDLY = 0.01
"""Share of scores beyond a bound from which it does not hold."""


def findings(r: LawsResult) -> list[Finding]:
    """All findings, chapter by chapter."""
    return [*_slerp(r), _entropy(r), *_ratios(r), *_angles(r), _bound(r), _aligned(r), _order(r)]


def _slerp(r: LawsResult) -> list[Finding]:
    found = []
    stated = min(r.radii, key=lambda radius: abs(radius - 1))  # the conjecture is about unit vectors
    for k, radius in enumerate(r.radii):
        cosine, line = r.arrays[f"slerp/{k}/errors"]
        verdict = judge(mean_of_draws(cosine - line), below=0.0, control="no closer than a straight line")
        rest = (
            f" (length {radius:g}, dimension {r.n}): the largest distance of a pair's curve from (l^2/n)(1 - cos((1-t) pi/2)) is "
            f"{mean_of_draws(cosine)} of its height, that from a straight line {mean_of_draws(line)}."
        )
        said = on_claim("laws.slerp", verdict, rest, "slerp")
        found.append(said if radius == stated else Finding(said.text, said.figure))
    return found


def _entropy(r: LawsResult) -> Finding:
    at = int(np.argmin(np.abs(r.arrays["radii"] - 1)))
    drawn, law = r.arrays["entropies"][at], r.entropy_predicted[at]
    off = np.abs(drawn - law) - np.abs(drawn - np.log(r.n))
    rest = (
        f": at length root n it is {mean_of_draws(drawn)} nats; the formula says {law:.3f}, log n is {np.log(r.n):.3f}."
    )
    return on_claim("laws.entropy", judge(mean_of_draws(off), below=0.0, control="log n"), rest, "entropy")


def _ratios(r: LawsResult) -> list[Finding]:
    found = []
    for k, radius in enumerate(r.radii):
        printed, right = (float(np.exp(x / r.n)) for x in (radius, radius**2))
        if printed == right:
            continue
        drawn = mean_of_draws(r.arrays[f"ratio/{k}"])
        verdict = judge(drawn, below=printed, control="exp(l/n), as printed")
        rest = f" (length {radius:g}): drawn {drawn}, exp(l^2/n) = {right:.3f}."
        found.append(on_claim("laws.ratio", verdict, rest, "ratio"))
    return found


def _angles(r: LawsResult) -> list[Finding]:
    cosines = r.arrays["angle/cosines"]
    own, both = r.slope("squares", cosines**2), r.slope("products", cosines)
    alone = f": the variance of x^T C y, times n, changes by {own} from a right angle to a parallel pair; eq. 6.47 says 1, theory 0."
    together = f": n Cov(x^T C y, x^T C y') rises by {both} per unit of the cosine of y and y'; by theory 1."
    return [
        on_claim("laws.angle_variance", judge(own, above=0.5, control="half of what is printed"), alone, "angles"),
        on_claim(
            "laws.angle_covariance", judge(both, above=0.0, control="no angle in covariances"), together, "angles"
        ),
    ]


def _bound(r: LawsResult) -> Finding:
    right, printed = (share_of_draws(share) for share in (r.arrays["bound"] > 1))
    rest = (
        f": a share of {printed} of the scores lies beyond it; without the factor |cos| a share of {right.value:.3g}."
    )
    return on_claim("laws.bound", judge(printed, below=HARDLY, control="one score in a hundred"), rest, "bound")


def _aligned(r: LawsResult) -> Finding:
    verdict = judge(r.traces["aligned, paired at random"], above=NEARLY, control="n^2 s^2, less a twentieth")
    rest = (
        ": "
        + ", ".join(f"{name} {value}" for name, value in r.traces.items())
        + " of n^2 s^2; by theory 0, 1 and 0.72."
    )
    return on_claim("laws.aligned", verdict, rest, "traces")


def _order(r: LawsResult) -> Finding:
    like, printed = r.variances["like"], r.variances_printed["like"]
    verdict = judge(like, above=NEARLY * printed, control="what eq. 6.34 says, less a twentieth")
    rest = (
        f": the variance of tr(A^T B) over (sum a^2)(sum b^2)/n^2 is {like} for spectra in like order and "
        f"{r.variances['reversed']} in reversed order; eq. 6.34 says {printed:.3g} and {r.variances_printed['reversed']:.1g}."
    )
    return on_claim("laws.order", verdict, rest, "laws")
