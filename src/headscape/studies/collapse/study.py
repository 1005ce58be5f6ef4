"""Do tokens become alike along depth, and attention narrow? A model beside its controls and its four variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.captures import Capture, open_capture
from headscape.collapse.bounds import named_bounds
from headscape.collapse.residual import roundoff
from headscape.collapse.similarity import attention_entropy
from headscape.errors import InputError
from headscape.intervals import mean_interval
from headscape.runs import Run
from headscape.storage import read_arrays, write_arrays
from headscape.studies.collapse.measures import measures, present_of
from headscape.studies.collapse.result import CollapseResult, entropy_column
from headscape.studies.work.folder import Folder, study_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import Loader, models_of
from headscape.studies.work.units import run_units

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["collapse"]

Array = npt.NDArray[Any]
Units = dict[str, list[Mapping[str, Array]]]  # by variant, the measures of every input


def collapse(
    source: Capture | Run | str | Path,
    *,
    block: str | None = None,
    batches: int = 8,
    model: Model | bool | None = True,
    control: Model | bool | None = None,
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
        threads (of torch; round-off may depend on them), resume, progress, say: see `headscape.studies.work.how.How`.

    Raises
    ------
    InputError
        Nothing to measure (the message says how to capture it), alpha_hidden out of range, one token, several jobs.
    """
    if batches < 1:
        raise InputError(f"batches must be at least 1, not {batches}")
    if not 0 <= alpha_hidden < 1:
        raise InputError(f"alpha_hidden must be at least 0 and below 1, not {alpha_hidden}")
    work = Work.of(**how)
    if work.engine.apart:
        raise InputError("this study runs one copy of the model in one process; give it more threads instead of jobs")
    captured = open_capture(source)
    settings: dict[str, Any] = {
        "block": captured.block(block),
        "batches": min(batches, len(captured)),
        "alpha_hidden": alpha_hidden,
        "cells": cells,
        "float64": double,
        "seed": random_state,
    }
    models = _models(captured, model, control, loader or Loader(say=work.say), random_state, work)
    inputs = captured.content(settings["batches"]) | {name: own.fingerprint for name, own in models.items()}
    with (
        work.started(None if captured.run is None else captured.run.path),
        study_folder(captured.run, CollapseResult.study, settings, inputs, work) as folder,
    ):
        measured = _of_model if models else _of_stored
        result = _summarize(
            captured, settings, models.get("trained"), *measured(captured, settings, models, folder, work)
        )
        folder.save(result)
    return result


def _models(
    captured: Capture, model: Model | bool | None, control: Model | bool | None, loader: Loader, seed: int, work: Work
) -> dict[str, Model]:
    """The trained and the random network, as far as they can be had; raises where nothing is left to measure."""
    own, _ = models_of(captured, model, None, loader, seed, "without its model")
    if own is not None:
        _, other = models_of(captured, None, control, loader, seed, "")
        return {"trained": own} | ({} if other is None else {"random": other})
    if control and model:
        work.say("no random weights beside it: they need the model")
    captured.need_whole("the collapse study without the model")
    if not {"hidden", "probs"} & set(captured.kept):
        raise InputError(
            f"without its model, this study needs hidden states or probabilities, and the capture keeps "
            f"{', '.join(captured.kept)}; capture again with --keep hidden,probs"
        )
    return {}


def _unit(folder: Folder, captured: Capture, settings: Mapping[str, Any], name: str, i: int, *facts: Any) -> Path:
    number = captured.numbers[i]
    known = (settings["block"], captured.content(settings["batches"]).get(f"batch {number}"))
    return folder.unit(f"{name.replace(',', '').replace(' ', '-')}-{number:04d}", *known, *facts)


def _of_stored(
    captured: Capture, settings: Mapping[str, Any], models: Mapping[str, Model], folder: Folder, work: Work
) -> tuple[Units, list[str]]:
    """Measure what the capture kept."""
    units = {
        f"input {i}": (_unit(folder, captured, settings, "stored", i), captured, i, settings["block"])
        for i in range(settings["batches"])
    }
    run_units(_stored_unit, units, work, work.stage("measuring", len(units)))
    notes = ["The model was not run: there are no controls, and no bound was computed."]
    notes += [
        f"The capture does not keep {what}: measures that need it were left out."
        for what in ("hidden", "probs")
        if what not in captured.kept
    ]
    return {"standard": [read_arrays(unit[0])[0] for unit in units.values()]}, notes


