"""The softmax study in units of work: one layer on one input each, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headscape.captures import Capture, open_capture
from headscape.compiled import kernel_threads
from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.storage import read_arrays, write_arrays
from headscape.studies.softmax import head as h
from headscape.studies.softmax.result import ALL_VARIANTS, HEAD_VARIANTS, LAYER_VARIANTS
from headscape.tensor import AttentionTensor, HeadId
from headscape.tree import PartitionTree

if TYPE_CHECKING:
    from headscape.attention.replacing import Intervention

__all__ = ["Layer", "change_all", "change_layer", "measure_layer", "read_unit", "trees_of"]

Array = npt.NDArray[Any]
OFF = 0.05
"""Largest difference between softmax of the scores and the probabilities kept with them; float16 scores give 0.03."""


@dataclass(frozen=True)
class Layer:
    """Some heads of one layer on one input, and the capture that has their scores."""

    source: Capture | Path
    batch: int
    block: str
    layer: int
    heads: tuple[int, ...]

    @property
    def place(self) -> str:
        """Block and layer."""
        return f"{self.block}.{self.layer}"

    @property
    def head_ids(self) -> list[HeadId]:
        """The ids of its heads."""
        return [HeadId(self.block, self.layer, head) for head in self.heads]

    def load(self) -> tuple[Array, npt.NDArray[np.bool_]]:
        """Scores (n_head, n_query, n_key) and which entries are present; checked."""
        batch = open_capture(self.source).batch(self.batch)
        kept = batch.info["layers"][self.block][str(self.layer)]
        chosen = [kept.index(head) for head in self.heads]
        scores = batch.read(f"scores/{self.place}")[chosen].astype(np.float64)
        if min(scores.shape[1:]) < 2:
            shape = f"{scores.shape[1]} x {scores.shape[2]}"
            raise InputError(
                f"attention of layer {self.place} is {shape}; a decomposition needs at least two tokens: capture with more --tokens"
            )
        mask = batch.info["blocks"][self.block]["mask"]
        present = AttentionTensor(np.zeros((*scores.shape[1:], 1)), mask=mask).present
        if f"probs/{self.place}" in batch.names:
            probs = batch.read(f"probs/{self.place}")[chosen]
            softmax = [np.nan_to_num(np.exp(h.log_attention(s, present))) for s in scores]
            off = max(float(np.abs(own - p).max()) for own, p in zip(softmax, probs, strict=True))
            if off > OFF:
                raise InputError(
                    f"softmax of the scores of layer {self.place} differs from its probabilities by {off:.2g}: the layer has "
                    "its own window or sink, which this study does not support; choose --heads of other layers"
                )
        return scores, present


def measure_layer(path: Path, layer: Layer, settings: Mapping[str, Any], threads: int, seed: int) -> None:
    """Organize and measure the heads of a layer on one input."""
    scores, present = layer.load()
    settings = {**settings, "n_jobs": threads}
    rows, notes, by_scale = [], [], []
    arrays: dict[str, Array] = {}
    octaves = [int(np.ceil(np.log2(n))) + 1 for n in present.shape]
    with kernel_threads(threads), one_blas_thread():  # the number of threads must not change a byte
        for k, s in enumerate(scores):
            g = h.log_attention(s, present)
            head = h.Head(g, present, h.organize(g, present, settings))
            found, note = h.measure(head, settings, seed)
            rows.append([found[name] for name in h.COLUMNS])
            notes.append(note)
            by_scale.append(h.scales(head, (octaves[0], octaves[1])))
            for name, tree in head.trees._asdict().items():
                arrays[f"{name}_labels/{k}"] = tree.labels.astype(np.int32)
                arrays[f"{name}_order/{k}"] = tree.order.astype(np.int32)
    arrays |= {"values": np.array(rows, dtype=np.float64), "scales": np.array(by_scale, dtype=np.float64)}
    write_arrays(path, arrays, {"notes": json.dumps(notes)})


def trees_of(path: Path, k: int) -> h.Trees:
    """The trees of the k-th head of a unit."""
    found = read_arrays(path, lambda name: name.endswith(f"/{k}"))[0]
    trees = (
        PartitionTree.from_labels(found[f"{name}_labels/{k}"], found[f"{name}_order/{k}"]) for name in h.Trees._fields
    )
    return h.Trees(*trees)


def maps_of(layer: Layer, path: Path, variants: Sequence[str]) -> dict[str, dict[HeadId, Array]]:
    """For each variant the maps of the layer's heads, as they are put into the model."""
    scores, present = layer.load()
    out: dict[str, dict[HeadId, Array]] = {variant: {} for variant in variants}
    for k, (head_id, s) in enumerate(zip(layer.head_ids, scores, strict=True)):
        head = h.Head(h.log_attention(s, present), present, trees_of(path, k))
        for variant in variants:
            name = variant.removesuffix("_raw")
            found = head.softmax if name == "own" else head.approximation(name)
            found = np.nan_to_num(found) if variant.endswith("_raw") else h.as_probabilities(found, present)
            out[variant][head_id] = found.astype(np.float32)
    return out


def change_layer(path: Path, intervention: Callable[[], Intervention], layer: Layer, maps: Path) -> None:
    """Replace each head of a layer, and all of them together, on one input."""
    found = maps_of(layer, maps, LAYER_VARIANTS)
    change = intervention().change
    each = [[change({head: found[v][head]}) for head in layer.head_ids] for v in HEAD_VARIANTS]
    whole = [change(found[v]) for v in LAYER_VARIANTS]
    write_arrays(path, {"heads": np.array(each, dtype=np.float64), "layer": np.array(whole, dtype=np.float64)})


def change_all(
    path: Path, intervention: Callable[[], Intervention], layers: Sequence[Layer], maps: Sequence[Path]
) -> None:
    """Replace all heads at once, on one input; one variant at a time, so that few maps are held."""
    changes = []
    for variant in ALL_VARIANTS:
        every: dict[HeadId, Array] = {}
        for layer, file in zip(layers, maps, strict=True):
            every |= maps_of(layer, file, [variant])[variant]
        changes.append(intervention().change(every))
    write_arrays(path, {"changes": np.array(changes), "base": np.array([intervention().base])})


def read_unit(path: Path) -> tuple[dict[str, Array], list[str]]:
    """The arrays of a unit without its trees, and its notes, one per head."""
    arrays, metadata = read_arrays(path, lambda name: "/" not in name)
    return arrays, [str(note) for note in json.loads(metadata.get("notes", "[]"))]
