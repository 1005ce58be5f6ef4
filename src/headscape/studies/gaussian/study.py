"""Do Gaussians explain attention? Scores, tokens and mixtures of a model, predicted from Gaussians and measured.

The statements are those of M. V. Wertich, "Exploring the Hidden Structures of Attention Layers in Transformer Models
through the Lens of Gaussian Distributions" (bachelor thesis, Johannes Gutenberg University Mainz, 2024).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.attention.layers import LayerData
from headscape.captures import Capture, open_capture
from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.compiled import free_threads
from headscape.errors import HeadscapeError, InputError
from headscape.fingerprints import digest
from headscape.runs import Run
from headscape.statistics.alignment import leading_directions
from headscape.statistics.cosines import cosines
from headscape.statistics.layer import COLUMNS, Reading
from headscape.storage import read_arrays, write_arrays
from headscape.studies.gaussian.layer import State, measure_layer, measure_state
from headscape.studies.gaussian.result import GaussianResult
from headscape.studies.work.folder import Folder, working_folder
from headscape.studies.work.handing import Handing, models_for
from headscape.studies.work.how import How, Steps, Work
from headscape.studies.work.models import Loader, models_of
from headscape.studies.work.units import reachable, run_units

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.samples import Sample
    from headscape.studies.gaussian.units import Task

__all__ = ["gaussian"]

Array = npt.NDArray[Any]
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128)
LEAST_TOKENS = 12
"""Fewest content tokens of an input."""
MAP_BYTES = 1 << 30
"""Memory for the maps of one layer over all inputs; where they need more, fewer inputs are used, with a message."""
NO_MODEL = "the model was not loaded"


def gaussian(
    source: Capture | Run | str | Path,
    *,
    model: Model | bool | None = True,
    control: Model | bool | None = None,
    loader: Loader | None = None,
    block: str | None = None,
    batches: int = 10,
    temperatures: bool = False,
    random_state: int = 0,
    **how: Unpack[How],
) -> GaussianResult:
    """Compare a model with its Gaussians: scores, tokens at a distance, next tokens, and mixtures by depth.

    Parameters
    ----------
    source
        A capture or a run directory; in a directory each layer is stored when done, and a killed study resumes.
    model
        The model of the capture. All inputs are run again, at once, and each layer is measured after it has run. True
        loads the run's own model where possible. Without a model only the rank of the maps and, if hidden states were
        kept, tokens at a distance are measured.
    control
        The same architecture with random weights, run on the same inputs. True draws them.
    loader
        How the run's model is loaded (device, number type, online).
    block
        Which block of self-attention, where there are several.
    batches
        How many of the captured inputs are used, the first ones. With fewer than 8 nothing is decided.
    temperatures
        Also halve and double the scores of one head at a time, on eight inputs: how much a head's temperature matters.
    how
        jobs (layers, or versions of the model, at a time), threads, engine, resume, progress, say: see
        `headscape.studies.work.how.How`.

    Raises
    ------
    InputError
        If there is neither a model nor anything kept that could be measured, the inputs are too short or of different
        lengths, or the model is not that of the capture.

    >>> result = hs.gaussian(run, model=model, batches=2)
    >>> finding = next(finding for finding in result.findings() if finding.claim == "gaussian.scores")
    >>> finding.verdict, finding.judgement.why
    ('cannot tell', '2 of the 8 inputs this takes; capture more, or use more --batches')
    """
    work = Work.of(**how)
    integer("batches", batches, low=1)
    check_seed(random_state)
    captured = open_capture(source)
    chosen = captured.block(block)
    if chosen.endswith(".cross"):
        raise InputError(
            f"{chosen} is attention between two texts; this study needs self-attention: choose another block"
        )
    if control and not model:
        raise InputError("random weights are measured beside the model; leave out --random-weights, or allow the model")
    without = "only what needs no model is measured"
    loader = loader or Loader(say=work.say)
    own, other = models_of(captured, model, control, loader, random_state, without, work.warn)
    n = min(batches, len(captured)) if own is None else _fitting(captured, chosen, batches, work)
    facts = {"block": chosen, "batches": n, "seed": random_state} | ({"temperatures": True} if temperatures else {})
    asked = _kept(captured, facts) if own is None else _inputs(own, captured, facts)
    models = {name: one.fingerprint for name, one in (("model", own), ("control", other)) if one is not None}
    with working_folder(captured.run, GaussianResult.study, facts, captured.content(n) | models, work) as folder:
        result = _Study(captured, asked, facts, folder, work).run(own, other)
        folder.save(result)
    return result


def _fitting(captured: Capture, block: str, batches: int, work: Work) -> int:
    """How many inputs fit into memory: the maps of a layer are held for all of them."""
    n = min(batches, len(captured))
    n_token = len(captured.batch(0).tokens(block)[0])
    n_head = max(len(heads) for heads in captured.info["layers"][block].values())
    most = max(1, MAP_BYTES // max(1, n_head * n_token**2 * 4))
    if most < n:
        work.warn(f"{most} of {n} inputs are used: the maps of more would not fit into memory")
    return min(n, most)


@dataclass(frozen=True)
class _Asked:
    """The request, checked: how the inputs are read, the inputs to run again, and their token ids (None for images)."""

    n_token: int
    reading: Reading
    samples: Sequence[Sample] = ()
    ids: Array | None = None


def _reading(captured: Capture, facts: Mapping[str, Any], content: slice, n_token: int, **more: Any) -> Reading:
    causal = captured.info["blocks"][facts["block"]]["mask"] == "causal"
    n_content = len(range(n_token)[content])
    return Reading(content, causal, [r for r in DISTANCES if r <= n_content // 2], facts["seed"], **more)


def _kept(captured: Capture, facts: Mapping[str, Any]) -> _Asked:
    """Without the model: of what was kept."""
    captured.need_whole("the gaussian study without the model")
    if not {"probs", "hidden"} & set(captured.kept):
        raise InputError(
            "without the model this study needs probs or hidden states, and the capture keeps "
            f"{', '.join(captured.kept)}; capture again with --keep probs,hidden, or let it load the model"
        )
    batches = [captured.batch(i) for i in range(facts["batches"])]
    first = next(name for name in batches[0].names if name.startswith(("probs/", "hidden/")))
    lengths = {batch.read(first).shape[-2] for batch in batches}
    if len(lengths) > 1:
        raise InputError("the captured inputs differ in length; capture again without --keep-short")
    n_token = lengths.pop()
    return _Asked(n_token, _reading(captured, facts, slice(1, n_token), n_token))


def _inputs(model: Model, captured: Capture, facts: Mapping[str, Any]) -> _Asked:
    """With the model: the inputs, of which all tokens count but the first and special ones at the end."""
    from headscape.attention.watching import embedded
    from headscape.attention.weights import check_changeable, check_weights
    from headscape.studies.gaussian.units import ids_of, inputs_of

    samples = inputs_of(model, captured, facts["block"], facts["batches"])
    check_changeable(model.module, "the Gaussian study changes the model")
    check_weights(model.module)
    ids = ids_of(model, samples, facts["block"])
    n_token = stop = len(samples[0].tokens[facts["block"]][0])
    special = getattr(model.tokenizer, "all_special_ids", None) or []
    while ids is not None and stop > 1 and np.isin(ids[:, stop - 1], special).all():
        stop -= 1
    if stop - 1 < LEAST_TOKENS:
        raise InputError(
            f"an input has {max(stop - 1, 0)} tokens besides the first and special ones, the study needs "
            f"{LEAST_TOKENS}; capture with more --tokens"
        )
    if ids is not None and len(np.unique(ids[:, 1:stop])) == 1:
        raise InputError("the inputs repeat one token, which has no Gaussian; capture other text")
    angles = None if ids is None else cosines(embedded(model, ids))
    return _Asked(n_token, _reading(captured, facts, slice(1, stop), n_token, cosines=angles), samples, ids)


@dataclass(frozen=True)
class _Study:
    """What was asked, and where and how it is measured."""

    captured: Capture
    asked: _Asked
    facts: Mapping[str, Any]
    folder: Folder
    work: Work

    def unit(self, name: str, model: Model | None, *more: Any) -> Path:
        """The file of a unit."""
        of_model = None if model is None else [model.fingerprint, model.dtype]
        facts = {name: value for name, value in self.facts.items() if name != "temperatures"}  # a unit of its own
        return self.folder.unit(name, facts, self.captured.content(self.facts["batches"]), of_model, *more)

    def run(self, model: Model | None, control: Model | None) -> GaussianResult:
        """Measure layers and states, then versions by depth, then tokens."""
        from headscape.studies.gaussian.units import FEWER, Task, measure_temperature

        left_out = ["all that needs the model"] if model is None else []
        own, other = self._layers(model, ""), {} if control is None else self._layers(control, "control-")
        arrays: dict[str, Array] = {}
        neighbours: list[list[str]] = []
        if model is not None:
            models = {"model": model} | ({} if control is None else {"control": control})
            given, work = models_for(self.work, models)
            with reachable(self.captured, work.engine, self.folder.units) as source:
                same = (self.facts["block"], self.facts["batches"], self.asked.reading.content, self.facts["seed"])
                tasks = {name: Task(given[name], source, *same, work.threads) for name in models}
                arrays = self._depth(models, tasks, work, left_out)
                if self.facts.get("temperatures"):
                    path = self.unit("temperature", model, FEWER)
                    steps = work.stage("temperature of every head", 1)
                    run_units(measure_temperature, {"temperature": (path, tasks["model"])}, work, steps)
                    arrays |= read_arrays(path)[0]
                if self.asked.ids is None:
                    left_out.append("embeddings and next tokens: the inputs are not text")
                else:
                    more, neighbours = self._tokens(model, tasks["model"], work, left_out)
                    arrays |= more
        reading = self.asked.reading
        return GaussianResult(
            block=self.facts["block"],
            n_token=self.asked.n_token,
            causal=reading.causal,
            distances=list(reading.distances),
            arrays=arrays,
            neighbours=neighbours,
            settings={
                **self.facts,
                "inputs": self._inputs(),
                "content": [reading.content.start, reading.content.stop],
                "left_out": left_out,
            },
            **own,
            control=other.get("heads"),
            control_folds=other.get("folds"),
            control_information=other.get("information"),
        )

    def _inputs(self) -> list[str]:
        """A name for each input, the same for the same tokens or pixels; for the same attention, where that is all there is."""
        found = []
        for batch in map(self.captured.batch, range(self.facts["batches"])):
            given = [name for name in batch.names if "/" not in name] or batch.names[-1:]
            found.append(digest([batch.read(name).tobytes().hex() for name in sorted(given)])[:16])
        return found

    def _layers(self, model: Model | None, prefix: str) -> dict[str, Any]:
        """The table of heads, the same with inputs left out, and information between layers, as fields of the result."""
        block, n_input = self.facts["block"], self.facts["batches"]
        kept = self.captured.heads(block) if model is None else [h for site in model.sites for h in site.heads]
        heads = [head for head in kept if head.block == block]
        numbers = sorted({head.layer for head in heads}) if model is not None or "probs" in self.captured.kept else []
        layers = {n: self.unit(f"{prefix}layer-{n:04d}", model, COLUMNS) for n in numbers}
        n_depth = len(self._stored(0)) if model is None and "hidden" in self.captured.kept else 0
        n_depth = n_depth if model is None else 1 + len(numbers)
        depths = [self.unit(f"{prefix}state-{depth:04d}", model) for depth in range(n_depth)]
        beside = [] if model is None else self._beside(model)
        steps = self.work.stage(f"measuring {prefix}layers", len(layers) + len(depths))
        if all(path.exists() for path in (*layers.values(), *depths, *beside)):
            for _ in (*layers, *depths):
                steps.one()
        else:
            self._measure(model, prefix, layers, depths, steps)
        read = [read_arrays(path) for path in layers.values()]
        empty = np.full((1 + n_input if n_input > 1 else 1, len(heads), len(COLUMNS)), np.nan)
        table = np.concatenate([arrays["table"] for arrays, _ in read], axis=1) if read else empty
        frame = pd.DataFrame(heads, columns=["block", "layer", "head"])
        frame = pd.concat([frame, pd.DataFrame(table[0], columns=list(COLUMNS))], axis=1)
        notes = {n: said["note"] for n, (_, said) in zip(layers, read, strict=True)}
        frame["note"] = [notes.get(n, NO_MODEL) for n in frame["layer"]]
        states = [read_arrays(path)[0] for path in depths]
        fields = (("information", "information"), ("information_facts", "facts")) if states else ()
        information = {name: np.stack([one[part] for one in states]) for name, part in fields}
        return {"heads": frame, "folds": table[1:], **information}

    def _stored(self, i: int) -> Array:
        return self.captured.hidden(i, self.facts["block"])

    def _measure(
        self, model: Model | None, prefix: str, layers: Mapping[int, Path], depths: Sequence[Path], steps: Steps
    ) -> None:
        """Run the inputs and measure each layer after it has run, and the states; or what was kept of them."""
        given = (self.folder.units, self.work, steps, (self.asked.reading,))
        with Handing(measure_layer, *given) as measured:
            reads = {} if model is None else _directions(model, self.facts["block"])

            def take(data: LayerData) -> None:
                known = replace(data, leading=reads.get(data.layer, {}))
                measured.add(f"{prefix}layer {data.layer}", layers[data.layer], known)

            states = self._captured(layers, take) if model is None else self._watched(model, take)
        if len(states) != len(depths):
            raise HeadscapeError(f"the model does not return the states between its {len(layers)} layers")
        with Handing(measure_state, *given) as measured:
            for depth, (state, path) in enumerate(zip(states, depths, strict=True)):
                measured.add(f"{prefix}state {depth}", path, State(depth, state))

    def _beside(self, model: Model) -> list[Path]:
        """Files that the pass through the layers writes for others: the model as it is by depth, and what its head reads."""
        version = [self._version(model, {})] if _one_stack(model) is None else []
        return [*version, *([self._last(model)] if model.task == "causal-lm" else [])]

    def _version(self, model: Model, options: Mapping[str, Any]) -> Path:
        return self.unit("depth-divergence", model, options)

    def _last(self, model: Model) -> Path:
        return self.unit("last", model)

    def _watched(self, model: Model, take: Callable[[LayerData], None]) -> list[Array]:
        from headscape.attention.depth import precision
        from headscape.attention.threads import torch_threads
        from headscape.attention.watching import watch_layers
        from headscape.studies.gaussian.units import FEWER, Version

        version = Version(self.asked.reading.content, self.facts["seed"], {})
        follow = version.add if _one_stack(model) is None else None
        with torch_threads(self.work.asked_threads or free_threads()):
            watched = watch_layers(model, self.asked.samples, self.facts["block"], take, follow)
        if follow is not None:
            version.write(self._version(model, {}), precision(model))
        if model.task == "causal-lm":
            if watched.last is None:
                raise HeadscapeError(f"{model.source} does not return what its output head reads")
            write_arrays(self._last(model), {"last": watched.last[:FEWER]})
        return watched.states or []

    def _captured(self, layers: Mapping[int, Path], take: Callable[[LayerData], None]) -> list[Array]:
        batches = [self.captured.batch(i) for i in range(self.facts["batches"])]
        for n in layers:
            probs = np.stack([batch.read(f"probs/{self.facts['block']}.{n}").astype(np.float32) for batch in batches])
            take(LayerData(n, None, None, None, None, probs, None, None, float("nan"), NO_MODEL))
        if "hidden" not in self.captured.kept:
            return []
        return list(np.stack([self._stored(i) for i in range(len(batches))], axis=1))

    def _depth(
        self, models: Mapping[str, Model], tasks: Mapping[str, Task], work: Work, left_out: list[str]
    ) -> dict[str, Array]:
        """Spread of the tokens by depth for every version: arrays depth/NAME, position/NAME, floor/NAME."""
        from headscape.studies.gaussian.units import VERSIONS, measure_version

        if (why := _one_stack(models["model"])) is not None:
            left_out.append(f"versions by depth: {why}")
            return {}
        versions = [(name, "model", options) for name, options in VERSIONS.items()]
        if "control" in models:
            versions += [("random weights", "control", {}), ("random weights, no skip", "control", {"skip": False})]
        units = {name: (self._version(models[one], options), tasks[one], options) for name, one, options in versions}
        run_units(measure_version, units, work, work.stage("versions by depth", len(units)))
        found = {name: read_arrays(unit[0])[0] for name, unit in units.items()}
        return {f"{what}/{name}": array for name, arrays in found.items() for what, array in arrays.items()}

    def _tokens(self, model: Model, task: Task, work: Work, left_out: list[str]) -> tuple[dict[str, Array], Any]:
        """Embeddings and next tokens, and rows of nearest neighbours."""
        from headscape.studies.gaussian.units import measure_tokens

        if self.facts["batches"] < 2:
            left_out.append("the 1-gram table: there is no other input to count")
        if model.task != "causal-lm":
            left_out.append(f"the model's own next tokens: {model.source} predicts none")
        path = self.unit("tokens", model)
        run_units(measure_tokens, {"tokens": (path, task, self._last(model))}, work, work.stage("tokens", 1))
        arrays, said = read_arrays(path)
        return arrays, json.loads(said["neighbours"])


def _one_stack(model: Model) -> InputError | None:
    """Why a model has no versions by depth, if it has none."""
    from headscape.attention.depth import layers_and_outputs

    try:
        layers_and_outputs(model)
    except InputError as error:
        return error
    return None


def _directions(model: Model, block: str) -> dict[int, dict[str, Array]]:
    """The leading input directions of every head of a block, by layer and kind of weights, where all three are known.

    None for cross attention, whose keys and values read other inputs than its queries.
    """
    from headscape.attention.weights import parts_of, read

    found: dict[int, dict[str, Array]] = {}
    for part in [] if block.endswith("cross") else parts_of(model)[0]:
        if part.block == block and part.kind in ("q", "k", "v"):
            found.setdefault(part.layer, {})[part.kind] = leading_directions(part.by_head(read(model, part)))
    return {layer: kinds for layer, kinds in found.items() if len(kinds) == 3}
