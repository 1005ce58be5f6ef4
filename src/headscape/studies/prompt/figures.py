"""The pictures of the few-shot study, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import mean_interval, student_interval
from headscape.results import Captions, FigureSpec
from headscape.statistics.thesis import THESIS
from headscape.studies.prompt.maps import MEASURES
from headscape.studies.prompt.result import PromptResult
from headscape.studies.prompt.sweep import ARMS, Sweep
from headscape.studies.work.series import bars, level, line

__all__ = ["figures"]
captions = Captions(__name__)

Array = npt.NDArray[Any]
SHOWN, TOGETHER = 6, 6
"""Layers drawn of a set of maps, and of the whole pass in one figure."""
EDITED = {"random weights": "figure 8.7", "alpha 2": "figure 8.8", "alpha 0.5": "figure 8.9"}
"""Versions whose maps are drawn, and which figure of Wertich (2024) that is."""


def figures(r: PromptResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    few = sorted({round(x) for x in np.linspace(0, r.n_layers - 1, min(SHOWN, r.n_layers)).tolist()})
    found = [
        _clues(r),
        *_word_maps(r, few),
        _with_cosines(r),
        *(_edited(r, name, few) for name in EDITED if name in r.versions),
    ]
    found += [_masses(r), *([_shots(r)] if r.settings["shots"] else [])]
    own = [*_versions(r, "drawn_self"), _level(r, "half", 0.5)]
    found += [captions.lines("self-mass", own, value=_scaling(r))]
    found += [captions.lines("entropy", _versions(r, "entropy"), value=_scaling(r)), _cosines(r)]
    found += [captions.figure("losses", bars({version: r.loss(version) for version in r.versions}))]
    if r.sweep is not None:
        found += _sweep(r, r.sweep)
    chunks = [range(i, min(i + TOGETHER, r.n_layers)) for i in range(0, r.n_layers, TOGETHER)]
    return found + [_all_layers(r, chunk) for chunk in chunks]


def _clues(r: PromptResult) -> FigureSpec:
    rows = [
        {"version": version, "loss": str(r.loss(version))}
        | {f"clue for {word}": r.clues[version][i].strip() or "(nothing)" for i, word in enumerate(r.targets[:3])}
        for version in r.versions
    ]
    return captions.table("clues", pd.DataFrame(rows), shots=r.settings["shots"], THESIS=THESIS, text=r.text)


# --- maps ------------------------------------------------------------------------------------------------------------


def _panel(name: str, values: Array, names: Sequence[str], shots: Sequence[int]) -> dict[str, Any]:
    """A causal map with an empty row and column between shots."""
    gaps = 1 + np.flatnonzero(np.diff(shots))
    lower = np.where(np.tri(len(values), dtype=bool), values, np.nan)
    apart = np.insert(np.insert(lower, gaps, np.nan, axis=0), gaps, np.nan, axis=1)
    tokens = np.insert(np.array(names, dtype=object), gaps, "").tolist()
    return {"name": name, "values": apart, "query_tokens": tokens, "key_tokens": tokens}


def _maps(
    entry: str, r: PromptResult, maps: Array, layers: Sequence[int], by: str = "word", **given: Any
) -> FigureSpec:
    names, shots = (r.words, r.word_shots) if by == "word" else (r.tokens, r.token_shots)
    high = float(max(np.nanmax(one) for one in r.word_maps.values()) if by == "word" else np.nanmax(maps))
    panels = [_panel(f"layer {n}", maps[n], names, shots) | {"high": high} for n in layers]
    alt = f"{by.capitalize()}-level attention maps of {len(layers)} layers."
    return captions.figure(entry, {"panels": panels}, alt=alt, **given)


def _word_maps(r: PromptResult, layers: Sequence[int]) -> list[FigureSpec]:
    words = _maps("word-maps", r, r.word_maps["trained"], layers, value=r.targets[0])
    tokens = _maps("token-maps", r, r.token_maps, layers, value=r.targets[0], by="token")
    weighted = _maps("weighted-maps", r, r.weighted_words, layers)
    return [words, tokens, weighted]


def _all_layers(r: PromptResult, layers: Sequence[int]) -> FigureSpec:
    which = f" {layers[0]}" if len(layers) == 1 else f"s {layers[0]} to {layers[-1]}"
    return _maps("words", r, r.word_maps["trained"], layers, value=layers[0], which=which)


def _edited(r: PromptResult, name: str, layers: Sequence[int]) -> FigureSpec:
    words = {"replace": name.replace(" ", "-"), "name": name, "value": r.clues[name][0].strip() or "(nothing)"}
    return _maps("maps", r, r.word_maps[name], layers, paper=EDITED[name], **words)


def _with_cosines(r: PromptResult) -> FigureSpec:
    maps = {f"attention, layer {n}": r.token_maps[n] for n in range(min(3, r.n_layers))}
    high = float(max(np.nanmax(one) for one in maps.values()))
    panels = [_panel("cosine of embeddings", r.token_cosines, r.tokens, r.token_shots)]
    panels += [_panel(name, values, r.tokens, r.token_shots) | {"high": high} for name, values in maps.items()]
    return captions.figure("cosine-maps", {"panels": panels})


def _sweep(r: PromptResult, s: Sweep) -> list[FigureSpec]:
    """Loss, clues, measures and maps by number of examples, and maps by word."""
    arms = {arm: s.loss(arm) for arm in ARMS}
    losses = [line(arm, s.shots, ends) for arm, ends in arms.items() if ends]
    names = {"first": "first token", "drawn_self": "itself", "entropy": "entropy"}
    within, cross = s.measure("within"), s.measure("cross")
    shares = {"same shot": within / np.maximum(within + cross, 1e-300)}
    shares |= {label: s.measure(name) for name, label in names.items()}
    by_shots = [
        line(label, s.shots, [mean_interval(row).within(0, 1) for row in rows]) for label, rows in shares.items()
    ]
    high = max(float(one.max()) for row in s.maps for one in row)

    def panel(name: str, k: int, i: int) -> dict[str, Any]:
        return _panel(name, s.maps[k][i], s.words[k][i], s.word_shots[k][i]) | {"high": high}

    few = [panel(f"{shots} example{'s' * (shots != 1)}", k, 0) for k, shots in enumerate(s.shots)]
    some = min(range(len(s.shots)), key=lambda k: abs(s.shots[k] - r.settings["shots"]))
    words = [panel(word, some, i) for i, word in enumerate(r.targets[:SHOWN])]
    return [
        captions.lines("sweep-loss", losses),
        captions.table("sweep-clues", s.table(r.targets)),
        captions.lines("sweep-measures", by_shots),
        captions.figure("sweep-maps", {"panels": few}, value=r.targets[0], layer=r.n_layers // 2),
        captions.figure("sweep-words", {"panels": words}, value=s.shots[some], layer=r.n_layers // 2),
    ]


# --- measures by layer -----------------------------------------------------------------------------------------------


def _line(name: str, values: Array, dash: str | None = None, least: float = 0.0) -> dict[str, Any]:
    """Mean over prompts by layer, of values (n_prompt, n_layer) from `least` to 1, with its interval."""
    interval = student_interval if least < 0 else mean_interval  # of either sign: a few of one sign suggest no skew
    return line(name, np.arange(values.shape[1]), [interval(column).within(least, 1) for column in values.T], dash)


def _level(r: PromptResult, name: str, value: float) -> dict[str, Any]:
    return level(name, np.arange(r.n_layers), value)


def _masses(r: PromptResult) -> FigureSpec:
    names = {"within": "same shot", "cross": "earlier shots", "first": "first token"}
    names |= {"rest": "instruction and separators", "self": "itself"}
    return captions.lines("masses", [_line(label, r.of("trained", name)) for name, label in names.items()])


def _shots(r: PromptResult) -> FigureSpec:
    series = [_line("trained", r.within_share()), _line("distances alone", r.within_share("distance"))]
    if "random weights" in r.versions:
        series.append(_line("random weights", r.within_share("random weights")))
    return captions.lines("shots", [*series, _line("uniform attention", r.within_share("uniform"), "dot")])


def _versions(r: PromptResult, measure: str) -> list[dict[str, Any]]:
    chosen = [n for n in ("trained", "random weights", "alpha 0.5", "alpha 2") if n in r.versions]
    uniform = float(r.uniform[:, MEASURES.index(measure)].mean())
    return [*(_line(name, r.of(name, measure)) for name in chosen), _level(r, "uniform attention", uniform)]


def _scaling(r: PromptResult) -> str:
    how = " (here: the scores, by alpha^2, since QK-norm undoes it)" if "QK-norm" in r.law_exception else ""
    return f"alpha multiplies the spectra of W_q and W_k in all layers{how}."


def _cosines(r: PromptResult) -> FigureSpec:
    found = {"trained": r.tested("partial"), "without the first token": r.tested("partial_inner")}
    if len(r.cosine) > 1:
        found["random weights"] = r.tested("partial", "random weights")
    series = [_line(name, values, least=-1) for name, values in found.items()]
    return captions.lines("cosines", [*series, _level(r, "no relation", 0.0)])
