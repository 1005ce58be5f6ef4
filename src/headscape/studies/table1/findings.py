"""What table 1 shows, in sentences. The claims are those of Masumura and Taki (2025)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.collapse.bounds import CONDITION
from headscape.intervals import Interval, exactly, jackknife, mean_interval
from headscape.results import Finding
from headscape.studies.table1.result import PRINTED, Table1Result
from headscape.studies.work.sentences import on_claim
from headscape.verdicts import Judgement, judge, strictest

__all__ = ["findings"]

LIKE = 1.0
"""Decades within which a value is of the printed order of magnitude."""
COMPARED = 3
"""Depths at which self-attention is compared: below, the printed values are round-off."""


def findings(r: Table1Result) -> list[Finding]:
    """All findings, in the order in which a reader should meet them."""
    return [_reproduced(r), _work(r), _alone(r), _second_column(r), _bounds(r), _theorem(r)]


def _away(r: Table1Result, setting: str, variant: str, printed: tuple[float, ...]) -> list[Interval]:
    """Decades between the mean residual over seeds and the printed one, by depth."""

    def away(of: npt.NDArray[np.intp], values: npt.NDArray[Any], value: float) -> float:
        return float(np.log10(values[of].mean() / value))

    columns = zip(r.column(setting, variant).T, printed, strict=False)
    return [jackknife(partial(away, values=v, value=p), len(v)) for v, p in columns]


def _as_printed(away: list[Interval]) -> Judgement:
    """Whether the residuals lie within `LIKE` decades of the printed ones at every depth."""
    found = []
    for n, span in enumerate(away, start=1):
        control = f"decades from the printed value at depth {n}"
        found += [judge(span, below=LIKE, control=control), judge(span, above=-LIKE, control=control)]
    return strictest(*found)


def _reproduced(r: Table1Result) -> Finding:
    n = min(COMPARED, r.depth)
    values, printed = r.column(r.names[0], r.variants[0])[:, :n], PRINTED["self-attention"][:n]
    verdict = _as_printed(_away(r, r.names[0], r.variants[0], printed))
    parts = [
        f"{v.mean():.2g} (seeds {v.min():.1g} to {v.max():.1g}; printed {printed[k]:.2g})"
        for k, v in enumerate(values.T)
    ]
    rest = f"""
         ({r.names[0]}): at depth 1 to {n} the relative residual is
        {", ".join(parts)}, mean over {len(values)} seeds of {r.settings["images"]} images. From depth 4 on the printed
        column stays at 1.8e-6, which is round-off; in float64 it keeps falling.
    """
    return on_claim("table1.self_attention", verdict, rest, "table1")


def _work(r: Table1Result) -> Finding:
    texts, verdicts = [], []
    for setting in r.names:
        none, _, skip, both = (r.decades(setting, variant)[:, -1] for variant in r.variants)
        by_skip, by_hidden = abs(skip - none), abs(both - skip)
        control = f"decades of the skip, paired by seed, {setting}"
        verdicts.append(judge(mean_interval(by_hidden - by_skip), above=0.0, control=control))
        moved = mean_interval(by_skip), mean_interval(by_hidden)
        texts.append(
            f"{setting}: the skip moves the residual by {moved[0]} decades, the hidden state beside it by {moved[1]}"
        )
    verdict = strictest(*verdicts)
    differ = " This differs between settings." if len({one.verdict for one in verdicts}) > 1 else ""
    rest = f" (Masumura and Taki 2025 credit the hidden state). At depth {r.depth}, {'; '.join(texts)}.{differ}"
    return on_claim("table1.work", verdict, rest, "cells-0")


def _alone(r: Table1Result) -> Finding:
    depth, parts, verdicts = min(4, r.depth), [], []
    for setting in r.names:
        without, hidden = (r.decades(setting, variant)[:, depth - 1] for variant in r.variants[:2])
        gain, end = mean_interval(hidden - without), r.column(setting, r.variants[1])[:, -1].mean()
        verdicts.append(judge(gain, above=0.0, control=f"a' = 0, paired by seed, {setting}"))
        parts.append(f"{setting}: {gain} decades higher at depth {depth}, and {end:.1g} at depth {r.depth}")
    verdict = strictest(*verdicts)
    return on_claim("table1.slower", verdict, f" ({'; '.join(parts)}).", "cells-0")


def _second_column(r: Table1Result) -> Finding:
    """The printed column must be due to the hidden state: the same skip with a' = 0 must not give it too."""
    printed = PRINTED["MHA"][: r.depth]
    n, (_, hidden, skip, both) = len(printed), r.variants
    away = {(s, v): _away(r, s, v, printed) for s in r.names for v in r.variants}
    off = {place: max(spans, key=lambda span: abs(span.value)) for place, spans in away.items()}
    setting = min(r.names, key=lambda name: abs(off[name, both].value))
    control = off[setting, skip]
    size = control if control.value >= 0 else control.scaled(-1)
    alone = judge(
        size, above=LIKE, control="decades from the printed column, which a' = 0 with the same skip must exceed"
    )
    ends = [f"{r.column(setting, name)[:, n - 1].mean():.2g}" for name in (skip, both)]
    without = min(abs(off[name, hidden].value) for name in r.names)
    rest = f"""
        : the printed column ({printed[0]:.2g} to {printed[-1]:.2g}) is nearest to '{setting}, {both}', off by at most
        {abs(off[setting, both].value):.2f} decades, and there a' = 0 is off by {abs(control.value):.2f}: at depth {n} the
        residual is {ends[1]} with the hidden state and {ends[0]} without it. Without a skip the hidden state is off by up to
        {without:.0f} decades.
    """
    return on_claim("table1.mha", strictest(_as_printed(away[setting, both]), alone), rest, "cells-1")


