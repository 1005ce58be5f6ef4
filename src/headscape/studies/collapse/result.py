"""What the collapse study found of a model: by layer and by head, sentences by stated rules, and how it is stored."""

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

from headscape.collapse.bounds import CONDITION
from headscape.collapse.similarity import ALIKE, Similarity, summary_of
from headscape.errors import HeadscapeError
from headscape.results import FigureSpec, Finding, Interval, Result, bootstrap
from headscape.storage import replacing, write_json
from headscape.studies.work.old import read_arrays, write_arrays

__all__ = ["CELLS", "CollapseResult", "cells_of", "entropy_column"]

Array = npt.NDArray[Any]

COLLAPSED = 0.01
"""Relative residual below which tokens count as collapsed to one."""
GONE = 1e-6
"""Relative residual that a network in float32 could not tell from 0."""
PEAK = 0.98
"""A mode above this (the last of 100 bins) is a population of tokens that are all alike."""
POPULATION = 0.01
"""Share of pairs that are alike from which on there is a population to remove."""
SAME_ENTROPY = 0.05
"""Largest change of the mean entropy that counts as none."""
CELLS = ("standard", "hidden", "no skip", "no skip, hidden")
"""Skip and a' = 0, skip and a' > 0, no skip and a' = 0, no skip and a' > 0."""


