"""Is a head invariant to softmax? Every head organized, decomposed, compared, and put back into the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.captures import Capture, open_capture
from headscape.checks import finite, integer, positive
from headscape.checks import seed as check_seed
from headscape.compiled import free_threads
from headscape.errors import InputError
from headscape.geometry.questionnaire import SILENT, Questionnaire
from headscape.intervals import mean_interval
from headscape.runs import Run
from headscape.studies.softmax.head import COLUMNS, Head, as_probabilities, log_attention, organize
from headscape.studies.softmax.result import ALL_VARIANTS, HEAD_VARIANTS, SoftmaxResult, standing
from headscape.studies.softmax.units import Layer, change_all, change_layer, measure_layer, read_unit, trees_of
from headscape.studies.work.engines import LocalEngine
from headscape.studies.work.folder import Folder, working_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import Loader, models_of
from headscape.studies.work.sentences import ENOUGH
from headscape.studies.work.units import reachable, run_units
from headscape.tensor import HeadId, named_heads

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.samples import Sample

__all__ = ["check_scores", "head_maps", "softmax"]

Array = npt.NDArray[Any]
SHOWN = 3
"""Heads drawn when none are named: the one closest to softmax, the median and the farthest."""


def softmax(
    source: Capture | Run | str | Path,
    *,
    heads: Sequence[HeadId | str] | None = None,
    block: str | None = None,
    batches: int = ENOUGH,
    questionnaire: Questionnaire | None = None,
    model: Model | bool | None = True,
    control: Model | bool | None = None,
    loader: Loader | None = None,
    tolerance: float = 0.01,
    show: Sequence[HeadId | str] = (),
    random_state: int = 0,
    **how: Unpack[How],
) -> SoftmaxResult:
    """Test whether every head is invariant to softmax: pointwise, by the condition of the proof, and in the model.

    The claim is that of Fasina, Pohle, Su and Coifman (Intrinsic and Extrinsic Organized Attention, 2025).

    Parameters
    ----------
    source
        A capture or run directory that keeps scores; in a directory each layer is stored when done, and a killed study
        resumes.
    heads, block
        Which heads, by default all of the block; the block has to be named where there are several.
    batches
        How many of the captured inputs to use, at most; the first ones. Fewer than 8 give a verdict only if requested here.
    questionnaire
        Its settings organize every head; the default ones otherwise.
    model, control, loader
        The decompositions are put back into the forward pass of the model; True loads the run's own. The control is the
        same architecture with random weights, given the first input; True draws them. `loader` says how they are loaded.
    tolerance
        Largest change, of the loss in nats or of the final hidden state relative to its norm, with which a head passes.
    show
        Heads whose maps are kept for figures 1 and 2; by default three, from close to softmax to far from it.
    how
        jobs (layers at a time), threads, engine, resume, progress, say: see `headscape.studies.work.how.How`.

    Raises
    ------
    InputError
        If scores were not captured (the message says how), heads do not exist, or there is only one token.
    HeadscapeError
        After all layers were tried, if some failed; finished ones are kept.

    >>> hs.softmax(run, heads=["decoder.0.1"], batches=1, model=model).headline()
    'We cannot tell whether heads are invariant to softmax (Fasina, Pohle, Su and Coifman, 2025)'
    """
    integer("batches", batches, low=1)
    positive("tolerance", finite("tolerance", tolerance))
    check_seed(random_state)
    work = Work.of(**how)
    captured = open_capture(source)
    chosen_block = captured.block(block)
    check_scores(captured)
    chosen = named_heads(captured.heads(chosen_block), heads)
    facts = {
        **{"block": chosen_block, "heads": [str(head) for head in chosen], "batches": batches, "tolerance": tolerance},
        **{"show": [str(head) for head in named_heads(chosen, show)] if show else [], "seed": random_state},
        "questionnaire": _settings(questionnaire or Questionnaire()),
    }
    n = min(batches, len(captured))
    for layer in (layer for i in range(n) for layer in _layers(captured, i, chosen)):
        layer.load()  # what cannot be decomposed is refused before anything is written
    loader = loader or Loader(say=work.say)
    own, other = models_of(captured, model, control, loader, random_state, "no functional test", work.warn)
    samples = [] if own is None else _samples(own, captured, chosen_block)
    named = {"model": own, "control": other}
    inputs = captured.content(n) | {k: [one.fingerprint, one.dtype] for k, one in named.items() if one is not None}
    with working_folder(captured.run, SoftmaxResult.study, facts, inputs, work) as folder:
        study = _Study(captured, chosen, n, facts, folder)
        maps = study.measured(work)
        controls = [] if other is None else study.control(other, work)
        unit, changes = ("", []) if own is None else study.changes(own, samples, maps, work)
        result = study.result(maps, controls, unit, changes)
        folder.save(result)
    return result


def check_scores(captured: Capture) -> None:
    """Raise an `InputError` when a capture has no scores."""
    captured.need_whole("the softmax study")
    if "scores" not in captured.kept:
        raise InputError(
            f"this study needs scores, the input of softmax, and the capture keeps {', '.join(captured.kept)}; capture "
            "again with --keep probs,scores"
        )


def head_maps(
    source: Capture | Run | str | Path, head: HeadId | str, batch: int = 0, questionnaire: Questionnaire | None = None
) -> dict[str, Array]:
    """The matrices of figures 1 and 2 for any head.

    Keys: original (softmax in the order of the tokens); softmax, paraproduct, corollary (in organized order, the last
    two clipped at 0 and renormalized); query_order, key_order.
    """
    captured = open_capture(source)
    wanted = HeadId.parse(head, captured.blocks) if isinstance(head, str) else head
    (layer,) = _layers(captured, batch, named_heads(captured.heads(wanted.block), [wanted]))
    scores, present = layer.load()
    g = log_attention(scores[0], present)
    return _figure_maps(Head(g, present, organize(g, present, (questionnaire or Questionnaire()).get_params())))


def _figure_maps(head: Head) -> dict[str, Array]:
    orders = {"query_order": head.trees.query.order, "key_order": head.trees.key.order}
    organized = np.ix_(*orders.values())
    maps = {name: as_probabilities(head.approximation(name), head.present) for name in ("paraproduct", "corollary")}
    maps["softmax"] = head.softmax
    out = {name: found[organized].astype(np.float32) for name, found in maps.items()}
    return out | {"original": head.softmax.astype(np.float32)} | {k: v.astype(np.int32) for k, v in orders.items()}


def _settings(questionnaire: Questionnaire) -> dict[str, Any]:
    questionnaire.settings_for(2)  # a wrong one is said before anything is written
    return {name: value for name, value in questionnaire.get_params().items() if name not in SILENT}


def _samples(model: Model, captured: Capture, block: str) -> list[Sample]:
    from headscape.attention.samples import replayed

    return replayed(model, captured, block)


def _layers(source: Capture | Path, batch: int, heads: Sequence[HeadId]) -> list[Layer]:
    """The layers that have these heads of one block, on an input."""
    by_layer: dict[int, list[int]] = {}
    for head in heads:
        by_layer.setdefault(head.layer, []).append(head.head)
    return [Layer(source, batch, heads[0].block, n, tuple(found)) for n, found in by_layer.items()]


@dataclass(frozen=True)
class _Study:
    """Which heads on which inputs, the settings of the study, and where its files are."""

    captured: Capture
    heads: list[HeadId]
    n: int
    facts: Mapping[str, Any]
    folder: Folder

    def _units(self, name: str, source: Capture | Path, batch: int, threads: int, *weights: str) -> dict[str, Any]:
        """The units that decompose the layers on one input; `weights` are those of a control."""
        number, settings = self.captured.numbers[batch], self.facts["questionnaire"]
        content, seed = self.captured.content(self.n).get(f"batch {number}"), self.facts["seed"] + number
        units = {}
        for layer in _layers(source, batch, self.heads):
            facts = (layer.place, layer.heads, settings, seed, content, COLUMNS, *weights)
            path = self.folder.unit(f"{name}-{number:04d}-{layer.layer:04d}", *facts)
            units[f"{name} of layer {layer.place}, input {number}"] = (path, layer, settings, threads, seed)
        return units

    def measured(self, work: Work) -> list[list[Path]]:
        """Decompose every layer on every input; the files, by input."""
        with reachable(self.captured, work.engine, self.folder.units) as source:
            units = [self._units("maps", source, i, work.threads) for i in range(self.n)]
            every = {name: unit for each in units for name, unit in each.items()}
            run_units(measure_layer, every, work, work.stage("decomposing", len(every)))
        return [[unit[0] for unit in each.values()] for each in units]

    def control(self, model: Model, work: Work) -> list[Path]:
        """Decompose the layers of random weights on the first input; the files."""
        from headscape.attention.capture import recapture

        def units(source: Capture | Path) -> dict[str, Any]:
            return self._units("control", source, 0, work.threads, model.fingerprint, model.dtype)

        paths = [unit[0] for unit in units(self.captured).values()]
        if not all(path.exists() for path in paths):
            work.say("giving the first input to random weights")
            other = recapture(model, Capture.in_memory([self.captured.batch(0)]), keep=("scores",), dtype="float32")
            with reachable(other, work.engine, self.folder.units) as source:
                run_units(measure_layer, units(source), work, work.stage("random weights", len(paths)))
        return paths

    def changes(
        self, model: Model, samples: Sequence[Sample], maps: Sequence[Sequence[Path]], work: Work
    ) -> tuple[str, list[list[Path]]]:
        """Put the maps back into the model; the unit of a change, and the files by input: each layer, then all heads."""
        from headscape.attention.replacing import Intervention, effect_unit
        from headscape.attention.threads import torch_threads

        def path(i: int, name: str, *files: Path) -> Path:
            made_of = [*(file.name for file in files), *ALL_VARIANTS]
            return self.folder.unit(
                f"changes-{self.captured.numbers[i]:04d}-{name}", made_of, model.fingerprint, model.dtype
            )

        alone = replace(work, engine=LocalEngine(1))  # the model runs here, when no job does
        found = []
        with torch_threads(work.asked_threads or free_threads()):
            steps = work.stage("replacing softmax in the model", self.n * (len(maps[0]) + 1))
            for i, files in enumerate(maps):
                intervention = cache(partial(Intervention, model, samples[i]))  # made only when something is left to do
                layers = _layers(self.captured, i, self.heads)
                each = {
                    f"layer {layer.place}, input {i}": (path(i, f"{layer.layer:04d}", file), intervention, layer, file)
                    for layer, file in zip(layers, files, strict=True)
                }
                every = (path(i, "all", *files), intervention, layers, files)
                run_units(change_layer, each, alone, steps)
                run_units(change_all, {f"all heads, input {i}": every}, alone, steps)
                found.append([unit[0] for unit in (*each.values(), every)])
        return effect_unit(model), found

    def result(
        self, maps: Sequence[Sequence[Path]], controls: Sequence[Path], unit: str, changes: Sequence[Sequence[Path]]
    ) -> SoftmaxResult:
        """Read the files and put the result together."""

        def gather(files: Sequence[Path], name: str) -> list[Array]:
            return [read_unit(path)[0][name] for path in files]

        values = np.array([np.concatenate(gather(files, "values")).T for files in maps])
        by_head = np.array([np.concatenate(gather(files[:-1], "heads"), axis=1) for files in changes])
        by_layer = np.array([np.stack(gather(files[:-1], "layer"), axis=1) for files in changes])
        at_once, base = (np.array([gather(files[-1:], name)[0] for files in changes]) for name in ("changes", "base"))
        frame = _table(self.heads, values, by_head if changes else None, self.facts["tolerance"])
        frame["note"] = [note for path in maps[0] for note in read_unit(path)[1]]
        shown = [HeadId.parse(head) for head in self.facts["show"]] or _exemplars(frame)
        tokens = self.captured.batch(0).info["blocks"][self.facts["block"]]
        return SoftmaxResult(
            block=self.facts["block"],
            unit=unit,
            tolerance=self.facts["tolerance"],
            heads=frame,
            values=values,
            scales=np.concatenate(gather(maps[0], "scales")).mean(axis=0),
            control=np.concatenate(gather(controls, "values")).T if controls else None,
            changes_head=by_head if changes else None,
            changes_layer=by_layer if changes else None,
            changes_all=at_once if changes else None,
            base=base[:, 0] if changes else None,
            maps={str(head): self._drawn(head, maps[0]) for head in shown},
            tokens={axis: [str(t) for t in tokens.get(f"{axis}_tokens") or []] for axis in ("query", "key")},
            settings={**self.facts, "of": len(self.captured.heads(self.facts["block"]))},
        )

    def _drawn(self, head: HeadId, files: Sequence[Path]) -> dict[str, Array]:
        """The matrices of figures 1 and 2 on the first input."""
        layers = _layers(self.captured, 0, self.heads)
        layer, file = next(pair for pair in zip(layers, files, strict=True) if pair[0].layer == head.layer)
        scores, present = layer.load()
        k = layer.heads.index(head.head)
        return _figure_maps(Head(log_attention(scores[k], present), present, trees_of(file, k)))


def _table(heads: Sequence[HeadId], values: Array, changes: Array | None, tolerance: float) -> pd.DataFrame:
    """One row per head: means over inputs; exponents and changes with their intervals, and whether it passes."""
    means = np.ma.masked_invalid(values).mean(axis=0).filled(np.nan)
    columns = dict(zip(COLUMNS, means, strict=True)) | _ends("alpha", values[:, COLUMNS.index("alpha")])
    if changes is not None:
        for v, name in enumerate(HEAD_VARIANTS):
            columns |= {f"change_{name}": changes[:, v].mean(axis=0)} | _ends(f"change_{name}", changes[:, v])
    frame = pd.concat([pd.DataFrame(heads, columns=["block", "layer", "head"]), pd.DataFrame(columns)], axis=1)
    frame["n"] = len(values)  # inputs behind every interval
    if changes is not None:
        frame["invariant"] = standing(frame, "corollary", tolerance)
    return frame


def _ends(name: str, samples: Array) -> dict[str, Array]:
    """Both ends of the intervals of means over inputs (n_input, n_head)."""
    intervals = [mean_interval(each) for each in samples.T]
    return {f"{name}_{end}": np.array([getattr(each, end) for each in intervals]) for end in ("low", "high")}


def _exemplars(frame: pd.DataFrame) -> list[HeadId]:
    order = frame["corollary_error"].sort_values(kind="stable").index
    places = np.unique(np.rint(np.linspace(0, len(order) - 1, SHOWN)).astype(int))
    return [HeadId(*frame.loc[order[p], ["block", "layer", "head"]]) for p in places]
