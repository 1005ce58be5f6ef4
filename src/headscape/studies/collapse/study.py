"""Do tokens become alike along depth, and attention narrow? A model beside its controls and its four cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.captures import Capture, open_capture
from headscape.collapse.bounds import named_bounds
from headscape.collapse.residual import effective_rank, relative_residual
from headscape.collapse.similarity import attention_entropy, histogram, token_similarities
from headscape.errors import InputError
from headscape.results import bootstrap
from headscape.runs import Run
from headscape.studies.collapse.result import CollapseResult, entropy_column
from headscape.studies.work.old import Progress, Say, Steps, block_of, read_arrays, study_folder, write_arrays
from headscape.tensor import AttentionTensor, HeadId, MaskKind

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.samples import Sample
    from headscape.studies.collapse.arms import Arm

__all__ = ["collapse", "measures", "present_of"]

Array = npt.NDArray[Any]


def collapse(
    source: Capture | Run | str | Path,
    *,
    block: str | None = None,
    batches: int = 5,
    model: Model | None = None,
    control: Model | None = None,
    alpha_hidden: float = 0.5,
    cells: bool = True,
    double: bool = True,
    threads: int | None = None,
    random_state: int = 0,
    progress: Progress = lambda done, total: None,
    say: Say = lambda _: None,
) -> CollapseResult:
    """Measure collapse by layer: residuals, effective rank, similarities of tokens, entropies of attention, bounds.

    Parameters
    ----------
    source
        A capture or a run directory: its inputs are shown to the model again. Without a model, what was kept of hidden
        states and probabilities is measured, in the precision in which it was stored.
    block
        Which block of the network, where there are several.
    batches
        How many of the captured inputs are used, the first ones.
    model, control
        The model of the capture, and the same architecture with random weights.
    alpha_hidden
        a' of the cells with a hidden state.
    cells
        Also run the four cells {the model's skip, no skip} x {a' = 0, a' > 0}. What a trained model does in them shows
        what its parts do; nobody trained it for them.
    double
        Run a copy of the model in float64; in float32 residuals stop near 2e-7.
    threads
        Of torch, as they are by default. Round-off may depend on them.

    Raises
    ------
    InputError
        Nothing to measure (the message says how to capture it), alpha_hidden out of range, one token.
    """
    if batches < 1:
        raise InputError(f"batches must be at least 1, not {batches}")
    if not 0 <= alpha_hidden < 1:
        raise InputError(f"alpha_hidden is at least 0 and below 1, not {alpha_hidden}")
    captured = open_capture(source)
    chosen = block_of(captured, block)
    n = min(batches, len(captured))
    if model is None:
        captured.need_whole("the collapse study without the model")
    if model is None and not {"hidden", "probs"} & set(captured.kept):
        raise InputError(
            f"without its model, this study needs hidden states or probabilities, and the capture keeps "
            f"{', '.join(captured.kept)}; capture again with --keep hidden,probs"
        )
    facts = {
        "block": chosen,
        "model": None if model is None else model.fingerprint,
        "control": None if model is None or control is None else control.fingerprint,
        "alpha_hidden": alpha_hidden,
        "float64": double,
        "seed": random_state,
    }
    with study_folder(captured.run, CollapseResult.study, facts, say) as folder:
        study = _Study(captured, chosen, n, folder, random_state)
        if model is None:
            measured = study.from_stored(progress)
        else:
            measured = study.from_model(
                {"trained": model} | ({} if control is None else {"random": control}),
                alpha_hidden,
                cells and alpha_hidden > 0,
                double,
                threads,
                progress,
                say,
            )
        result = study.summary(measured, facts | {"batches": n, "cells": cells})
    if captured.run is not None:
        result.save(captured.run.path / result.study)
    return result


def measures(
    states: npt.ArrayLike | None, labels: npt.ArrayLike | None, entropies: Mapping[int, Array]
) -> dict[str, Array]:
    """What is measured of hidden states (n_layer + 1, n_token, width) and of rows of entropies (n_head, n_query).

    residual, rank (n_layer + 1,); similarity and, with labels, different: histograms (n_layer + 1, n_bin) over pairs
    of tokens and over pairs with different labels; entropy (n_head,): the mean over rows, heads of all layers one
    after the other; entropies (n_layer, n_bin): histograms over heads and rows. What is not known is left out.
    """
    found: dict[str, Array] = {}
    if states is not None:
        X = np.asarray(states, dtype=np.float64)
        found["residual"] = np.asarray(relative_residual(X))
        found["rank"] = np.asarray(effective_rank(X))
        found["similarity"] = np.stack([histogram(token_similarities(x)) for x in X])
        if labels is not None:
            found["different"] = np.stack([histogram(token_similarities(x, labels)) for x in X])
    if entropies:
        rows = [entropies[layer] for layer in sorted(entropies)]
        known = [r[:, ~np.isnan(r).all(axis=0)] for r in rows]
        found["entropy"] = np.concatenate([r.mean(axis=1) if r.shape[1] else np.full(len(r), np.nan) for r in known])
        found["entropies"] = np.stack([histogram(r.ravel()) for r in known])
    return found


def present_of(mask: MaskKind, shape: tuple[int, ...]) -> Array:
    """Which entries of a map (n_query, n_key) exist."""
    return AttentionTensor(np.zeros((*shape, 1), dtype=np.float32), mask=mask).present


@dataclass(frozen=True)
class _Measured:
    """Which arms there are files of, the heads in them, and what is worth a note."""

    arms: list[str]
    heads: list[HeadId]
    notes: list[str]


@dataclass(frozen=True)
class _Study:
    """Which inputs of which block, and the files of what was found: one an arm and input."""

    captured: Capture
    block: str
    n: int
    folder: Path
    seed: int

    def path(self, arm: str, i: int) -> Path:
        return self.folder / f"{arm.replace(', ', '-').replace(' ', '-')}-{i:04d}.safetensors"

    # --- measuring ---------------------------------------------------------------------------------------------------

    def from_stored(self, progress: Progress) -> _Measured:
        """Measure what the capture kept."""
        steps = Steps(progress, self.n)
        for i in range(self.n):
            if not self.path("standard", i).exists():
                batch = self.captured.batch(i)
                mask = batch.info["blocks"][self.block]["mask"]
                entropies = {}
                for layer in batch.info["layers"][self.block] if "probs" in self.captured.kept else ():
                    maps = batch.read(f"probs/{self.block}.{layer}").astype(np.float64)
                    maps /= maps.sum(axis=-1, keepdims=True)  # of float16 rows
                    entropies[int(layer)] = attention_entropy(maps, present_of(mask, maps.shape[1:]))
                name = f"hidden/{self.block.removesuffix('.cross')}"
                states = batch.read(name).astype(np.float64) if name in batch.names else None
                ids = self.captured.input_ids(i)
                labels = ids if states is not None and ids is not None and len(ids) == states.shape[1] else None
                write_arrays(self.path("standard", i), measures(states, labels, entropies))
            steps.one()
        missing = [what for what in ("hidden", "probs") if what not in self.captured.kept]
        notes = ["No model was at hand: nothing stands beside what was captured, and no bound was computed."]
        if missing:
            notes.append(f"The capture does not keep {missing[0]}: what needs it was left out.")
        if "hidden" in self.captured.kept:
            notes.append("States were read as stored: a residual cannot be smaller than the rounding of that format.")
        return _Measured(["standard"], self.captured.heads(self.block), notes)

    def from_model(
        self,
        models: dict[str, Model],
        alpha_hidden: float,
        with_cells: bool,
        double: bool,
        threads: int | None,
        progress: Progress,
        say: Say,
    ) -> _Measured:
        """Run the model on the inputs in every arm; an arm the model cannot be put into is left out and noted."""
        import torch

        from headscape.attention.samples import replayed
        from headscape.studies.collapse.arms import arms_of, in_double

        arms = arms_of(alpha_hidden, "random" in models, with_cells)
        samples = replayed(models["trained"], self.captured)[: self.n]
        steps = Steps(progress, len(arms) * self.n)
        left_out: dict[str, str] = {}
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        try:
            for weights, own in models.items():
                mine = [arm for arm in arms if arm.weights == weights]
                todo = [(arm, i) for arm in mine for i in range(self.n) if not self.path(arm.name, i).exists()]
                for _ in range(len(mine) * self.n - len(todo)):
                    steps.one()
                network = in_double(own) if double and todo else own
                for arm, i in todo:
                    if arm.name not in left_out:
                        self._one(network, samples[i], arm, i, left_out, say)
                    steps.one()
                del network
        finally:
            torch.set_num_threads(before)
        notes = [f"'{name}' was left out: {why}" for name, why in left_out.items()]
        heads = [head for site in models["trained"].sites if site.block == self.block for head in site.heads]
        return _Measured([arm.name for arm in arms if arm.name not in left_out], heads, notes)

    def _one(self, model: Model, sample: Sample, arm: Arm, i: int, left_out: dict[str, str], say: Say) -> None:
        from headscape.studies.collapse.arms import look, shuffled

        shown = shuffled(model, sample, self.seed + i) if arm.shuffled else sample
        try:
            write_arrays(self.path(arm.name, i), look(model, shown, arm, self.block))
        except InputError as error:
            if arm.plain:
                raise
            left_out[arm.name] = str(error)
            say(f"'{arm.name}' is left out: {error}")

    # --- putting together --------------------------------------------------------------------------------------------

    def summary(self, measured: _Measured, facts: dict[str, Any]) -> CollapseResult:
        """Read the files and put the result together."""
        arms = measured.arms
        units = [[read_arrays(self.path(arm, i))[0] for i in range(self.n)] for arm in arms]
        first = units[0][0]

        def stacked(name: str) -> Array | None:
            return np.array([[unit[name] for unit in row] for row in units]) if name in first else None

        def summed(name: str) -> Array | None:
            return np.array([sum(unit[name] for unit in row) for row in units]) if name in first else None

        heads = pd.DataFrame(measured.heads, columns=["block", "layer", "head"])
        for arm, row in zip(arms, units, strict=True):
            if "entropy" in first:
                values = np.array([unit["entropy"] for unit in row])
                heads[entropy_column(arm)] = values.mean(axis=0)
                if arm == "standard":
                    spans = [bootstrap(column, random_state=self.seed) for column in values.T]
                    heads["entropy_low"], heads["entropy_high"] = (
                        [getattr(s, e) for s in spans] for e in ("low", "high")
                    )
            if "spread" in row[0]:
                heads["D" if arm == "standard" else f"D_{arm}"] = np.median([unit["spread"] for unit in row], axis=0)
        causal = self.captured.info["blocks"][self.block]["mask"] == "causal"
        return CollapseResult(
            block=self.block,
            arms=tuple(arms),
            heads=heads,
            residual=stacked("residual"),
            rank=stacked("rank"),
            similarity=summed("similarity"),
            different=summed("different"),
            entropies=summed("entropies"),
            bounds=_bounds_frame(arms, units),
            causal=causal,
            notes=tuple(measured.notes),
            settings=facts,
        )


def _bounds_frame(arms: Sequence[str], units: Sequence[Sequence[dict[str, Array]]]) -> pd.DataFrame:
    """One row an arm, input and layer whose bounds are known."""
    rows = [
        {"arm": arm, "input": i, "layer": layer} | named_bounds(row)
        for arm, inputs in zip(arms, units, strict=True)
        for i, unit in enumerate(inputs)
        for layer, row in enumerate(unit.get("bounds", ()))
        if np.isfinite(row[0])
    ]
    return pd.DataFrame(rows)