@dataclass(frozen=True, eq=False)
class CollapseResult(Result):
    """Collapse of tokens and of attention along depth, in every arm.

    `arms` names them; the first is the model as it is. `heads` has one row a head: mean entropy of its rows by arm
    (over the largest possible; with an interval over inputs for the first), and D of its scores. residual and rank are
    (n_arm, n_input, n_layer + 1): before the first layer and after each. similarity and different are histograms of
    cosines (n_arm, n_layer + 1, n_bin) over all inputs, of all pairs of tokens and of pairs of different ones;
    entropies the same of rows of attention (n_arm, n_layer, n_bin). bounds has one row an arm, input and layer. Arrays
    are None where nothing is known.
    """

    study: ClassVar[str] = "collapse"
    title: ClassVar[str] = "Do tokens and attention collapse along depth?"

    block: str
    arms: tuple[str, ...]
    heads: pd.DataFrame
    residual: Array | None
    rank: Array | None
    similarity: Array | None
    different: Array | None
    entropies: Array | None
    bounds: pd.DataFrame
    causal: bool
    notes: tuple[str, ...]
    settings: Mapping[str, Any]

    # --- tables ------------------------------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row a head."""
        return self.heads

    @property
    def n_layers(self) -> int:
        """How many layers the block has."""
        return int(self.heads["layer"].nunique())

    def at(self, arm: str) -> int:
        """Which arm that is."""
        return self.arms.index(arm)

    def last(self, arm: str) -> Interval:
        """The relative residual after the last layer, with its interval over inputs."""
        assert self.residual is not None
        return bootstrap(self.residual[self.at(arm), :, -1])

    def alike(self, arm: str, different: bool = False) -> list[Similarity]:
        """Mode, median, mean and share of similarities, before the first layer and after each."""
        counts = self.different if different else self.similarity
        assert counts is not None
        return [summary_of(layer) for layer in counts[self.at(arm)]]

    @property
    def by_layer(self) -> pd.DataFrame:
        """One row an arm and layer; layer 0 is before the first."""
        rows = []
        for a, arm in enumerate(self.arms):
            if self.residual is None or self.rank is None:
                break
            alike = self.alike(arm)
            unlike = self.alike(arm, True) if self.different is not None else None
            for n in range(self.residual.shape[2]):
                residual, rank = bootstrap(self.residual[a, :, n]), bootstrap(self.rank[a, :, n])
                row: dict[str, Any] = {"arm": arm, "layer": n, "residual": residual.value}
                row |= {"residual_low": residual.low, "residual_high": residual.high, "rank": rank.value}
                row |= alike[n]._asdict()
                row["share_different"] = float("nan") if unlike is None else unlike[n].share
                rows.append(row)
        return pd.DataFrame(rows)

    @property
    def by_arm(self) -> pd.DataFrame:
        """One row an arm: what is left after the last layer, and the mean entropy over all heads."""
        rows = []
        for arm in self.arms:
            row: dict[str, Any] = {"arm": arm}
            if self.residual is not None and self.rank is not None:
                alike = self.alike(arm)
                end = self.last(arm)
                row["residual"] = f"{end.value:.2g} [{end.low:.2g}, {end.high:.2g}]"
                row["rank"] = f"{self.rank[self.at(arm), :, -1].mean():.3g}"
                row["mode"] = f"{alike[-1].mode:.2f}"
                row["alike"] = f"{alike[-1].share:.2%}"
            if self.entropies is not None:
                row["entropy"] = f"{self.heads[entropy_column(arm)].mean():.3f}"
            rows.append(row)
        return pd.DataFrame(rows)

    # --- sentences ---------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Rank first, then the four cells, entropy and the bounds."""
        found = []
        if self.residual is not None:
            found += [self._rank(), self._population()]
            if "hidden" in self.arms:
                found.append(self._removed())
            found += [self._work(weights) for weights in ("", "random") if set(cells_of(weights)) <= set(self.arms)]
        if self.entropies is not None:
            found.append(self._entropy())
        found += self._bounds()
        return found + [Finding(note) for note in self.notes]

    def _rank(self) -> Finding:
        assert self.residual is not None
        assert self.rank is not None
        end = self.last("standard")
        collapsed = end.value < COLLAPSED
        start = self.residual[0, :, 0].mean()
        beside = [
            f"{self.last(arm)} with {words}"
            for arm, words in (("shuffled", "inputs shuffled"), ("random", "random weights"))
            if arm in self.arms
        ]
        return Finding(
            f"Rank collapse is {'seen' if collapsed else 'not seen'}: the relative residual of the tokens goes from "
            f"{start:.2g} before the first layer to {end} after the last (collapsed is below {COLLAPSED:g})"
            + (f"; {', '.join(beside)}" if beside else "")
            + f". The effective rank goes from {self.rank[0, :, 0].mean():.3g} to {self.rank[0, :, -1].mean():.3g}.",
            "residual",
            collapsed,
        )

    def _population(self) -> Finding:
        alike = self.alike("standard")
        peaks = sum(s.mode > PEAK for s in alike[1:])
        holds = peaks > len(alike[1:]) / 2
        shares = {arm: f"{np.mean([s.share for s in self.alike(arm)[1:]]):.2%}" for arm in self.arms}
        beside = [f"{shares[arm]} {words}" for arm, words in _CONTROLS if arm in self.arms]
        unlike = ""
        if self.different is not None:
            unlike = (
                f", {np.mean([s.share for s in self.alike('standard', True)[1:]]):.2%} of pairs of different tokens"
            )
        return Finding(
            f"A population of tokens that are all alike, a mode of cosines above {PEAK:g}, is there in {peaks} of "
            f"{len(alike) - 1} layers ({'more' if holds else 'not more'} than half; the paper has it in every layer "
            f"of the networks it trained). On average {shares['standard']} of pairs have a cosine of {ALIKE:g} or "
            f"more{unlike}; before the first layer {alike[0].share:.2%}"
            + "".join(f", {text}" for text in beside)
            + ".",
            "similarity",
            holds,
        )

    def _removed(self) -> Finding:
        before, after = (float(np.mean([s.share for s in self.alike(arm)[1:]])) for arm in ("standard", "hidden"))
        text = (
            f"With the hidden state put into the model as it is (a' = {self.settings['alpha_hidden']:g}, no training), "
            f"pairs that are alike go from {before:.2%} to {after:.2%}, mean over layers"
        )
        if before < POPULATION:
            return Finding(f"{text}; below {POPULATION:.0%} there was no population to remove.", "similarity-hopfield")
        holds = after <= before / 2
        return Finding(
            f"{text}: {'at least' if holds else 'not'} halved, where the paper says that it disappears.",
            "similarity-hopfield",
            holds,
        )

    def _work(self, weights: str) -> Finding:
        """Which of skip and hidden state keeps tokens apart, by which moves the residual further."""
        names = cells_of(weights)
        cells = [self.last(name) for name in names]
        s0, s1, n0, _ = (max(cell.value, np.finfo(np.float64).tiny) for cell in cells)
        by_skip, by_hidden = abs(np.log10(s0 / n0)), abs(np.log10(s1 / s0))
        skip_works = by_skip > by_hidden
        gone = [self._gone(name) for name in names[2:]]
        return Finding(
            f"{'With random weights the' if weights else 'The'} "
            + ("skip does the work, not the hidden state" if skip_works else "hidden state does the work, not the skip")
            + " (the paper credits the hidden state): after the last layer the residual is "
            f"{cells[0]} with the model's skip and {cells[2]} without; the hidden state turns the first into "
            f"{cells[1]} and the second into {cells[3]}. The skip moves it by {by_skip:.1f} decades, the hidden "
            f"state beside a skip by {by_hidden:.2f}. Without a skip the residual falls below {GONE:g} {gone[0]}, "
            f"with a hidden state {gone[1]}.",
            "residual-cells-random" if weights else "residual-cells",
            not skip_works,
        )

    def _gone(self, arm: str) -> str:
        """After which layer nothing is left of the differences between tokens."""
        assert self.residual is not None
        below = np.flatnonzero(self.residual[self.at(arm)].mean(axis=0) < GONE)
        return f"after layer {below[0]}" if len(below) else f"nowhere in {self.n_layers} layers"

    def _entropy(self) -> Finding:
        column = self.heads["entropy"]
        low = int((column < 0.1).sum())
        beside = [
            f"{self.heads[entropy_column(arm)].mean():.2f} with {words}"
            for arm, words in (("shuffled", "inputs shuffled"), ("random", "random weights"))
            if arm in self.arms
        ]
        text = (
            f"Attention has {column.mean():.2f} of the largest possible entropy, mean over heads ({column.min():.2f} "
            f"to {column.max():.2f}); {low} of {len(column)} heads are below 0.1"
            + (f"; {', '.join(beside)}" if beside else "")
        )
        if "hidden" not in self.arms:
            return Finding(f"{text}.", "entropy")
        change = bootstrap(self.heads["entropy_hidden"] - column)
        holds = abs(change.value) <= SAME_ENTROPY
        return Finding(
            f"{text}. The hidden state changes it by {change} (interval over heads), "
            f"{'within' if holds else 'beyond'} {SAME_ENTROPY:g}; the paper says that it does not change.",
            "entropy",
            holds,
        )

    def _bounds(self) -> list[Finding]:
        if self.causal:
            text = "Causal attention has no bound: a masked key makes D infinite, and neither the printed nor the "
            return [Finding(f"{text}repaired inequality says anything of this model.")]
        if not len(self.bounds):
            return []
        met = self.bounds[self.bounds["spread"] <= CONDITION]
        broken = int((~met["keeps_repaired"]).sum()), int((~self.bounds["keeps_anywhere"]).sum())
        printed = self.bounds[np.isfinite(self.bounds["printed"])]
        text = (
            f"D is at most {CONDITION:.3f} in {len(met)} of {len(self.bounds)} layers (over inputs and sets of weights)"
            f"{self._where_met(met)}. There the repaired bound holds in all but {broken[0]}"
            + (f" and is {_times(met, 'repaired')} what is measured" if len(met) else "")
            + f"; its form with 2(e^D - 1) holds in all but {broken[1]} of all layers"
        )
        if len(printed):
            violated = int((~printed["keeps_printed"]).sum())
            text += f". The printed bound is {_times(printed, 'printed')} the measured value, exceeded in {violated}"
        return [Finding(f"{text} (medians).", "bounds", sum(broken) == 0)]

    def _where_met(self, met: pd.DataFrame) -> str:
        counts = [f"{int((met['arm'] == arm).sum())} {arm}" for arm in dict.fromkeys(self.bounds["arm"])]
        return f": {', '.join(counts)}" if len(counts) > 1 else ""

    # --- pictures ----------------------------------------------------------------------------------------------------

    def figures(self) -> list[FigureSpec]:
        """See `collapse_figures`."""
        from headscape.studies.collapse.figures import figures

        return figures(self)

    # --- storage -----------------------------------------------------------------------------------------------------

    _ARRAYS: ClassVar[tuple[str, ...]] = ("residual", "rank", "similarity", "different", "entropies")
    _FACTS: ClassVar[tuple[str, ...]] = ("block", "arms", "causal", "notes", "settings")

    def save(self, folder: Path) -> None:
        """Write result.json, heads.csv, bounds.csv, layers.csv and result.safetensors into a folder."""
        for name, frame in (("heads", self.heads), ("bounds", self.bounds), ("layers", self.by_layer)):
            with replacing(folder / f"{name}.csv") as partial:
                frame.to_csv(partial, index=False, float_format="%.17g")
        kept = {name: getattr(self, name) for name in self._ARRAYS if getattr(self, name) is not None}
        write_arrays(folder / "result.safetensors", kept)
        write_json(folder / "result.json", {"study": self.study} | {name: getattr(self, name) for name in self._FACTS})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read back what `save` wrote."""
        try:
            facts = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            arrays, _ = read_arrays(folder / "result.safetensors")
            heads = pd.read_csv(folder / "heads.csv", dtype={"block": str})
            try:
                bounds = pd.read_csv(folder / "bounds.csv")
            except pd.errors.EmptyDataError:
                bounds = pd.DataFrame()
            return cls(
                heads=heads,
                bounds=bounds,
                **{name: arrays.get(name) for name in cls._ARRAYS},
                block=facts["block"],
                arms=tuple(facts["arms"]),
                causal=facts["causal"],
                notes=tuple(facts["notes"]),
                settings=facts["settings"],
            )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise HeadscapeError(f"the collapse study in {folder} cannot be read ({error}); run it again") from None


_CONTROLS = (("shuffled", "with inputs shuffled"), ("random", "with random weights"))


def cells_of(weights: str) -> tuple[str, ...]:
    """The arms that are the four cells of the model ("") or of random weights ("random")."""
    return CELLS if not weights else ("random", *(f"random, {cell}" for cell in CELLS[1:]))


def entropy_column(arm: str) -> str:
    """The column of `heads` that holds an arm's entropies."""
    return "entropy" if arm == "standard" else "entropy_" + arm.replace(", ", "_").replace(" ", "_")


def _times(bounds: pd.DataFrame, name: str) -> str:
    real = bounds[bounds["measured"] > bounds["floor"]]
    return f"{(real[name] / real['measured']).median():.2g} times" if len(real) else "not to be compared with"