def _bounds(r: Table1Result) -> Finding:
    real = r.bounds[r.bounds["measured"] > r.bounds["floor"]]
    met = real[real["spread"] <= CONDITION]
    broken = int((~met["keeps_repaired"]).sum() + (~real["keeps_anywhere"]).sum())
    times = {name: (part[name] / part["measured"]).median() for name, part in (("repaired", met), ("printed", real))}
    text = f"""
        The repaired bound {"holds" if broken == 0 else "is violated"}: it is exceeded in {broken} of the {len(real)} layers
        above round-off (first image and seed, all variants) and, where D is at most {CONDITION:.3f} ({len(met)} layers), is
        {times["repaired"]:.2g} times the measured value at the median. The printed one is {times["printed"]:.1g} times the
        measured value and is exceeded in {int((~real["keeps_printed"]).sum())}.
    """
    verdict = judge(exactly(broken, len(real)), below=1.0, control="violations beyond round-off")
    return Finding(text, "bounds-0", verdict, "table1.bounds")


def _theorem(r: Table1Result) -> Finding:
    """Whether Theorem D.3, corrected, shows what happens: its bound must fall below what there was at first."""
    texts, verdicts = [], []
    for variant in r.variants[:2]:
        here, table = r.along[r.along["cell"] == variant], r.theorem(variant)
        last = here[here["depth"] == r.depth]
        verdicts.append(
            judge(
                mean_interval(last["corrected"] - last["first"]),
                below=0.0,
                control=f"decades before the first layer, {variant}",
            )
        )
        seen = table[table["measured"].notna()].iloc[-1]
        texts.append(f"""
            {variant.removeprefix("no skip, ")}: after layer {seen.name} the residual is 10^{seen["measured"]:.1f}, the repaired
            bounds of the layers one after the other allow 10^{seen["repaired"]:.1f}, and the theorem 10^{seen["corrected"]:.0f}
        """)
    rest = f" ({r.names[-1]}, without a skip, means over {r.settings['seeds']} seeds; {'; '.join(' '.join(t.split()) for t in texts)})."
    return on_claim("table1.theorem", strictest(*verdicts), rest, "theorem")
