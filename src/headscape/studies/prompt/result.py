"""What the few-shot study found: clues, and maps of attention with their measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval, mean_interval
from headscape.studies.prompt.maps import MEASURES
from headscape.studies.prompt.sweep import Sweep
from headscape.studies.work.result import StudyResult

__all__ = ["COSINES", "PromptResult"]

Array = npt.NDArray[Any]
COSINES = ("rho", "partial", "p", "rho_inner", "partial_inner", "p_inner")
"""Columns of the test of cosines: over all pairs, and without the first token."""


@dataclass(frozen=True, eq=False)
class PromptResult(StudyResult):
    """Attention in few-shot prompts, for a model and edited versions of it.

    measures is (n_version, n_prompt, n_layer, n_measure) by `maps.MEASURES`, of maps averaged over heads; weighted
    (n_prompt, n_layer, n_measure) the same of the trained model with heads weighted by the size of what they add;
    uniform (n_prompt, n_measure) and distance (n_prompt, n_layer, n_measure) are baselines. losses is (n_version,
    n_prompt), nats per token of the clues. cosine is (n_tested, n_prompt, n_layer, 6) by `COSINES`, trained first, then
    random weights. All versions are shown the same text: the prompt and the clue of the trained model. Maps are those
    of the first prompt, words and clues alone: token_maps (n_layer, n_token, n_token), word_maps {version: (n_layer,
    n_word, n_word)} summed over both words' tokens; token_shots and word_shots say which shot each belongs to.
    law_error says how far scores are from alpha^2, law_exception why. sweep is what other numbers of examples give.
    """

    study: ClassVar[str] = "prompt"
    title: ClassVar[str] = "Attention in a few-shot prompt"

    versions: Sequence[str]
    targets: Sequence[str]
    clues: Mapping[str, Sequence[str]]
    measures: Array
    losses: Array
    weighted: Array
    uniform: Array
    distance: Array
    cosine: Array
    token_maps: Array
    token_cosines: Array
    word_maps: Mapping[str, Array]
    weighted_words: Array
    tokens: Sequence[str]
    words: Sequence[str]
    token_shots: Sequence[int]
    word_shots: Sequence[int]
    text: str
    law_error: float
    law_exception: str
    settings: Mapping[str, Any]
    sweep: Sweep | None = None

    @property
    def n_layers(self) -> int:
        """Attention layers of the model."""
        return int(self.measures.shape[2])

    def of(self, version: str, measure: str) -> Array:
        """A measure of a version, (n_prompt, n_layer)."""
        return np.asarray(self.measures[self.versions.index(version), :, :, MEASURES.index(measure)])

    def mean(self, version: str, measure: str) -> Interval:
        """Mean over layers, with its interval over prompts; all measures lie between 0 and 1."""
        return mean_interval(self.of(version, measure).mean(axis=1)).within(0, 1)

    def loss(self, version: str) -> Interval:
        """Loss over the clues, with its interval over prompts."""
        return mean_interval(self.losses[self.versions.index(version)])

    def change(self, version: str, measure: str | None = None) -> Interval:
        """Change against the trained model, of a measure or of the loss, paired by prompt."""
        if measure is None:
            return mean_interval(self.losses[self.versions.index(version)] - self.losses[0])
        return mean_interval((self.of(version, measure) - self.of("trained", measure)).mean(axis=1))

    def tested(self, column: str, version: str = "trained") -> Array:
        """A column of the test of cosines, (n_prompt, n_layer)."""
        return np.asarray(self.cosine[int(version == "random weights"), :, :, COSINES.index(column)])

    def within_share(self, source: str = "trained") -> Array:
        """Of the weight on words and clues of shots, the share within the own shot: (n_prompt, n_layer).

        The source is a version, or a baseline: "distance" or "uniform".
        """
        tables = {"distance": self.distance, "uniform": np.repeat(self.uniform[:, None], self.n_layers, axis=1)}
        table = tables[source] if source in tables else self.measures[self.versions.index(source)]
        within, cross = table[..., MEASURES.index("within")], table[..., MEASURES.index("cross")]
        total = within + cross
        return np.asarray(np.divide(within, total, out=np.full(within.shape, np.nan), where=total > 0))

    def to_frame(self) -> pd.DataFrame:
        """One row per version and layer: means over prompts."""
        means = self.measures.mean(axis=1)
        rows = []
        for v, version in enumerate(self.versions):
            for layer in range(self.n_layers):
                row: dict[str, Any] = {"version": version, "layer": layer}
                row |= dict(zip(MEASURES, means[v, layer].tolist(), strict=True))
                if version in ("trained", "random weights"):
                    row |= {f"cosine_{c}": float(self.tested(c, version)[:, layer].mean()) for c in COSINES}
                rows.append(row)
        return pd.DataFrame(rows)

    def by_version(self) -> pd.DataFrame:
        """One row per version: means over layers and prompts, the loss, and the clue of the first prompt."""
        return pd.DataFrame(
            {
                "version": version,
                "loss": self.loss(version).value,
                "entropy": self.mean(version, "entropy").value,
                "self": self.mean(version, "self").value,
                "first token": self.mean(version, "first").value,
                "clue": self.clues[version][0].strip(),
            }
            for version in self.versions
        )

    def tables(self) -> dict[str, pd.DataFrame]:
        """By version, by version and layer, and by word where the number of examples was changed."""
        by_word = {} if self.sweep is None else {"words": self.sweep.table(self.targets)}
        return {"versions": self.by_version(), "layers": self.to_frame(), **by_word}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """One row per version; and per word where the number of examples was changed."""
        found = [(f"A clue for {self.targets[0]}", self.by_version())]
        if self.sweep is not None:
            found.append(("Clues by number of examples", self.sweep.table(self.targets)))
        return found
