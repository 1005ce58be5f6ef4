"""Is a head invariant to softmax? Every head organised, decomposed, compared, and put back into the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.captures import Capture, open_capture
from headscape.errors import InputError
from headscape.geometry.questionnaire import Questionnaire
from headscape.results import bootstrap
from headscape.runs import Run
from headscape.studies.softmax.head import COLUMNS, Head, as_probabilities, log_attention, organise
from headscape.studies.softmax.result import HEAD_VARIANTS, SoftmaxResult, within
from headscape.studies.softmax.units import Layer, change_all, change_layer, measure_layer, read_unit, trees_of
from headscape.studies.work.engines import Engine, engine_of
from headscape.studies.work.old import Steps, block_of, cores, reachable, run_units, source_of, study_folder
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.studies.softmax.function import Bench

__all__ = ["check_scores", "head_maps", "softmax"]

Array = npt.NDArray[Any]
SHOWN = 3
"""Heads drawn when none are named: the one nearest to softmax, the median and the farthest."""


def softmax(
    source: Capture | Run | str | Path,
    *,
    heads: Sequence[HeadId | str] | None = None,
    block: str | None = None,
    batches: int = 2,
    questionnaire: Questionnaire | None = None,
    model: Model | None = None,
    control: Model | None = None,
    tolerance: float = 0.01,
    show: Sequence[HeadId | str] = (),
    jobs: int = 1,
    threads: int | None = None,
    engine: Engine | str = "local",
    resume: bool = False,
    random_state: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], None] = lambda _: None,
) -> SoftmaxResult:
    """Ask of every head whether it is invariant to softmax: pointwise, by the condition of the proof, and in the model.

    Parameters
    ----------
    source
        A capture or a run directory that keeps scores; with a directory each layer is stored when done, and a killed
        study goes on.
    heads, block
        Which heads, by default all of the block; the block has to be named where there are several.
    batches
        How many of the captured inputs are used, the first ones.
    questionnaire
        Settings of the organisation; the default otherwise.
    model
        The model of the capture: decompositions are put back into its forward pass. Without it that is left out.
    control
        The same architecture with random weights, shown the first input.
    tolerance
        Largest change, of loss in nats or of the final hidden state in its norm, that a head may cause and pass.
    show
        Heads whose maps are kept for figures 1 and 2; by default three, from near to softmax to far from it.
    jobs, threads
        Layers at a time, and threads within one. Neither changes a byte of what is measured of the maps.
    engine
        "local", "dask" or an engine of `headscape.studies.work.engines`: who decomposes the layers. The model, if any, runs
        in this process.
    resume
        Raise instead of starting anew where the study was made with other settings.

    Raises
    ------
    HeadscapeError
        When all is tried, if layers failed; those done are kept.
    InputError
        If scores were not captured (the message says how), heads do not exist, or there is one token.
    """
    if jobs < 1 or batches < 1:
        raise InputError(f"jobs and batches must be at least 1, not {jobs} and {batches}")
    worker = engine_of(engine, jobs)
    if not tolerance > 0:
        raise InputError(f"the tolerance must be above 0, not {tolerance}")
    captured = open_capture(source)
    chosen_block = block_of(captured, block)
    check_scores(captured)
    chosen = _chosen(captured, chosen_block, heads)
    shown = _chosen(captured, chosen_block, show) if show else []
    n = min(batches, len(captured))
    settings = (questionnaire or Questionnaire()).get_params()
    settings.pop("n_jobs")
    shared, alone = worker.threads(threads), threads or cores()  # the model runs when no job does
    facts = {
        "block": chosen_block,
        "heads": None if len(chosen) == len(captured.heads(chosen_block)) else [str(head) for head in chosen],
        "seed": random_state,
        "questionnaire": settings,
    }  # more inputs only add files
    where = None if captured.run is None else captured.run.path
    with (
        worker.started([where], say),
        study_folder(captured.run, SoftmaxResult.study, facts, say, resume) as folder,
    ):
        study = _Study(captured, source_of(captured), chosen_block, chosen, n, folder)
        steps = Steps(progress, study.n_steps(model is not None, control is not None))
        units = {
            f"layer {layer.place} on batch {i}": (layer, path, settings, shared, random_state + i)
            for i in range(n)
            for layer, path in zip(study.layers(i), study.maps(i), strict=True)
        }
        run_units(measure_layer, units, worker, steps, say)
        if control is not None:
            from headscape.attention.capture import recapture

            paths = study.controls()
            if not all(path.exists() for path in paths):
                say("showing the first input to random weights")
                first = Capture.in_memory([captured.batch(0)])
                other = recapture(control, first, keep=("scores",), dtype="float32")
                with reachable(other, worker, folder) as source:
                    layers = _Study(other, source, chosen_block, chosen, 1, folder).layers(0)
                    units = {
                        f"control of layer {layer.place}": (layer, path, settings, shared, random_state)
                        for layer, path in zip(layers, paths, strict=True)
                    }
                    run_units(measure_layer, units, worker, steps, say)
        unit = "" if model is None else _change(study, model, alone, steps, say)
        result = study.summary(unit, control is not None, tolerance, shown, facts | {"batches": n})
    if captured.run is not None:
        result.save(captured.run.path / result.study)
    return result


def check_scores(captured: Capture) -> None:
    """Raise an `InputError` when a capture has no scores."""
    captured.need_whole("the softmax study")
    if "scores" not in captured.kept:
        raise InputError(
            f"this study needs scores, what softmax sees, and the capture keeps {', '.join(captured.kept)}; capture "
            "again with --keep probs,scores"
        )


def head_maps(
    source: Capture | Run | str | Path, head: HeadId | str, batch: int = 0, questionnaire: Questionnaire | None = None
) -> dict[str, Array]:
    """The matrices of figures 1 and 2 for any head: softmax as it is and organised, and what stands for it, organised.

    Keys: original, softmax, paraproduct, corollary (the last three in organised order; the last two clipped at 0 and
    renormalised), query_order, key_order.
    """
    captured = open_capture(source)
    wanted = HeadId.parse(head) if isinstance(head, str) else head
    found = _chosen(captured, wanted.block, [wanted])[0]
    scores, present = Layer(captured, batch, found.block, found.layer, (found.head,)).load()
    g = log_attention(scores[0], present)
    settings = (questionnaire or Questionnaire()).get_params()
    return _figure_maps(Head(g, present, organise(g, present, settings)))


def _figure_maps(head: Head) -> dict[str, Array]:
    orders = {"query_order": head.trees.query.order, "key_order": head.trees.key.order}
    organised = np.ix_(*orders.values())
    maps = {name: as_probabilities(head.approximation(name), head.present) for name in ("paraproduct", "corollary")}
    maps["softmax"] = head.softmax
    out = {name: found[organised].astype(np.float32) for name, found in maps.items()}
    return out | {"original": head.softmax.astype(np.float32)} | {k: v.astype(np.int32) for k, v in orders.items()}


def _change(study: _Study, model: Model, threads: int, steps: Steps, say: Callable[[str], None]) -> str:
    """Put the maps back into the model, input by input; return the unit, '' where the model cannot be asked."""
    import torch

    from headscape.studies.softmax.function import Bench, inputs_of, unit_of

    try:
        samples = inputs_of(model, study.captured, study.block)
    except InputError as error:
        say(f"no functional test: {error}")
        return ""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for i in range(study.n):
            made: list[Bench] = []

            def bench(i: int = i, made: list[Bench] = made) -> Bench:
                if not made:  # only when something is left to do
                    made.append(Bench(model, samples[i]))
                return made[0]

            layers, maps = study.layers(i), study.maps(i)
            for layer, file, path in zip(layers, maps, study.changes(i), strict=True):
                change_layer(bench, layer, file, path)
                steps.one()
            change_all(bench, layers, maps, study.all_changes(i))
            steps.one()
    finally:
        torch.set_num_threads(before)
    return unit_of(model)


@dataclass(frozen=True)
class _Study:
    """Which heads on which inputs, and the files of what was found of them."""

    captured: Capture
    source: Capture | Path
    block: str
    heads: list[HeadId]
    n: int
    folder: Path

    def layers(self, i: int) -> list[Layer]:
        """The layers that have chosen heads, on input i."""
        by_layer: dict[int, list[int]] = {}
        for head in self.heads:
            by_layer.setdefault(head.layer, []).append(head.head)
        return [Layer(self.source, i, self.block, n, tuple(h)) for n, h in by_layer.items()]

    def _files(self, name: str) -> list[Path]:
        return [self.folder / f"{name}-{layer.layer:04d}.safetensors" for layer in self.layers(0)]

    def maps(self, i: int) -> list[Path]:
        return self._files(f"maps-{i:04d}")

    def controls(self) -> list[Path]:
        return self._files("control")

    def changes(self, i: int) -> list[Path]:
        return self._files(f"changes-{i:04d}")

    def all_changes(self, i: int) -> Path:
        return self.folder / f"changes-{i:04d}-all.safetensors"

    def n_steps(self, with_model: bool, with_control: bool) -> int:
        n_layers = len(self.layers(0))
        return self.n * n_layers + with_control * n_layers + with_model * self.n * (n_layers + 1)

    def table(self, values: Array, changes: Array | None, seed: int) -> pd.DataFrame:
        """One row a head: means over inputs, and the changes with their intervals."""
        frame = pd.DataFrame(self.heads, columns=["block", "layer", "head"])
        frame = pd.concat([frame, pd.DataFrame(_mean(values).T, columns=list(COLUMNS))], axis=1)
        if changes is not None:
            for v, name in enumerate(HEAD_VARIANTS):
                intervals = [bootstrap(column, random_state=seed) for column in changes[:, v].T]
                frame[f"change_{name}"] = [interval.value for interval in intervals]
                frame[f"change_{name}_low"] = [interval.low for interval in intervals]
                frame[f"change_{name}_high"] = [interval.high for interval in intervals]
        frame["note"] = [note for path in self.maps(0) for note in read_unit(path)[1]]
        return frame

    def summary(
        self, unit: str, with_control: bool, tolerance: float, shown: list[HeadId], facts: Mapping[str, Any]
    ) -> SoftmaxResult:
        """Read the files and put the result together."""

        def gather(files: list[Path], name: str) -> list[Array]:
            return [read_unit(path)[0][name] for path in files]

        inputs = range(self.n)
        values = np.array([np.concatenate(gather(self.maps(i), "values")).T for i in inputs])
        each = layers = every = base = None
        if unit:
            each = np.array([np.concatenate(gather(self.changes(i), "heads"), axis=1) for i in inputs])
            layers = np.array([np.stack(gather(self.changes(i), "layer"), axis=1) for i in inputs])
            totals = [read_unit(self.all_changes(i))[0] for i in inputs]
            every, base = np.array([t["changes"] for t in totals]), np.array([t["base"][0] for t in totals])
        frame = self.table(values, each, facts["seed"])
        if unit:
            frame["invariant"] = np.where(within(frame, "corollary", tolerance), "yes", "no")
        return SoftmaxResult(
            block=self.block,
            unit=unit,
            tolerance=tolerance,
            heads=frame,
            values=values,
            scales=np.concatenate(gather(self.maps(0), "scales")).mean(axis=0),
            control=np.concatenate(gather(self.controls(), "values")).T if with_control else None,
            changes_head=each,
            changes_layer=layers,
            changes_all=every,
            base=base,
            maps={str(head): self._maps_of_head(head) for head in shown or _exemplars(frame)},
            tokens=self._tokens(),
            settings=dict(facts),
        )

    def _tokens(self) -> dict[str, list[str]]:
        facts = self.captured.batch(0).info["blocks"][self.block]
        return {axis: [str(t) for t in facts.get(f"{axis}_tokens") or []] for axis in ("query", "key")}

    def _maps_of_head(self, head: HeadId) -> dict[str, Array]:
        layers = {layer.layer: k for k, layer in enumerate(self.layers(0))}
        layer, path = self.layers(0)[layers[head.layer]], self.maps(0)[layers[head.layer]]
        scores, present = layer.load()
        k = layer.heads.index(head.head)
        return _figure_maps(Head(log_attention(scores[k], present), present, trees_of(path, k)))


def _exemplars(frame: pd.DataFrame) -> list[HeadId]:
    order = frame["corollary_error"].sort_values(kind="stable").index
    places = np.unique(np.rint(np.linspace(0, len(order) - 1, SHOWN)).astype(int))
    return [HeadId(*frame.loc[order[p], ["block", "layer", "head"]]) for p in places]


def _mean(values: Array) -> Array:
    """Mean over inputs, NaN left out."""
    known = np.isfinite(values)
    total = np.where(known, values, 0).sum(axis=0)
    count = known.sum(axis=0)
    mean: Array = np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
    return mean


def _chosen(captured: Capture, block: str, heads: Sequence[HeadId | str] | None) -> list[HeadId]:
    known = captured.heads(block)
    if heads is None:
        return known
    wanted = {HeadId.parse(head) if isinstance(head, str) else HeadId(*head) for head in heads}
    if not wanted:
        raise InputError("no heads given; name some or leave the choice out for all")
    missing = sorted(wanted - set(known))
    if missing:
        raise InputError(f"head {missing[0]} was not captured in block {block!r} ({len(known)} heads were)")
    return [head for head in known if head in wanted]
