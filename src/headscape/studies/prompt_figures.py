"""The pictures of the few-shot study, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.results import FigureSpec, bootstrap
from headscape.studies.prompt_maps import MEASURES

if TYPE_CHECKING:
    from headscape.studies.prompt_result import PromptResult

__all__ = ["figures"]

TOGETHER = 6
"""Maps in one picture."""


def figures(r: PromptResult) -> list[FigureSpec]:
    """All figures, in the order in which a reader should meet them."""
    layers = _spread(r.n_layers, TOGETHER)
    few = _spread(r.n_layers, 3)
    found = [_clues(r), _word_maps(r, layers), _token_maps(r, few), _weighted(r, few), _with_cosines(r)]
    found += [_version(r, name, few) for name in ("random weights", "alpha 2", "alpha 0.5") if name in r.versions]
    found += [_masses(r), *([_shots(r)] if r.settings["shots"] else []), _lines_of(r, "self"), _lines_of(r, "entropy")]
    found += [_cosines(r), _losses(r)]
    chunks = [range(i, min(i + TOGETHER, r.n_layers)) for i in range(0, r.n_layers, TOGETHER)]
    return found + [_all_layers(r, chunk) for chunk in chunks]


def _spread(n: int, k: int) -> list[int]:
    """At most k layers from the first to the last."""
    return sorted({round(x) for x in np.linspace(0, n - 1, min(k, n)).tolist()})


def _clues(r: PromptResult) -> FigureSpec:
    columns = ["version", "loss", *(f"clue for {word}" for word in r.targets[:3])]
    rows = [
        [version, str(r.loss(version)), *(clue.strip() or "(nothing)" for clue in r.clues[version][:3])]
        for version in r.versions
    ]
    return FigureSpec(
        "clues",
        f"Clues after {r.settings['shots']} examples",
        "table",
        {"columns": columns, "rows": rows},
        "What each version of the model writes, greedily, and its loss (nats a token, with the interval over prompts) "
        "on the clues of the table. The prompt of the first: " + r.text,
        "One greedy clue is an anecdote; the loss is not.",
        "Table of generated clues by version of the model.",
        paper="table 8.1",
    )


def _panel(name: str, values: Any, names: Sequence[str]) -> dict[str, Any]:
    lower = np.where(np.tri(len(values), dtype=bool), values, np.nan)
    return {"name": name, "values": lower, "query_tokens": list(names), "key_tokens": list(names)}


def _word_maps(r: PromptResult, layers: Sequence[int]) -> FigureSpec:
    maps = r.word_maps["trained"]
    return FigureSpec(
        "word-maps",
        f"Attention between words, {r.targets[0]}",
        "maps",
        {"panels": [_panel(f"layer {n}", maps[n], r.words) for n in layers]},
        "Mean over heads; a word on the left attends to the words below. Weights are summed over the tokens of both "
        "words. Words and clues alone are shown: example by example, then the target and its clue.",
        "What goes to the first token, the instruction and the signs between is left out, and is most of the weight.",
        f"Word-level attention maps of {len(layers)} layers.",
        paper="figure 8.5",
    )


def _all_layers(r: PromptResult, layers: Sequence[int]) -> FigureSpec:
    maps = r.word_maps["trained"]
    which = f"{layers[0]}" if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"
    return FigureSpec(
        f"words-{layers[0]:03d}",
        f"Attention between words, layer{'' if len(layers) == 1 else 's'} {which}",
        "maps",
        {"panels": [_panel(f"layer {n}", maps[n], r.words) for n in layers]},
        "The whole pass, layer by layer; as above.",
        alt=f"Word-level attention maps of layers {which}.",
        paper="figure A.1",
    )


def _token_maps(r: PromptResult, layers: Sequence[int]) -> FigureSpec:
    return FigureSpec(
        "token-maps",
        f"Attention between tokens, {r.targets[0]}",
        "maps",
        {"panels": [_panel(f"layer {n}", r.token_maps[n], r.tokens) for n in layers]},
        "The same before tokens are joined to words.",
        alt=f"Token-level attention maps of {len(layers)} layers.",
        paper="figure 8.4",
    )


def _weighted(r: PromptResult, layers: Sequence[int]) -> FigureSpec:
    return FigureSpec(
        "weighted-maps",
        "Heads weighted by what they add",
        "maps",
        {"panels": [_panel(f"layer {n}", r.weighted_words[n], r.words) for n in layers]},
        "As the maps of words, but heads count by the norm of what they add to a token, behind the output projection: "
        "a head that rests adds little.",
        "Norms say how much is added, not what for.",
        f"Word-level maps of {len(layers)} layers with weighted heads.",
    )


def _with_cosines(r: PromptResult) -> FigureSpec:
    panels = [_panel("cosine of embeddings", r.token_cosines, r.tokens)]
    panels += [_panel(f"attention, layer {n}", r.token_maps[n], r.tokens) for n in range(min(3, r.n_layers))]
    return FigureSpec(
        "cosine-maps",
        "Embedding cosines beside attention",
        "maps",
        {"panels": panels},
        "If angles of embeddings ruled attention, the first map would look like the others.",
        "Equal tokens have cosine 1; the test holds distance fixed.",
        "Map of cosines beside maps of the first layers.",
        paper="figure 8.6",
    )


def _version(r: PromptResult, name: str, layers: Sequence[int]) -> FigureSpec:
    papers = {"random weights": "figure 8.7", "alpha 2": "figure 8.8", "alpha 0.5": "figure 8.9"}
    maps = r.word_maps[name]
    clue = r.clues[name][0].strip()
    return FigureSpec(
        f"maps-{name.replace(' ', '-')}",
        f"Attention between words, {name}",
        "maps",
        {"panels": [_panel(f"layer {n}", maps[n], r.words) for n in layers]},
        f"The same text, shown to this version. It would itself write: {clue or '(nothing)'}",
        alt=f"Word-level attention maps of {len(layers)} layers, {name}.",
        paper=papers[name],
    )


def _line(name: str, values: Any, dash: str | None = None) -> dict[str, Any]:
    """Mean over prompts by layer, with its interval."""
    intervals = [bootstrap(column) for column in np.asarray(values).T]
    line: dict[str, Any] = {"name": name, "x": np.arange(len(intervals)), "y": np.array([i.value for i in intervals])}
    if len(values) > 1:
        line |= {"low": np.array([i.low for i in intervals]), "high": np.array([i.high for i in intervals])}
    return line | ({"dash": dash} if dash else {})


def _masses(r: PromptResult) -> FigureSpec:
    names = {
        "within": "same shot",
        "cross": "earlier shots",
        "first": "first token",
        "rest": "instruction and signs",
        "self": "itself",
    }
    return FigureSpec(
        "masses",
        "Where words and clues attend",
        "lines",
        {"series": [_line(label, r.of("trained", name)) for name, label in names.items()]},
        "Share of the attention of tokens of words and clues (for itself: of all tokens), by layer; 95 % intervals "
        "over prompts.",
        "Parts are of unequal size: compare with even attention in the figure on shots.",
        "Lines of attention shares by layer.",
        x_label="layer",
        y_label="share of attention",
    )


def _shots(r: PromptResult) -> FigureSpec:
    series = [_line("trained", r.within_share()), _line("distances alone", r.within_share("distance"))]
    if "random weights" in r.versions:
        series.append(_line("random weights", r.within_share("random weights")))
    series.append(_line("even attention", r.within_share("uniform"), "dot"))
    return FigureSpec(
        "shots",
        "Within a shot, or across",
        "lines",
        {"series": series},
        "Of the attention that goes to words and clues, the share that stays within the own shot. 'distances alone' "
        "is the same map with content averaged away: what being near would give without any boundary.",
        "A shot is also one sentence: staying within it may be a matter of grammar.",
        "Lines of the share of attention within the own shot, by layer.",
        x_label="layer",
        y_label="share within the shot",
    )


def _lines_of(r: PromptResult, measure: str) -> FigureSpec:
    titles = {"self": "Weight of a token on itself", "entropy": "Entropy of attention"}
    chosen = [n for n in ("trained", "random weights", "alpha 0.5", "alpha 2") if n in r.versions]
    series = [_line(name, r.of(name, measure)) for name in chosen]
    level = float(r.uniform[:, MEASURES.index(measure)].mean())
    series.append(_line("even attention", np.full((1, r.n_layers), level), "dot"))
    return FigureSpec(
        "self-mass" if measure == "self" else "entropy",
        titles[measure],
        "lines",
        {"series": series},
        "Maps averaged over heads, by layer; entropy is over the most a row can have. alpha multiplies the spectra of "
        "W_q and W_k in all layers"
        + (" (here: the scores, by alpha^2, since QK-norm undoes it)." if "QK-norm" in r.law_exception else "."),
        "Averaging heads hides peaks of single ones; their own entropies are in the table.",
        f"Lines of {measure} by layer for the model and its controls.",
        x_label="layer",
        y_label="share of attention" if measure == "self" else "entropy / log(i + 1)",
    )


def _cosines(r: PromptResult) -> FigureSpec:
    series = [_line("trained", r.tested("partial")), _line("without the first token", r.tested("partial_inner"))]
    if len(r.cosine) > 1:
        series.append(_line("random weights", r.tested("partial", "random weights")))
    return FigureSpec(
        "cosines",
        "Do embedding cosines predict attention?",
        "lines",
        {"series": series},
        "Spearman's correlation of attention with the cosine of the tokens' embeddings over all pairs, distance held "
        "fixed; 95 % intervals over prompts.",
        "Equal tokens have the largest cosine, so that heads which look for repetitions count too.",
        "Lines of the partial rank correlation by layer.",
        x_label="layer",
        y_label="partial rank correlation",
    )


def _losses(r: PromptResult) -> FigureSpec:
    intervals = [r.loss(version) for version in r.versions]
    return FigureSpec(
        "losses",
        "Loss on the clues",
        "bars",
        {
            "names": list(r.versions),
            "values": [i.value for i in intervals],
            "low": [i.low for i in intervals],
            "high": [i.high for i in intervals],
        },
        "Nats a token over the clues of the examples and the target's own clue from the table; 95 % intervals over "
        "prompts.",
        "Edits are of all layers at once.",
        "Bars of the loss by version of the model.",
        y_label="nats a token",
    )
