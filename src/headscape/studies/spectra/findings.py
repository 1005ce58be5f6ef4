"""What the spectra study found, in sentences: claims of the thesis (Wertich, 2024) about W_q, W_k and W_v, and alignment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.stats import binom

from headscape.intervals import exactly, mean_interval
from headscape.results import Finding
from headscape.statistics.alignment import BEYOND, LEADING
from headscape.studies.spectra.result import KIND_NAMES, Side, SpectraResult
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import Judgement, cannot_tell, judge, strictest

__all__ = ["findings"]

SURE = 0.99
"""How often random rotations give at most the number of heads that counts as chance."""


def findings(r: SpectraResult) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    found = [_sparser(r), _pressed(r), _above_noise(r), _outliers(r), _aligned(r), *_shared(r), _symmetric(r)]
    found += [_rounding(r)] if r.quantized else []
    return found + [Finding(note) for note in r.notes[:3]]


def _less_than_values(r: SpectraResult, column: str, log: bool = False) -> Judgement:
    """Whether W_q and W_k both have less of something than W_v, layer by layer, beyond what they had before training."""
    found = []
    for kind in ("q", "k"):
        before = r.difference(kind, "v", column, log, initial=True) if r.has_initial else 0.0
        found.append(judge(mean_interval(r.difference(kind, "v", column, log) - before), below=0.0))
    worst = strictest(*found)
    if worst.verdict == "holds" and not r.has_initial:
        return cannot_tell(
            "control missing: the weights before training, which random weights stand for", worst.statistic
        )
    what = f"difference to W_v by layer{', minus that before training' if r.has_initial else ''}"
    return replace(worst, why=f"{what}: " + "; ".join(f"W_{k} {j.why}" for k, j in zip("qk", found, strict=True)))


def _means(r: SpectraResult, column: str) -> str:
    """Means of queries, keys and values over layers, beside those at initialization."""
    own = ", ".join(f"W_{kind} {r.mean(kind, column)}" for kind in "qkv")
    first = [f"{r.mean(kind, column, initial=True).value:.2g}" for kind in "qkv"] if r.has_initial else []
    return own + (f"; at initialization {', '.join(first)}" if first else "")


def _sparser(r: SpectraResult) -> Finding:
    verdict = _less_than_values(r, "evenness")
    gaps = ", ".join(f"W_{kind} - W_v {mean_interval(r.difference(kind, 'v', 'evenness'))}" for kind in "qk")
    measure = "Evenness (1 is noise, lower means that fewer directions carry the matrix)"
    rest = f". {measure}: {_means(r, 'evenness')}. Paired by layer: {gaps}."
    return on_claim("spectra.sparser", verdict, rest, "evenness")


def _pressed(r: SpectraResult) -> Finding:
    verdict = _less_than_values(r, "energy", log=True)
    ratios = [float(np.exp(r.difference(kind, "v", "energy", log=True).mean())) for kind in "qk"]
    rest = f"""
         relative to W_v. Energy over that of Xavier's initialization: {_means(r, "energy")}; Wertich (2024) found a tenth to a
        twentieth for W_q and W_k, and W_v unchanged. Per layer W_q has {ratios[0]:.2f} times the energy of W_v, W_k {ratios[1]:.2f} times
        (geometric means).
    """
    return on_claim("spectra.energy", verdict, rest, "energy")


def _above_noise(r: SpectraResult) -> Finding:
    own, xavier = (", ".join(f"W_{kind} {r.above_noise(kind, x):.0%}" for kind in "qkv") for x in (False, True))
    text = f"""
        How much of the weights exceeds noise: the share of singular values above those of noise of the same shape and
        energy, rank by rank, is {own}; above noise of Xavier's variance (the measure of Wertich, 2024, who found about 10 %) {xavier}.
    """
    return Finding(text, "against-noise")


def _outliers(r: SpectraResult) -> Finding:
    def listed(side: Side) -> str:
        shares = {
            shape: [s for kind in kinds if (s := _share(r, kind, side))] for shape, kinds in r.like_shapes.items()
        }
        return "; ".join(f"{shape}: {', '.join(found)}" for shape, found in shares.items() if found) or "none"

    text = (
        "How far the spectra leave the law of noise: shares of singular values outside the law of Marchenko and Pastur "
        "for the variance and shape of their matrix, by shape"
        f"{' (at initialization in brackets)' if r.has_initial else ''}. Above its upper edge: {listed('above')}. "
        f"Below its lower edge, which square matrices do not have: {listed('below')}. Only matrices of one shape "
        "compare; 1 % of noise matrices have one such value per side."
    )
    return Finding(text, "outside")


def _rounding(r: SpectraResult) -> Finding:
    """What 4-bit weights cannot show."""
    below = ", ".join(f"{KIND_NAMES[kind]} {r.below_rounding(kind):.0%}" for kind in r.kinds)
    text = f"""
        The smallest singular values are rounding: the weights were stored as {r.quantized}, and rounding makes
        {r.matrices["rounding"].median():.1%} of the energy of a matrix (median). The shares of values below the largest singular value
        of that rounding alone are {below}.
    """
    return Finding(text, "against-noise")


def _share(r: SpectraResult, kind: str, side: Side) -> str:
    share = r.share_outside(kind, side)
    first = f" ({r.share_outside(kind, side, initial=True):.1%})" if r.has_initial else ""
    return "" if share != share else f"{KIND_NAMES[kind]} {share:.1%}{first}"


def _beyond(z: pd.Series[float]) -> int:
    return int((z.abs() > BEYOND).sum())


def _aligned(r: SpectraResult) -> Finding:
    z, n = r.heads["z"], len(r.heads)
    chance = float(r.heads["by_chance"].mean())
    most, first = float(binom.ppf(SURE, n, chance)), 0 if r.initial_heads is None else _beyond(r.initial_heads["z"])
    control = f"the most that random rotations make in {SURE:.0%} of cases" if most >= first else "before training"
    verdict = judge(exactly(_beyond(z), n), above=max(most, first), control=control)
    controls = [f"by chance (random rotations) {n * chance:.1f} heads would"]
    controls += [f"at initialization {_beyond(r.initial_heads['z'])} do"] if r.initial_heads is not None else []
    controls += [f"with the keys of another group {_beyond(r.heads['z_other'])} do"] * bool(
        r.heads["z_other"].notna().any()
    )
    rest = f"""
        : {_beyond(z)} of {n} heads have a base alignment |z| > {BEYOND:g} ({int((z > BEYOND).sum())} align,
        {int((z < -BEYOND).sum())} oppose queries and keys); {", ".join(controls)}. The spread of z is {z.std(ddof=0):.1f}, 1 for
        random matrices.{" With rotary positions this is the alignment at offset 0." if r.rotary else ""}
    """
    return on_claim("spectra.alignment", verdict, rest, "alignment")


def _shared(r: SpectraResult) -> list[Finding]:
    """Whether the leading singular vectors of W_q are those of W_k, layer by layer, beside keys of another head."""
    if "shared" not in r.heads:
        return []
    by_layer = r.heads.groupby(["block", "layer"])[["shared", "shared_other"]].mean()
    more = by_layer["shared"] - by_layer["shared_other"]
    own, other = (mean_interval(by_layer[name]) for name in ("shared", "shared_other"))
    alone = not r.heads["shared_other"].notna().any()
    verdict = judge(mean_interval(more), above=0.0, control="keys of another group")
    verdict = cannot_tell("all heads of a layer share their keys: there are no others", own) if alone else verdict
    chance = LEADING / float(r.of_kind("q")["columns"].iloc[0])
    first = ""
    if r.initial_heads is not None and "shared" in r.initial_heads:
        first = f", at initialization {r.initial_heads['shared'].mean():.3g}"
        before = r.initial_heads.groupby(["block", "layer"])[["shared", "shared_other"]].mean()
        beyond = mean_interval(more - (before["shared"] - before["shared_other"]))
        verdict = (
            verdict if alone else strictest(judge(beyond, above=0.0, control="less that before training"), verdict)
        )
    others = "" if alone else f", with the keys of another group by {other}"
    rest = f"""
        : the {LEADING} leading input directions of W_q and of W_k of a head overlap by {own}{others}; unrelated ones by
        {chance:.3g}{first}. Here n counts layers.
    """
    return [on_claim("spectra.directions", verdict, rest, "shared")]


def _symmetric(r: SpectraResult) -> Finding:
    own, first = (
        None if heads is None else mean_interval(heads.groupby(["block", "layer"])["symmetric"].mean())
        for heads in (r.heads, r.initial_heads)
    )
    share = r.heads["symmetric"]
    text = f"""
        How symmetric the scores are: the symmetric part of W_q^T W_k holds {own} of its energy, mean over
        layers{f" (at initialization {first})" if first else ""}; unrelated matrices have 0.5.
        {int((share > 0.6).sum())} heads have more than 0.6, {int((share < 0.4).sum())} less than 0.4.
    """
    return Finding(text, "symmetric")
