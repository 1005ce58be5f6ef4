"""Do tokens become alike along depth, and attention narrow? A model beside its controls and its four variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from headscape.captures import Capture, open_capture
from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.errors import InputError
from headscape.runs import Run
from headscape.storage import read_arrays
from headscape.studies.collapse.measures import measure_stored
from headscape.studies.collapse.result import CollapseResult
from headscape.studies.collapse.tables import Units, summary_of_units
from headscape.studies.work.folder import Folder, working_folder
from headscape.studies.work.handing import models_for
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import Loader, models_of
from headscape.studies.work.units import reachable, run_units
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.studies.collapse.variants import Variant

__all__ = ["collapse"]


def collapse(
    source: Capture | Run | str | Path,
    *,
    block: str | None = None,
    batches: int = 8,
    model: Model | bool | None = True,
    control: Model | bool | None = None,
    alpha: float | None = None,
    alpha_hidden: float = 0.5,
    cells: bool = True,
    double: bool = True,
    loader: Loader | None = None,
    random_state: int = 0,
    **how: Unpack[How],
) -> CollapseResult:
    """Measure collapse by layer: residuals, effective rank, token similarity, entropy of attention, bounds.

    Parameters
    ----------
    source
        A capture or a run directory: its inputs are given to the model again. Without a model, the hidden states and
        probabilities that were kept are measured, in the precision in which they were stored.
    block
        Which block of the network, where there are several.
    batches
        How many of the captured inputs to use, from the first on.
    model, control
        The model of the capture, and the same architecture with random weights; True loads or draws them.
    alpha
        Also run the model with a scaled skip a x + (1 - a) attention, the paper's own cell, with and without a hidden
        state.
    alpha_hidden
        a' of the variants with a hidden state.
    cells
        Also run the four variants {the model's skip, no skip} x {a' = 0, a' > 0}. They show what the parts of a trained
        model do; it was not trained for them.
    double
        Run a copy of the model in float64; in float32 residuals stop near 2e-7.
    loader
        How the run's model is loaded (device, number type, online).
    how
        jobs and engine (inputs and variants are units of work), threads (of torch; round-off may depend on them), resume,
        progress, say: see `headscape.studies.work.how.How`.

    Raises
    ------
    InputError
        Nothing to measure (the message says how to capture it), alphas out of range, one token.

    >>> result = hs.collapse(run, model=model)
    >>> result.headline()
    'We cannot tell whether tokens collapse along depth (rank collapse, Dong et al. 2021)'
    """
    integer("batches", batches, low=1)
    check_seed(random_state)
    for name, value in (("alpha", alpha or 0.0), ("alpha_hidden", alpha_hidden)):
        if not 0 <= value < 1:
            raise InputError(f"{name} must be at least 0 and below 1, not {value}")
    work = Work.of(**how)
    captured = open_capture(source)
    settings: dict[str, Any] = {
        "block": captured.block(block),
        "batches": min(batches, len(captured)),
        "alpha_hidden": alpha_hidden,
        **({} if batches <= len(captured) else {"asked": batches}),
        **({} if alpha is None else {"alpha": alpha}),
        "cells": cells,
        "float64": double,
        "seed": random_state,
    }
    models = _models(captured, model, control, loader or Loader(say=work.say), random_state, work)
    hashes = captured.content(settings["batches"])
    inputs = hashes | {name: own.fingerprint for name, own in models.items()}
    with working_folder(captured.run, CollapseResult.study, settings, inputs, work) as folder:
        study = _Study(captured, settings, hashes, folder, work)
        result = study.of_model(models) if models else study.of_stored()
        folder.save(result)
    return result


def _models(
    captured: Capture, model: Model | bool | None, control: Model | bool | None, loader: Loader, seed: int, work: Work
) -> dict[str, Model]:
    """The trained and the random network, as far as available; raises if nothing is left to measure."""
    own, _ = models_of(captured, model, None, loader, seed, "without its model", work.warn)
    if own is not None:
        from headscape.attention.weights import check_changeable

        check_changeable(own.module, "the collapse study changes the model")
        _, other = models_of(captured, None, control, loader, seed, "", work.warn)
        return {"trained": own} | ({} if other is None else {"random": other})
    if control and model:
        work.say("no control with random weights: it needs the model")
    captured.need_whole("the collapse study without the model")
    if not {"hidden", "probs"} & set(captured.kept):
        raise InputError(
            f"without its model, this study needs hidden states or probabilities, and the capture keeps "
            f"{', '.join(captured.kept)}; capture again with --keep hidden,probs"
        )
    return {}


@dataclass(frozen=True)
class _Study:
    """Inputs, settings, and the files of what was measured: one per variant and input."""

    captured: Capture
    settings: Mapping[str, Any]
    hashes: Mapping[str, str]
    folder: Folder
    work: Work

    @property
    def inputs(self) -> range:
        return range(self.settings["batches"])

    def path(self, name: str, i: int, *facts: Any) -> Path:
        number = self.captured.numbers[i]
        known = self.settings["block"], self.hashes.get(f"batch {number}")
        return self.folder.unit(f"{name.replace(',', '').replace(' ', '-')}-{number:04d}", *known, *facts)

    def of_stored(self) -> CollapseResult:
        """Measure what the capture kept."""
        block, kept = self.settings["block"], self.captured.kept
        steps = self.work.stage("measuring", len(self.inputs))
        with reachable(self.captured, self.work.engine, self.folder.units) as shown:
            units = {f"input {i}": (self.path("stored", i), shown, i, block) for i in self.inputs}
            run_units(measure_stored, units, self.work, steps)
        notes = ["The model was not run: there are no controls, and no bound was computed."]
        missing = {"hidden", "probs"} - set(kept)
        notes += [f"The capture does not keep {what}: measures that need it were left out." for what in missing]
        return self.summary(
            self.captured.heads(block), {"standard": [read_arrays(unit[0])[0] for unit in units.values()]}, notes
        )

    def of_model(self, models: Mapping[str, Model]) -> CollapseResult:
        """Run the model on the inputs in every variant; one that the model cannot take is left out and noted."""
        from headscape.attention.samples import replayed
        from headscape.studies.collapse.variants import double_copy, measure, variants_of

        hidden, seed, block, double = (self.settings[key] for key in ("alpha_hidden", "seed", "block", "float64"))
        variants = variants_of(
            hidden, "random" in models, self.settings["cells"] and hidden > 0, self.settings.get("alpha")
        )
        samples = replayed(models["trained"], self.captured)
        steps = self.work.stage("measuring", len(variants) * len(self.inputs))
        found: Units = {}
        notes = []
        sent, work = models_for(self.work, models)
        apart = work.engine.apart
        threads = work.threads if apart else work.asked_threads
        for weights, own in models.items():
            paths: dict[tuple[Variant, int], Path] = {}
            for variant in variants:
                facts = own.fingerprint, double, asdict(variant), seed if variant.shuffled else None
                if variant.weights == weights:
                    paths |= {(variant, i): self.path(variant.name, i, *facts) for i in self.inputs}
            missing = not all(path.exists() for path in paths.values())
            network = double_copy(own) if double and missing and not apart else sent[weights]
            units = {
                f"{variant.name}, input {i}": (
                    *(path, network, samples[i], variant, block),
                    *(seed + i, double and apart, threads),
                )
                for (variant, i), path in paths.items()
            }
            run_units(measure, units, work, steps)
            for variant in dict.fromkeys(variant for variant, _ in paths):
                read = [read_arrays(paths[variant, i]) for i in self.inputs]
                why = next((said["left out"] for _, said in read if "left out" in said), None)
                if why is None:
                    found[variant.name] = [arrays for arrays, _ in read]
                else:
                    notes.append(f"'{variant.name}' was left out: {why}")
        for note in notes:
            self.work.say(note)
        heads = [head for site in models["trained"].sites if site.block == block for head in site.heads]
        return self.summary(heads, found, notes)

    def summary(self, heads: Sequence[HeadId], found: Units, notes: Sequence[str]) -> CollapseResult:
        """Put the result together."""
        causal = self.captured.info["blocks"][self.settings["block"]]["mask"] == "causal"
        return summary_of_units(heads, found, notes, self.settings, causal)
