"""What the few-shot study found: clues, maps and their measures, what they say of the thesis, and how they are kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError

from headscape.errors import HeadscapeError
from headscape.results import FigureSpec, Finding, Interval, Result, bootstrap
from headscape.storage import replacing, write_json
from headscape.studies.prompt.maps import MEASURES
from headscape.studies.work.old import read_arrays, write_arrays

__all__ = ["COSINES", "PromptResult"]

Array = npt.NDArray[Any]
COSINES = ("rho", "partial", "p", "rho_inner", "partial_inner", "p_inner")
"""Columns of the test of cosines: over all pairs, and without the first token."""
MINIMAL = 0.1
"""Rank correlation below which a relation counts as minimal."""
FLAT = 0.95
"""Normalised entropy from which on attention counts as uniform."""
LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class PromptResult(Result):
    """Attention in few-shot prompts, for a model and changed versions of it.

    measures is (n_version, n_prompt, n_layer, n_measure) by `prompt_maps.MEASURES`, of maps averaged over heads;
    weighted (n_prompt, n_layer, n_measure) the same of the trained model with heads weighted by the size of what they
    add; uniform (n_prompt, n_measure) and distance (n_prompt, n_layer, n_measure) are baselines. losses is (n_version,
    n_prompt), nats a token of the clues. cosine is (n_tested, n_prompt, n_layer, 6) by `COSINES`, trained first, then
    random weights. All versions are shown the same text: the prompt and the clue of the trained model. Maps are of the
    first prompt, words and clues alone: token_maps (n_layer, n_token, n_token), word_maps {version: (n_layer, n_word,
    n_word)} summed over both words' tokens. law_error says how far scores are from alpha^2, law_exception why.
    """

    study: ClassVar[str] = "prompt"
    title: ClassVar[str] = "Attention in a few-shot prompt"

    versions: list[str]
    targets: list[str]
    clues: Mapping[str, list[str]]
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
    tokens: list[str]
    words: list[str]
    text: str
    law_error: float
    law_exception: str
    settings: Mapping[str, Any]

    # --- tables ------------------------------------------------------------------------------------------------------

    @property
    def n_layers(self) -> int:
        """Attention layers of the model."""
        return int(self.measures.shape[2])

    def of(self, version: str, measure: str) -> Array:
        """A measure of a version, (n_prompt, n_layer)."""
        return np.asarray(self.measures[self.versions.index(version), :, :, MEASURES.index(measure)])

    def mean(self, version: str, measure: str) -> Interval:
        """Mean over layers, with its interval over prompts."""
        return bootstrap(self.of(version, measure).mean(axis=1))

    def loss(self, version: str) -> Interval:
        """Loss over the clues, with its interval over prompts."""
        return bootstrap(self.losses[self.versions.index(version)])

    def change(self, version: str, measure: str | None = None) -> Interval:
        """Change against the trained model, of a measure or of the loss, paired by prompt."""
        if measure is None:
            return bootstrap(self.losses[self.versions.index(version)] - self.losses[0])
        return bootstrap((self.of(version, measure) - self.of("trained", measure)).mean(axis=1))

    def tested(self, column: str, version: str = "trained") -> Array:
        """A column of the test of cosines, (n_prompt, n_layer)."""
        which = ["trained", *(["random weights"] if len(self.cosine) > 1 else [])].index(version)
        return np.asarray(self.cosine[which, :, :, COSINES.index(column)])

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
        """One row a layer of a version: means over prompts."""
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

    def summary(self) -> pd.DataFrame:
        """One row a version: means over layers and prompts, the loss, and the clue of the first prompt."""
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

    # --- sentences ---------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """The clue, patterns by depth and shot, cosines, then the controls."""
        found = [self._clue(), self._depth(), self._values()]
        if self.settings["shots"] > 0:
            found.append(self._shots())
        found.append(self._cosines())
        if "random weights" in self.versions:
            found.append(self._random())
        found += [self._scaled(version) for version in self.versions if version in ("alpha 2", "alpha 0.5")]
        return [*found, self._edits(), self._law()]

    def _clue(self) -> Finding:
        return Finding(
            f"For {self.targets[0]!r} after {self.settings['shots']} examples the model writes "
            f"“{self.clues['trained'][0].strip()}”. Numbers below are means over {len(self.targets)} such prompts, "
            "with 95 % intervals over them.",
            "clues",
        )

    def _depth(self) -> Finding:
        own = self.of("trained", "self")
        ends = max(1, self.n_layers // 10)
        middle = own[:, self.n_layers // 4 : max(self.n_layers // 4 + 1, 3 * self.n_layers // 4)].mean(axis=1)
        first, last = bootstrap(own[:, :ends].mean(axis=1) - middle), bootstrap(own[:, -ends:].mean(axis=1) - middle)
        uniform = float(self.uniform[:, MEASURES.index("self")].mean())
        return Finding(
            "The thesis sees maps that begin diagonal, spread out and become diagonal again. The weight of a token on "
            f"itself is {own[:, :ends].mean():.3f} in the first layers, {middle.mean():.3f} in the middle half, "
            f"{own[:, -ends:].mean():.3f} in the last (even attention {uniform:.3f}); first - middle is {first}, "
            f"last - middle {last}.",
            "self-mass",
            bool(_low(first) > 0 and _low(last) > 0),
        )

    def _values(self) -> Finding:
        first, dropped = self.mean("trained", "first"), self.mean("trained", "dropped")
        i, j = np.tril_indices(len(self.tokens), -1)
        lower = self.token_maps[:, i, j]
        return Finding(
            f"Words and clues put {first} of their weight on the first token; a picture of words and clues alone "
            f"leaves out {dropped}. Of its entries off the diagonal, {float((lower > 0.1).mean()):.1%} are above 0.1, "
            "the range the thesis shows.",
            "masses",
        )

    def _shots(self) -> Finding:
        share = {name: self.within_share(name).mean(axis=1) for name in ("trained", "distance", "uniform")}
        gain = bootstrap(share["trained"] - share["distance"])
        control = ""
        if "random weights" in self.versions:
            control = f", {float(self.within_share('random weights').mean()):.2f} with random weights"
        return Finding(
            "The thesis: words attend within their shot and not across. Of the weight on words and clues, "
            f"{bootstrap(share['trained'])} stays within the shot (the target's words included); "
            f"{float(share['uniform'].mean()):.2f} under even attention{control}, and {bootstrap(share['distance'])} "
            f"if attention knew distances alone. The boundary itself adds {gain}.",
            "shots",
            bool(_low(gain) > 0),
        )

    def _cosines(self) -> Finding:
        partial, p = self.tested("partial"), self.tested("p")
        inner = bootstrap(self.tested("partial_inner").mean(axis=1))
        best = int(np.abs(partial.mean(axis=0)).argmax())
        control = ""
        if len(self.cosine) > 1:
            control = f" With random weights it is {bootstrap(self.tested('partial', 'random weights').mean(axis=1))}."
        mean = bootstrap(partial.mean(axis=1))
        return Finding(
            "Does the cosine of embeddings predict attention? Spearman's correlation, distance held fixed, is "
            f"{mean} over layers ({inner} without the first token), largest in layer {best} "
            f"({bootstrap(partial[:, best])}); p < {LEVEL:g} in {float((p < LEVEL).mean()):.0%} of layers and prompts, "
            f"{LEVEL:.0%} by chance.{control} The thesis calls the relation minimal, which here means below "
            f"{MINIMAL:g} in every layer.",
            "cosines",
            bool(np.abs(partial.mean(axis=0)).max() < MINIMAL),
        )

    def _random(self) -> Finding:
        own, control = self.mean("trained", "entropy"), self.mean("random weights", "entropy")
        return Finding(
            f"With random weights attention is {'uniform' if control.value >= FLAT else 'not uniform'}: entropy "
            f"{control} of the most possible, {own} when trained (heads one by one "
            f"{self.mean('random weights', 'head_entropy').value:.2f} and "
            f"{self.mean('trained', 'head_entropy').value:.2f}). Its clue: "
            f"“{self.clues['random weights'][0].strip()[:80]}”.",
            "entropy",
            bool(control.value >= FLAT),
        )

    def _scaled(self, version: str) -> Finding:
        up = version == "alpha 2"
        entropy, own, loss = (self.change(version, "entropy"), self.change(version, "self"), self.change(version))
        how = "scores times" if self.law_exception.startswith("QK-norm") else "both spectra times"
        factor = ("4" if up else "1/4") if self.law_exception.startswith("QK-norm") else version.split()[1]
        claim = (
            "tokens that attend mostly to themselves and coherent text that repeats the prompt"
            if up
            else "flat attention and text without meaning"
        )
        selfish, clue = self.mean(version, "self"), self.clues[version][0].strip()[:80]
        holds = _low(selfish) > 0.5 if up else _low(entropy) > 0 and _low(loss) > 0
        return Finding(
            f"With {how} {factor} entropy changes by {entropy}, the weight of a token on itself by {own} (to "
            f"{selfish.value:.3f}) and the loss by {loss} nats; the clue becomes “{clue}”. "
            f"The thesis sees {claim}.",
            "entropy",
            bool(holds),
        )

    def _edits(self) -> Finding:
        parts = [f"{name} {self.change(name)}" for name in ("truncated", "flattened", "random bases")]
        return Finding(
            "Other edits of every head's W_q and W_k change the loss by: "
            + ", ".join(parts)
            + " nats (truncated keeps 90 % of the energy; flattened makes all singular values equal, random bases "
            "keeps them and turns the directions).",
            "losses",
        )

    def _law(self) -> Finding:
        if not self.law_exception:
            return Finding(
                "Scaling both spectra of a layer by alpha multiplies its scores by alpha^2, its input held fixed: on "
                f"this model to {self.law_error:.1g}, relative.",
                holds=True,
            )
        instead = " Scores were multiplied by alpha^2 instead." if self.law_exception.startswith("QK-norm") else ""
        return Finding(f"Scores are not multiplied by alpha^2 here: {self.law_exception}.{instead}", holds=False)

    # --- figures -----------------------------------------------------------------------------------------------------

    def figures(self) -> list[FigureSpec]:
        """Clues, maps by word and layer, measures by layer, controls."""
        from headscape.studies.prompt.figures import figures

        return figures(self)

    # --- on disk -----------------------------------------------------------------------------------------------------

    _ARRAYS: ClassVar[tuple[str, ...]] = (
        *("measures", "losses", "weighted", "uniform", "distance", "cosine"),
        *("token_maps", "token_cosines", "weighted_words"),
    )
    _FACTS: ClassVar[tuple[str, ...]] = (
        *("versions", "targets", "clues", "tokens", "words", "text", "law_error", "law_exception", "settings"),
    )

    def save(self, folder: Path) -> None:
        """Write layers.csv, result.safetensors and result.json, the last of them last."""
        with replacing(folder / "layers.csv") as partial:
            self.to_frame().to_csv(partial, index=False, float_format="%.9g")
        arrays = {name: getattr(self, name) for name in self._ARRAYS}
        arrays |= {f"words/{v}": self.word_maps[name] for v, name in enumerate(self.versions)}
        write_arrays(folder / "result.safetensors", arrays)
        write_json(folder / "result.json", {"study": self.study, **{n: getattr(self, n) for n in self._FACTS}})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read back what `save` wrote."""
        try:
            facts = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            arrays, _ = read_arrays(folder / "result.safetensors")
            maps = {name: arrays[f"words/{v}"] for v, name in enumerate(facts["versions"])}
            return cls(
                word_maps=maps,
                **{name: arrays[name] for name in cls._ARRAYS},  # type: ignore[arg-type]
                **{name: facts[name] for name in cls._FACTS},
            )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise HeadscapeError(f"the prompt study in {folder} cannot be read ({error}); run it again") from None


def _low(interval: Interval) -> float:
    """The lower end; the value itself where one prompt leaves no interval."""
    return interval.low if np.isfinite(interval.low) else interval.value
