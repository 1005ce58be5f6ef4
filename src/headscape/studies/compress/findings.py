"""What compression found, in sentences: organized trees against their controls, in maps, in the model, and as a rate."""

from __future__ import annotations

import numpy as np

from headscape.intervals import mean_interval
from headscape.results import Finding
from headscape.studies.compress.result import CompressResult
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import cannot_tell, judge, of_different, strictest

__all__ = ["findings"]

KEPT = 0.05
"""Share of numbers at which ways are compared, or the nearest that was tried."""
CONTROLS = {"permuted": "that with permuted leaves", "natural": "that in the natural order"}


def findings(r: CompressResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    return [_maps(r), *([] if r.change is None else [_model(r)]), _rate(r)]


def _maps(r: CompressResult) -> Finding:
    own = r.of(r.error, "organized", KEPT)
    verdict = strictest(
        *(
            judge(mean_interval(own - r.of(r.error, way, KEPT)), below=0.0, control=f"less {words}")
            for way, words in CONTROLS.items()
        )
    )
    e = {
        way: mean_interval(r.of(r.error, way, KEPT)) for way in ("organized", "natural", "permuted", "svd", "supports")
    }
    rest = f"""
        : with {100 * r.shares[r.nearest(KEPT)]:.3g}% of the numbers, maps rebuilt from the largest Haar coefficients on organized trees are off by
        {e["organized"]} (relative error), in the natural order by {e["natural"].value:.2g}, with permuted leaves by
        {e["permuted"].value:.2g}, from singular values of each head by {e["svd"].value:.2g}, and from the largest supports by
        {e["supports"].value:.2g}.
    """
    return on_claim("compress.maps", of_different(r.error, verdict), rest, "map-error")


def _model(r: CompressResult) -> Finding:
    assert r.change is not None
    c = {way: np.abs(r.of(r.change, way, KEPT)) for way in ("organized", "natural", "permuted", "svd")}
    verdict = strictest(
        *(
            judge(mean_interval(c["organized"] - c[way]), below=0.0, control=f"less {words}")
            for way, words in CONTROLS.items()
        )
    )
    means = {way: mean_interval(values) for way, values in c.items()}
    what = {"loss": "nats of loss", "state": "of the final hidden state"}[r.unit]
    rest = f"""
        : with {100 * r.shares[r.nearest(KEPT)]:.3g}% of the numbers the change is {means["organized"]} {what}; in the natural order
        {means["natural"].value:.2g}, with permuted leaves {means["permuted"].value:.2g}, from singular values {means["svd"].value:.2g}.
    """
    return on_claim("compress.model", of_different(r.error, verdict), rest, "model-change")


def _rate(r: CompressResult) -> Finding:
    if len(r.shares) < 2:
        rest = f": only one share of the numbers was tried, {100 * r.shares[0]:.3g}%, and a fall takes two."
        return on_claim("compress.rate", cannot_tell("one share of the numbers has no rate"), rest, "map-error")
    promised, own = mean_interval(r.exponents), mean_interval(r.rates["supports"])
    verdict = judge(
        mean_interval(r.rates["supports"] - r.exponents), above=0.0, control="less the exponent, paired by input"
    )
    if not promised.low > 0:
        verdict = cannot_tell(f"nothing is promised: the exponent {promised} is not above 0", own)
    others = ", ".join(f"{way} {r.rates[way].mean():.2f}" for way in ("organized", "natural", "permuted", "svd"))
    rest = f"""
        : with the k largest supports the error falls as k^-a with a = {own}; the median head's mixed Hoelder exponent,
        which promises that a up to logarithms, is {promised}. The other rates are {others}.
    """
    return on_claim("compress.rate", of_different(r.error, verdict), rest, "map-error")
