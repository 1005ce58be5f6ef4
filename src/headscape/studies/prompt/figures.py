"""The pictures of the few-shot study, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import mean_interval
from headscape.results import FigureSpec, table_figure
from headscape.statistics.thesis import THESIS
from headscape.studies.prompt.maps import MEASURES
from headscape.studies.work.series import level, line

if TYPE_CHECKING:
    from headscape.studies.prompt.result import PromptResult

__all__ = ["figures"]

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
    found += [_masses(r), *([_shots(r)] if r.settings["shots"] else []), _self(r), _entropy(r), _cosines(r), _losses(r)]
    chunks = [range(i, min(i + TOGETHER, r.n_layers)) for i in range(0, r.n_layers, TOGETHER)]
    return found + [_all_layers(r, chunk) for chunk in chunks]


def _clues(r: PromptResult) -> FigureSpec:
    rows = [
        {"version": version, "loss": str(r.loss(version))}
        | {f"clue for {word}": r.clues[version][i].strip() or "(nothing)" for i, word in enumerate(r.targets[:3])}
        for version in r.versions
    ]
    return table_figure(
        pd.DataFrame(rows),
        id="clues",
        title=f"Clues after {r.settings['shots']} examples",
        read="What each version of the model writes, greedily, and its loss (nats per token, with the interval over prompts) on the clues of the "
        f"table. The experiments are those of {THESIS}, chapter 8. The prompt of the first: {r.text}",
        caveat="One greedy clue is an anecdote; the loss is not.",
        alt="Table of generated clues by version of the model.",
        paper="table 8.1",
    )


# --- maps ------------------------------------------------------------------------------------------------------------


def _panel(name: str, values: Array, names: Sequence[str], shots: Sequence[int]) -> dict[str, Any]:
    """A causal map with an empty row and column between shots."""
    gaps = 1 + np.flatnonzero(np.diff(shots))
    lower = np.where(np.tri(len(values), dtype=bool), values, np.nan)
    apart = np.insert(np.insert(lower, gaps, np.nan, axis=0), gaps, np.nan, axis=1)
    tokens = np.insert(np.array(names, dtype=object), gaps, "").tolist()
    return {"name": name, "values": apart, "query_tokens": tokens, "key_tokens": tokens}


def _maps(r: PromptResult, id: str, maps: Array, layers: Sequence[int], by: str = "word", **texts: Any) -> FigureSpec:
    names, shots = (r.words, r.word_shots) if by == "word" else (r.tokens, r.token_shots)
    high = float(max(np.nanmax(one) for one in r.word_maps.values()) if by == "word" else np.nanmax(maps))
    panels = [_panel(f"layer {n}", maps[n], names, shots) | {"high": high} for n in layers]
    alt = f"{by.capitalize()}-level attention maps of {len(layers)} layers."
    return FigureSpec(id=id, kind="maps", data={"panels": panels}, alt=alt, **texts)


def _word_maps(r: PromptResult, layers: Sequence[int]) -> list[FigureSpec]:
    words = _maps(
        r,
        "word-maps",
        r.word_maps["trained"],
        layers,
        title=f"Attention between words, {r.targets[0]}",
        read="Mean over heads; a word on the left attends to the words below. Weights are summed over the tokens of both words. Only words and clues "
        "are shown: example by example, with a gap between, then the target and its clue.",
        caveat="What goes to the first token, the instruction and the separators is left out, and is most of the weight. All maps share one scale.",
        paper="figure 8.5",
    )
    tokens = _maps(
        r,
        "token-maps",
        r.token_maps,
        layers,
        by="token",
        title=f"Attention between tokens, {r.targets[0]}",
        read="The same before tokens are joined to words.",
        paper="figure 8.4",
    )
    weighted = _maps(
        r,
        "weighted-maps",
        r.weighted_words,
        layers,
        title="Heads weighted by what they add",
        read="As the maps of words, but heads count by the norm of what they add to a token, after the output projection: a head that rests on the "
        "first token adds little.",
        caveat="Norms say how much is added, not what for.",
    )
    return [words, tokens, weighted]


def _all_layers(r: PromptResult, layers: Sequence[int]) -> FigureSpec:
    which = f" {layers[0]}" if len(layers) == 1 else f"s {layers[0]} to {layers[-1]}"
    return _maps(
        r,
        f"words-{layers[0]:03d}",
        r.word_maps["trained"],
        layers,
        title=f"Attention between words, layer{which}",
        read="The whole pass, layer by layer; as above.",
        paper="figure A.1",
    )


def _edited(r: PromptResult, name: str, layers: Sequence[int]) -> FigureSpec:
    return _maps(
        r,
        f"maps-{name.replace(' ', '-')}",
        r.word_maps[name],
        layers,
        title=f"Attention between words, {name}",
        read=f"The same text, shown to this version. It would itself write: {r.clues[name][0].strip() or '(nothing)'}",
        paper=EDITED[name],
    )


def _with_cosines(r: PromptResult) -> FigureSpec:
    maps = {"cosine of embeddings": r.token_cosines}
    maps |= {f"attention, layer {n}": r.token_maps[n] for n in range(min(3, r.n_layers))}
    return FigureSpec(
        id="cosine-maps",
        title="Embedding cosines beside attention",
        kind="maps",
        data={"panels": [_panel(name, values, r.tokens, r.token_shots) for name, values in maps.items()]},
        read="If angles of embeddings determined attention, the first map would look like the others.",
        caveat="Equal tokens have cosine 1; the test holds distance fixed.",
        alt="Map of cosines beside maps of the first layers.",
        paper="figure 8.6",
    )


# --- measures by layer -----------------------------------------------------------------------------------------------


def _line(name: str, values: Array, dash: str | None = None) -> dict[str, Any]:
    """Mean over prompts by layer, of values (n_prompt, n_layer), with its interval."""
    return line(name, np.arange(values.shape[1]), [mean_interval(column) for column in values.T], dash)


def _lines(id: str, series: Sequence[dict[str, Any]], **texts: Any) -> FigureSpec:
    return FigureSpec(id=id, kind="lines", data={"series": list(series)}, x_label="layer", **texts)


def _level(r: PromptResult, name: str, value: float) -> dict[str, Any]:
    return level(name, np.arange(r.n_layers), value)


def _masses(r: PromptResult) -> FigureSpec:
    names = {
        "within": "same shot",
        "cross": "earlier shots",
        "first": "first token",
        "rest": "instruction and separators",
    }
    names["self"] = "itself"
    return _lines(
        "masses",
        [_line(label, r.of("trained", name)) for name, label in names.items()],
        title="Where words and clues attend",
        read="Share of the attention of tokens of words and clues (for itself: of all tokens), by layer; 95 % intervals over prompts.",
        caveat="Parts are of unequal size: compare with uniform attention in the figure on shots.",
        alt="Lines of attention shares by layer.",
        y_label="share of attention",
    )


def _shots(r: PromptResult) -> FigureSpec:
    series = [_line("trained", r.within_share()), _line("distances alone", r.within_share("distance"))]
    if "random weights" in r.versions:
        series.append(_line("random weights", r.within_share("random weights")))
    return _lines(
        "shots",
        [*series, _line("uniform attention", r.within_share("uniform"), "dot")],
        title="Within a shot, or across",
        read="Of the attention on words and clues, the share that stays within the own shot. 'distances alone' is the same map with content "
        "averaged out: what being near would give without any boundary.",
        caveat="A shot is also one sentence: staying within it may be a matter of grammar.",
        alt="Lines of the share of attention within the own shot, by layer.",
        y_label="share within the shot",
    )


def _versions(r: PromptResult, measure: str) -> list[dict[str, Any]]:
    chosen = [n for n in ("trained", "random weights", "alpha 0.5", "alpha 2") if n in r.versions]
    uniform = float(r.uniform[:, MEASURES.index(measure)].mean())
    return [*(_line(name, r.of(name, measure)) for name in chosen), _level(r, "uniform attention", uniform)]


def _scaling(r: PromptResult) -> str:
    how = " (here: the scores, by alpha^2, since QK-norm undoes it)" if "QK-norm" in r.law_exception else ""
    return f"alpha multiplies the spectra of W_q and W_k in all layers{how}."


def _self(r: PromptResult) -> FigureSpec:
    return _lines(
        "self-mass",
        [*_versions(r, "drawn_self"), _level(r, "half", 0.5)],
        title="Weight of a word on itself",
        read="Of what a word gives to words and clues, the share on the word itself: the diagonal of the maps that are drawn. Maps averaged "
        f"over heads, by layer. {_scaling(r)}",
        caveat="Most attention goes elsewhere: the share of all attention is 'itself' in the figure above.",
        alt="Lines of the share of words on themselves by layer for the model and its controls, with one half as reference.",
        y_label="share of what is drawn",
    )


def _entropy(r: PromptResult) -> FigureSpec:
    return _lines(
        "entropy",
        _versions(r, "entropy"),
        title="Entropy of attention",
        read=f"Of maps averaged over heads, by layer, relative to the maximum of a row. {_scaling(r)}",
        caveat="Averaging heads hides peaks of single ones; their own entropies are in the table.",
        alt="Lines of entropy by layer for the model and its controls.",
        y_label="entropy / log(i + 1)",
    )


def _cosines(r: PromptResult) -> FigureSpec:
    series = [_line("trained", r.tested("partial")), _line("without the first token", r.tested("partial_inner"))]
    if len(r.cosine) > 1:
        series.append(_line("random weights", r.tested("partial", "random weights")))
    return _lines(
        "cosines",
        [*series, _level(r, "no relation", 0.0)],
        title="Do embedding cosines predict attention?",
        read="Spearman's correlation of attention with the cosine of the tokens' embeddings over all pairs, distance held fixed; 95 % intervals over "
        "prompts.",
        caveat="Equal tokens have the largest cosine, so that heads which look for repetitions count too.",
        alt="Lines of the partial rank correlation by layer.",
        y_label="partial rank correlation",
    )


def _losses(r: PromptResult) -> FigureSpec:
    ends = [r.loss(version) for version in r.versions]
    intervals = {"values": [e.value for e in ends], "low": [e.low for e in ends], "high": [e.high for e in ends]}
    return FigureSpec(
        id="losses",
        title="Loss on the clues",
        kind="bars",
        data={"names": list(r.versions), **intervals},
        read="Nats per token over the clues of the examples and the target's own clue from the table; 95 % intervals over prompts.",
        caveat="Edits are of all layers at once.",
        alt="Bars of the loss by version of the model.",
        y_label="nats per token",
    )
