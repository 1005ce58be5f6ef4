"""Do Gaussians explain attention? Scores, tokens and mixtures of a model, predicted from Gaussians and measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.captures import Capture, open_capture
from headscape.errors import HeadscapeError, InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.runs import Run
from headscape.statistics.mixture import energy_rank, position_share, token_spread
from headscape.studies.gaussian.layer import COLUMNS, INFORMATION, Reading, measure_layer, measure_state
from headscape.studies.gaussian.result import GaussianResult
from headscape.studies.work.engines import LocalEngine
from headscape.studies.work.old import (
    Progress,
    Say,
    Steps,
    block_of,
    cores,
    read_arrays,
    run_units,
    study_folder,
    write_arrays,
)

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.samples import Sample

__all__ = ["VERSIONS", "gaussian"]

Array = npt.NDArray[Any]
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128)
LEAST_TOKENS = 12
"""Content tokens an input must have."""
MAP_BYTES = 1 << 30
"""Maps of one layer over all inputs stay below this; with more, fewer inputs are taken, and that is said."""
DEPTH_INPUTS = 4
NEXT_INPUTS = 4
VERSIONS: dict[str, dict[str, Any]] = {
    "trained": {},
    "alpha = 2": {"alpha": 2.0},
    "alpha = 1/2": {"alpha": 0.5},
    "no skip": {"skip": False},
    "no skip, alpha = 2": {"skip": False, "alpha": 2.0},
    "no skip, alpha = 1/2": {"skip": False, "alpha": 0.5},
}
"""Versions of the model whose tokens are followed by depth; of random weights only the first and the fourth."""


def gaussian(
    source: Capture | Run | str | Path,
    *,
    model: Model | None = None,
    control: Model | None = None,
    block: str | None = None,
    batches: int = 10,
    jobs: int = 1,
    threads: int | None = None,
    random_state: int = 0,
    progress: Progress = lambda done, total: None,
    say: Say = lambda _: None,
) -> GaussianResult:
    """Hold a model against its Gaussians: scores, tokens at a distance, what comes next, and mixtures by depth.

    Parameters
    ----------
    source
        A capture or a run directory; with a directory each layer is stored when done, and a killed study goes on.
    model
        The model of the capture. Its inputs are shown to it again, all at once, and each layer is measured as it has
        run. Without it only the rank of the maps and, if hidden states were kept, tokens at a distance are measured.
    control
        The same architecture with random weights, shown the same inputs.
    block
        Which block of self-attention, where there are several.
    batches
        How many of the captured inputs are used, the first ones.
    jobs, threads
        Layers measured at a time, and threads of the model's forward pass (all cores unless told). Jobs do not change
        a byte.

    Raises
    ------
    InputError
        If there is neither a model nor anything kept that could be measured, the inputs are too short or of different
        lengths, or the model is not that of the capture.
    """
    if jobs < 1 or batches < 1:
        raise InputError(f"jobs and batches must be at least 1, not {jobs} and {batches}")
    captured = open_capture(source)
    chosen = block_of(captured, block)
    if chosen.endswith(".cross"):
        raise InputError(
            f"{chosen} pairs tokens of two texts; this study is about self-attention, choose another block"
        )
    n = min(batches, len(captured))
    if model is None:
        result = _from_capture(captured, chosen, n, random_state)
    else:
        n = _fitting(captured, chosen, n, say)
        facts = {"block": chosen, "batches": n, "seed": random_state}
        with study_folder(captured.run, GaussianResult.study, facts, say) as folder, _torch_threads(threads or cores()):
            study = _Study(captured, chosen, n, folder, jobs, random_state, say)
            result = study.run(model, control, progress, facts)
    if captured.run is not None:
        result.save(captured.run.path / result.study)
    return result


@contextmanager
def _torch_threads(n: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fitting(captured: Capture, block: str, n: int, say: Say) -> int:
    """How many inputs fit into memory: the maps of a layer are held for all of them."""
    facts = captured.batch(0).info
    n_token = len(captured.batch(0).tokens(block)[0])
    n_head = max(len(heads) for heads in facts["layers"][block].values())
    most = max(1, MAP_BYTES // max(1, n_head * n_token**2 * 4))
    if most < n:
        say(f"{most} of {n} inputs are used: the maps of more would not fit into memory")
    return min(n, most)


def _distances(n_content: int) -> list[int]:
    return [r for r in DISTANCES if r <= n_content // 2]


def _from_capture(captured: Capture, block: str, n: int, seed: int) -> GaussianResult:
    """What can be said without the model."""
    captured.need_whole("the gaussian study without the model")
    if not {"probs", "hidden"} & set(captured.kept):
        raise InputError(
            "without the model this study needs probs or hidden states, and the capture keeps "
            f"{', '.join(captured.kept)}; capture again with --keep probs,hidden, or let it load the model"
        )
    heads = pd.DataFrame(captured.heads(block), columns=["block", "layer", "head"])
    heads[list(COLUMNS)] = np.nan
    heads["note"] = "the model was not loaded"
    mask = captured.batch(0).info["blocks"][block]["mask"]
    n_token = 0
    with one_blas_thread():
        if "probs" in captured.kept:
            maps = [captured.tensor(i, block).values for i in range(min(n, 2))]
            n_token = maps[0].shape[0]
            ranks = [[energy_rank(values[:, :, h]) for h in range(len(heads))] for values in maps]
            heads["rank90"] = np.mean(ranks, axis=0)
        information, distances = None, []
        if "hidden" in captured.kept:
            states = [captured.hidden(i, block) for i in range(n)]
            if len({state.shape for state in states}) > 1:
                raise InputError("the captured inputs differ in length; capture again without --keep-short")
            n_token = states[0].shape[1]
            content = slice(1, None)
            distances = _distances(n_token - 1)
            reading = Reading(content, mask == "causal", None, seed)
            with study_folder(None, GaussianResult.study, {}, lambda _: None) as scratch:
                tables = []
                for depth in range(len(states[0])):
                    measure_state(np.stack([s[depth] for s in states]), reading, distances, scratch / f"{depth}")
                    tables.append(read_arrays(scratch / f"{depth}")[0]["information"])
                information = np.stack(tables)
    settings = {"block": block, "batches": n, "seed": seed, "left_out": ["all that needs the model"]}
    return GaussianResult(block, n_token, mask == "causal", heads, None, distances, information, None, {}, [], settings)


@dataclass(frozen=True)
class _Study:
    """The inputs, the folder of the units, and how they are worked off."""

    captured: Capture
    block: str
    n: int
    folder: Path
    jobs: int
    seed: int
    say: Say

    def run(self, model: Model, control: Model | None, progress: Progress, facts: dict[str, Any]) -> GaussianResult:
        from headscape.attention.samples import replayed

        samples = replayed(model, self.captured, self.block)[: self.n]
        ids, table = self._ids(samples), None
        if ids is not None:
            from headscape.studies.gaussian.tokens import cosines_of, embedding_table

            table = embedding_table(model)
        cosines = None if table is None or ids is None else cosines_of(table[ids])
        mask = self.captured.batch(0).info["blocks"][self.block]["mask"]
        reading = Reading(self._content(model, samples, ids), mask == "causal", cosines, self.seed)
        n_layer = sum(site.block == self.block for site in model.sites)
        per_model = 2 * n_layer + 1
        n_versions = len(VERSIONS) + (2 if control is not None else 0)
        steps = Steps(progress, per_model * (2 if control is not None else 1) + n_versions + 1)
        left_out: list[str] = []
        heads, information = self._layers(model, samples, reading, "", steps)
        of_control: tuple[pd.DataFrame | None, Array | None] = (None, None)
        if control is not None:
            of_control = self._layers(control, samples, reading, "control-", steps)
        arrays = self._depth(model, control, samples, reading, steps, left_out)
        neighbours: list[list[str]] = []
        if table is not None and ids is not None:
            found, neighbours = self._tokens(model, samples, table, ids, reading, left_out)
            arrays |= found
        else:
            left_out.append("embeddings and next tokens: the inputs are not text")
        steps.one()
        n_token = self._length(samples)
        return GaussianResult(
            block=self.block,
            n_token=n_token,
            causal=reading.causal,
            heads=heads,
            control=of_control[0],
            distances=_distances(self._n_content(reading, n_token)),
            information=information,
            control_information=of_control[1],
            arrays=arrays,
            neighbours=neighbours,
            settings={**facts, "content": [reading.content.start, reading.content.stop], "left_out": left_out},
        )

    # --- what the inputs are -----------------------------------------------------------------------------------------

    def _ids(self, samples: Sequence[Sample]) -> Array | None:
        """Token ids (n_input, n_token) of the block; the decoder of a seq2seq model reads its own. None for images."""
        own = "decoder_input_ids" if self.block.startswith("decoder") else "input_ids"
        name = own if own in samples[0].arguments else "input_ids"
        if name not in samples[0].arguments:
            return None
        rows = [sample.arguments[name][0].numpy() for sample in samples]
        if len({len(row) for row in rows}) > 1:
            raise InputError("the captured inputs differ in length; capture again without --keep-short")
        return np.stack(rows)

    def _length(self, samples: Sequence[Sample]) -> int:
        return len(samples[0].tokens[self.block][0])

    @staticmethod
    def _n_content(reading: Reading, n_token: int) -> int:
        return len(range(n_token)[reading.content])

    def _content(self, model: Model, samples: Sequence[Sample], ids: Array | None) -> slice:
        """All tokens but the first, and special tokens at the end that every input has."""
        n_token = self._length(samples)
        stop = n_token
        special = getattr(model.tokenizer, "all_special_ids", None) or []
        while ids is not None and stop > 1 and np.isin(ids[:, stop - 1], special).all():
            stop -= 1
        if stop - 1 < LEAST_TOKENS:
            raise InputError(
                f"an input has {max(stop - 1, 0)} tokens besides the first and special ones, the study needs "
                f"{LEAST_TOKENS}; capture with more --tokens"
            )
        if ids is not None and len(np.unique(ids[:, 1:stop])) == 1:
            raise InputError("the inputs repeat one token, and what is all equal has no Gaussian; capture other text")
        return slice(1, stop)

    # --- units -------------------------------------------------------------------------------------------------------

    def _layers(
        self, model: Model, samples: Sequence[Sample], reading: Reading, prefix: str, steps: Steps
    ) -> tuple[pd.DataFrame, Array | None]:
        """Measure every layer and the states between them; read what is there already."""
        from headscape.attention.watching import LayerData, watch_layers

        sites = [site for site in model.sites if site.block == self.block]
        layers = {site.layer: self.folder / f"{prefix}layer-{site.layer:04d}.safetensors" for site in sites}
        depths = [self.folder / f"{prefix}state-{i:04d}.safetensors" for i in range(len(sites) + 1)]
        distances = _distances(self._n_content(reading, self._length(samples)))
        waiting: dict[str, tuple[Any, ...]] = {}
        engine = LocalEngine(self.jobs)  # what is measured is in memory: it never leaves this machine

        def work_off(least: int) -> None:
            if len(waiting) >= least:
                run_units(measure_layer, waiting, engine, steps, self.say)
                waiting.clear()

        def take(data: LayerData) -> None:
            waiting[f"{prefix}layer {data.layer}"] = (data, reading, layers[data.layer])
            work_off(self.jobs)

        if not all(path.exists() for path in (*layers.values(), *depths)):
            states = watch_layers(model, samples, self.block, take)
            work_off(1)
            if states is None or len(states) != len(depths):
                raise HeadscapeError(f"{model.source} does not show the states between its {len(sites)} layers")
            units = {
                f"{prefix}state {depth}": (state, reading, distances, path)
                for depth, (state, path) in enumerate(zip(states, depths, strict=True))
            }
            run_units(measure_state, units, engine, steps, self.say)
        else:
            for _ in (*layers, *depths):
                steps.one()
        frames = []
        for site in sites:
            arrays, said = read_arrays(layers[site.layer])
            frame = pd.DataFrame(site.heads, columns=["block", "layer", "head"])
            frame[list(COLUMNS)] = arrays["table"]
            frame["note"] = said["note"]
            frames.append(frame)
        information = np.stack([read_arrays(path)[0]["information"] for path in depths])
        assert information.shape[2] == len(INFORMATION)
        return pd.concat(frames, ignore_index=True), information

    def _depth(
        self,
        model: Model,
        control: Model | None,
        samples: Sequence[Sample],
        reading: Reading,
        steps: Steps,
        left_out: list[str],
    ) -> dict[str, Array]:
        """Spread of the tokens by depth for every version: arrays depth/NAME (n_input, n_depth, 2), position/NAME."""
        from headscape.attention.watching import depth_states, layers_and_outputs

        versions = [(name, model, options) for name, options in VERSIONS.items()]
        if control is not None:
            versions += [("random weights", control, {}), ("random weights, no skip", control, {"skip": False})]
        arrays: dict[str, Array] = {}
        try:
            layers_and_outputs(model)
        except InputError as error:
            left_out.append(f"versions by depth: {error}")
            return arrays
        for name, asked, options in versions:
            path = self.folder / f"depth-{name.replace(' ', '').replace('/', '-').replace(',', '-')}.safetensors"
            if not path.exists():
                states = depth_states(asked, samples[:DEPTH_INPUTS], **options)[:, :, reading.content].astype(float)
                spread = np.array([[token_spread(tokens) for tokens in state] for state in states]).swapaxes(0, 1)
                share = [position_share(state) if len(state) > 1 else np.nan for state in states]
                write_arrays(path, {"spread": spread, "position": np.array(share)})
            found = read_arrays(path)[0]
            arrays |= {f"depth/{name}": found["spread"], f"position/{name}": found["position"]}
            steps.one()
        return arrays

    def _tokens(
        self,
        model: Model,
        samples: Sequence[Sample],
        table: Array,
        ids: Array,
        reading: Reading,
        left_out: list[str],
    ) -> tuple[dict[str, Array], list[list[str]]]:
        """Embeddings and next tokens."""
        from headscape.studies.gaussian.tokens import embeddings, likely_next, mixtures, one_gram

        if len(ids) < 2:
            left_out.append("the 1-gram table: there is no other input to count")
        if model.task != "causal-lm":
            left_out.append(f"the model's own next tokens: {model.source} predicts none")
        path = self.folder / "tokens.safetensors"
        if not path.exists():
            arrays, rows = embeddings(table, ids, model.tokenizer, self.seed)
            found = {f"embedding/{name}": array for name, array in arrays.items()}
            sources = {"1-gram": one_gram(ids, NEXT_INPUTS)} if len(ids) > 1 else {}
            if model.task == "causal-lm":
                sources["model"] = likely_next(model, samples[:NEXT_INPUTS])
            for name, likely in sources.items():
                facts, spectra = mixtures(likely, ids, table, reading.content)
                found |= {f"next/{name}/facts": facts, f"next/{name}/spectrum": spectra}
            write_arrays(path, found, {"neighbours": json.dumps(rows)})
        arrays, said = read_arrays(path)
        return arrays, json.loads(said["neighbours"])