def _stored_unit(path: Path, captured: Capture, i: int, block: str) -> None:
    batch = captured.batch(i)
    mask = batch.info["blocks"][block]["mask"]
    entropies = {}
    for layer in batch.info["layers"][block] if "probs" in captured.kept else ():
        maps = batch.read(f"probs/{block}.{layer}").astype(np.float64)
        maps /= maps.sum(axis=-1, keepdims=True)  # of float16 rows
        entropies[int(layer)] = attention_entropy(maps, present_of(mask, maps.shape[1:]))
    name = f"hidden/{block.removesuffix('.cross')}"
    states = batch.read(name) if name in batch.names else None
    floor = (
        {}
        if states is None
        else {"floor": np.array(max(roundoff(float(np.finfo(np.float32).eps)), np.finfo(states.dtype).eps))}
    )
    write_arrays(path, measures(states, captured.input_ids(i), entropies) | floor)


def _of_model(
    captured: Capture, settings: Mapping[str, Any], models: Mapping[str, Model], folder: Folder, work: Work
) -> tuple[Units, list[str]]:
    """Run the model on the inputs in every variant; one that the model cannot take is left out and noted."""
    from headscape.attention.samples import replayed
    from headscape.attention.threads import torch_threads
    from headscape.studies.collapse.variants import in_double, measure, variants_of

    hidden, seed = settings["alpha_hidden"], settings["seed"]
    variants = variants_of(hidden, "random" in models, settings["cells"] and hidden > 0)
    samples = replayed(models["trained"], captured)[: settings["batches"]]
    steps = work.stage("measuring", len(variants) * len(samples))
    found: Units = {}
    left_out: dict[str, str] = {}
    with torch_threads(work.asked_threads):
        for weights, own in models.items():
            mine = [variant for variant in variants if variant.weights == weights]
            facts = own.fingerprint, settings["float64"]
            paths = {
                (variant, i): _unit(folder, captured, settings, variant.name, i, *facts, asdict(variant), seed)
                for variant in mine
                for i in range(len(samples))
            }
            missing = any(not path.exists() for path in paths.values())
            network = in_double(own) if settings["float64"] and missing else own
            units = {
                f"{variant.name}, input {i}": (path, network, samples[i], variant, settings["block"], seed + i)
                for (variant, i), path in paths.items()
            }
            run_units(measure, units, work, steps)
            for variant in mine:
                read = [read_arrays(paths[variant, i]) for i in range(len(samples))]
                why = next((said["left out"] for _, said in read if "left out" in said), None)
                if why is None:
                    found[variant.name] = [arrays for arrays, _ in read]
                else:
                    left_out[variant.name] = why
                    work.say(f"'{variant.name}' is left out: {why}")
    return found, [f"'{name}' was left out: {why}" for name, why in left_out.items()]


def _summarize(
    captured: Capture, settings: Mapping[str, Any], model: Model | None, found: Units, notes: Sequence[str]
) -> CollapseResult:
    block = settings["block"]
    first = next(iter(found.values()))[0]

    def stacked(name: str) -> Array | None:
        """By variant and input."""
        return np.array([[unit[name] for unit in units] for units in found.values()]) if name in first else None

    sites = () if model is None else [site for site in model.sites if site.block == block]
    heads = [head for site in sites for head in site.heads] or captured.heads(block)
    floors, entropies = stacked("floor"), stacked("entropies")
    return CollapseResult(
        block=block,
        variants=tuple(found),
        heads=_heads_frame(heads, found),
        **{name: stacked(name) for name in ("residual", "rank", "similarity", "different", "entropy")},
        entropies=None if entropies is None else entropies.sum(axis=1),
        floor=None if floors is None else floors.max(axis=1),
        bounds=_bounds_frame(found),
        causal=captured.info["blocks"][block]["mask"] == "causal",
        notes=tuple(notes),
        settings=dict(settings),
    )


def _heads_frame(heads: Sequence[Any], found: Units) -> pd.DataFrame:
    """One row per head: entropy by variant, with its interval for the model itself, and D."""
    frame = pd.DataFrame(heads, columns=["block", "layer", "head"])
    for variant, units in found.items():
        if "entropy" in units[0]:
            values = np.array([unit["entropy"] for unit in units])
            frame[entropy_column(variant)] = values.mean(axis=0)
            if variant == "standard":
                spans = [mean_interval(column) for column in values.T]
                frame["entropy_low"], frame["entropy_high"] = (
                    [getattr(s, end) for s in spans] for end in ("low", "high")
                )
                frame["n"] = len(units)
        if "spread" in units[0]:
            name = "D" if variant == "standard" else f"D_{variant}"
            frame[name] = np.median([unit["spread"] for unit in units], axis=0)
    return frame


def _bounds_frame(found: Units) -> pd.DataFrame:
    """One row per variant, input and layer whose bounds are known."""
    rows = [
        {"arm": variant, "input": i, "layer": layer} | named_bounds(row)
        for variant, units in found.items()
        for i, unit in enumerate(units)
        for layer, row in enumerate(unit.get("bounds", ()))
        if np.isfinite(row[0])
    ]
    return pd.DataFrame(rows)
