"""The pictures of the few-shot study, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.results import FigureSpec, bootstrap
from headscape.studies.prompt.maps import MEASURES

if TYPE_CHECKING:
    from headscape.studies.prompt.result import PromptResult

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
        id="clues",
        title=f"Clues after {r.settings['shots']} examples",
        kind="table",
        data={"columns": columns, "rows": rows},
        read="What each version of the model writes, greedily, and its loss (nats a token, with the interval over prompts) "
        "on the clues of the table. The prompt of the first: " + r.text,
        caveat="One greedy clue is an anecdote; the loss is not.",
        alt="Table of generated clues by version of the model.",
        paper="table 8.1",
    )


def _panel(name: str, values: Any, names: Sequence[str]) -> dict[str, Any]:
    lower = np.where(np.tri(len(values), dtype=bool), values, np.nan)
    return {"name": name, "values": lower, "query_tokens": list(names), "key_tokens": list(names)}


def _word_maps(r: PromptResult, layers: Sequence[int]) -> FigureSpec:
    maps = r.word_maps["trained"]
    return FigureSpec(
        id="word-maps",
        title=f"Attention between words, {r.targets[0]}",
        kind="maps",
        data={"panels": [_panel(f"layer {n}", maps[n], r.words) for n in layers]},
        read="Mean over heads; a word on the left attends to the words below. Weights are summed over the tokens of both "
        "words. Words and clues alone are shown: example by example, then the target and its clue.",
        caveat="What goes to the first token, the instruction and the signs between is left out, and is most of the weight.",
        alt=f"Word-level attention maps of {len(layers)} layers.",
        paper="figure 8.5",
    )


def _all_layers(r: PromptResult, layers: Sequence[int]) -> FigureSpec:
    maps = r.word_maps["trained"]
    which = f"{layers[0]}" if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"
    return FigureSpec(
        id=f"words-{layers[0]:03d}",
        title=f"Attention between words, layer{'' if len(layers) == 1 else 's'} {which}",
        kind="maps",
        data={"panels": [_panel(f"layer {n}", maps[n], r.words) for n in layers]},
        read="The whole pass, layer by layer; as above.",
        alt=f"Word-level attention maps of layers {which}.",
        paper="figure A.1",
    )


def _token_maps(r: PromptResult, layers: Sequence[int]) -> FigureSpec:
    return FigureSpec(
        id="token-maps",
        title=f"Attention between tokens, {r.targets[0]}",
        kind="maps",
        data={"panels": [_panel(f"layer {n}", r.token_maps[n], r.tokens) for n in layers]},
        read="The same before tokens are joined to words.",
        alt=f"Token-level attention maps of {len(layers)} layers.",
        paper="figure 8.4",
    )


def _weighted(r: PromptResult, layers: Sequence[int]) -> FigureSpec:
    return FigureSpec(
        id="weighted-maps",
        title="Heads weighted by what they add",
        kind="maps",
        data={"panels": [_panel(f"layer {n}", r.weighted_words[n], r.words) for n in layers]},
        read="As the maps of words, but heads count by the norm of what they add to a token, behind the output projection: "
        "a head that rests adds little.",
        caveat="Norms say how much is added, not what for.",
        alt=f"Word-level maps of {len(layers)} layers with weighted heads.",
    )


def _with_cosines(r: PromptResult) -> FigureSpec:
    panels = [_panel("cosine of embeddings", r.token_cosines, r.tokens)]
    panels += [_panel(f"attention, layer {n}", r.token_maps[n], r.tokens) for n in range(min(3, r.n_layers))]
    return FigureSpec(
        id="cosine-maps",
        title="Embedding cosines beside attention",
        kind="maps",
        data={"panels": panels},
        read="If angles of embeddings ruled attention, the first map would look like the others.",
        caveat="Equal tokens have cosine 1; the test holds distance fixed.",
        alt="Map of cosines beside maps of the first layers.",
        paper="figure 8.6",
    )


def _version(r: PromptResult, name: str, layers: Sequence[int]) -> FigureSpec:
    papers = {"random weights": "figure 8.7", "alpha 2": "figure 8.8", "alpha 0.5": "figure 8.9"}
    maps = r.word_maps[name]
    clue = r.clues[name][0].strip()
    return FigureSpec(
        id=f"maps-{name.replace(' ', '-')}",
        title=f"Attention between words, {name}",
        kind="maps",
        data={"panels": [_panel(f"layer {n}", maps[n], r.words) for n in layers]},
        read=f"The same text, shown to this version. It would itself write: {clue or '(nothing)'}",
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
        id="masses",
        title="Where words and clues attend",
        kind="lines",
        data={"series": [_line(label, r.of("trained", name)) for name, label in names.items()]},
        read="Share of the attention of tokens of words and clues (for itself: of all tokens), by layer; 95 % intervals "
        "over prompts.",
        caveat="Parts are of unequal size: compare with even attention in the figure on shots.",
        alt="Lines of attention shares by layer.",
        x_label="layer",
        y_label="share of attention",
    )


def _shots(r: PromptResult) -> FigureSpec:
    series = [_line("trained", r.within_share()), _line("distances alone", r.within_share("distance"))]
    if "random weights" in r.versions:
        series.append(_line("random weights", r.within_share("random weights")))
    series.append(_line("even attention", r.within_share("uniform"), "dot"))
    return FigureSpec(
        id="shots",
        title="Within a shot, or across",
        kind="lines",
        data={"series": series},
        read="Of the attention that goes to words and clues, the share that stays within the own shot. 'distances alone' "
        "is the same map with content averaged away: what being near would give without any boundary.",
        caveat="A shot is also one sentence: staying within it may be a matter of grammar.",
        alt="Lines of the share of attention within the own shot, by layer.",
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
        id="self-mass" if measure == "self" else "entropy",
        title=titles[measure],
        kind="lines",
        data={"series": series},
        read="Maps averaged over heads, by layer; entropy is over the most a row can have. alpha multiplies the spectra of "
        "W_q and W_k in all layers"
        + (" (here: the scores, by alpha^2, since QK-norm undoes it)." if "QK-norm" in r.law_exception else "."),
        caveat="Averaging heads hides peaks of single ones; their own entropies are in the table.",
        alt=f"Lines of {measure} by layer for the model and its controls.",
        x_label="layer",
        y_label="share of attention" if measure == "self" else "entropy / log(i + 1)",
    )


def _cosines(r: PromptResult) -> FigureSpec:
    series = [_line("trained", r.tested("partial")), _line("without the first token", r.tested("partial_inner"))]
    if len(r.cosine) > 1:
        series.append(_line("random weights", r.tested("partial", "random weights")))
    return FigureSpec(
        id="cosines",
        title="Do embedding cosines predict attention?",
        kind="lines",
        data={"series": series},
        read="Spearman's correlation of attention with the cosine of the tokens' embeddings over all pairs, distance held "
        "fixed; 95 % intervals over prompts.",
        caveat="Equal tokens have the largest cosine, so that heads which look for repetitions count too.",
        alt="Lines of the partial rank correlation by layer.",
        x_label="layer",
        y_label="partial rank correlation",
    )


def _losses(r: PromptResult) -> FigureSpec:
    intervals = [r.loss(version) for version in r.versions]
    return FigureSpec(
        id="losses",
        title="Loss on the clues",
        kind="bars",
        data={
            "names": list(r.versions),
            "values": [i.value for i in intervals],
            "low": [i.low for i in intervals],
            "high": [i.high for i in intervals],
        },
        read="Nats a token over the clues of the examples and the target's own clue from the table; 95 % intervals over "
        "prompts.",
        caveat="Edits are of all layers at once.",
        alt="Bars of the loss by version of the model.",
        y_label="nats a token",
    )
