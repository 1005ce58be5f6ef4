"""What compression found, in sentences: organized trees against their controls, in maps, in the model, and as a rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.intervals import mean_interval
from headscape.results import Finding
from headscape.studies.compress.result import WAYS, CompressResult
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import Judgement, cannot_tell, judge, of_different, strictest

__all__ = ["findings"]

Array = npt.NDArray[Any]
KEPT = 0.05
"""Share of numbers at which ways are compared, or the nearest that was tried."""
CONTROLS = {"permuted": "that with permuted leaves", "natural": "that in the natural order"}


def findings(r: CompressResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    return [_maps(r), *([] if r.change is None else [_model(r)]), _rate(r)]


def _maps(r: CompressResult) -> Finding:
    errors = {way: r.of(r.error, way, KEPT) for way in WAYS}
    e = {way: mean_interval(values) for way, values in errors.items()}
    rest = f"""
        : with {100 * r.shares[r.nearest(KEPT)]:.3g}% of the numbers, maps rebuilt from the largest Haar coefficients on organized trees are off by
        {e["organized"]} (relative error), in the natural order by {e["natural"].value:.2g}, with permuted leaves by
        {e["permuted"].value:.2g}, from singular values of each head by {e["svd"].value:.2g}, and from the largest supports by
        {e["supports"].value:.2g}.
    """
    return on_claim("compress.maps", _below_controls(r, errors), rest, "map-error")


def _below_controls(r: CompressResult, by_way: Mapping[str, Array]) -> Judgement:
    """Whether organized trees do better than both controls, paired by input."""
    beside = ((mean_interval(by_way["organized"] - by_way[way]), words) for way, words in CONTROLS.items())
    verdict = strictest(*(judge(less, below=0.0, control=f"less {words}") for less, words in beside))
    return of_different(r.error, verdict)


def _model(r: CompressResult) -> Finding:
    assert r.change is not None
    c = {way: np.abs(r.of(r.change, way, KEPT)) for way in ("organized", "natural", "permuted", "svd")}
    means = {way: mean_interval(values) for way, values in c.items()}
    what = {"loss": "nats of loss", "state": "of the final hidden state"}[r.unit]
    rest = f"""
        : with {100 * r.shares[r.nearest(KEPT)]:.3g}% of the numbers the change is {means["organized"]} {what}; in the natural order
        {means["natural"].value:.2g}, with permuted leaves {means["permuted"].value:.2g}, from singular values {means["svd"].value:.2g}.
    """
    return on_claim("compress.model", _below_controls(r, c), rest, "model-change")


def _rate(r: CompressResult) -> Finding:
    if len(r.shares) < 2:
        rest = f": only one share of the numbers was tried, {100 * r.shares[0]:.3g}%, and a fall takes two."
        return on_claim("compress.rate", cannot_tell("one share of the numbers has no rate"), rest, "map-error")
    promised, own = mean_interval(r.exponents), mean_interval(r.rates["supports"])
    verdict = judge(
        mean_interval(r.rates["supports"] - r.exponents), above=0.0, control="less the exponent, paired by input"
    )
    if not promised.low > 0:
        verdict = cannot_tell(
            f"the theorem promises nothing here: the exponent {promised} is not shown to be above 0", own
        )
    others = ", ".join(f"{way} {r.rates[way].mean():.2f}" for way in ("organized", "natural", "permuted", "svd"))
    rest = f"""
        : with the k largest supports kept, the error falls as k^-a with a = {own}. By the theorem a is, up to logarithms,
        the mixed Hölder exponent, which is {promised} in the median head. Kept in the other ways, a is: {others}.
    """
    return on_claim("compress.rate", of_different(r.error, verdict), rest, "map-error")
