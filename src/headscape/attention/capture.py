"""Run a model on real inputs and keep its attention, one layer at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headscape.attention.models import Model, wrap_module
from headscape.attention.samples import Sample, replayed, samples_of
from headscape.attention.sites import Site, example_input, run, select_heads
from headscape.attention.tapping import attention_implementation, tapped, untapped
from headscape.attention.taps import BLOCK_BYTES, AttentionCall, Tap
from headscape.captures import KEEP, Batch, Capture
from headscape.errors import HeadscapeError, InputError
from headscape.runs import Run, human_bytes
from headscape.storage import ArrayWriter

__all__ = ["Estimate", "Parity", "capture", "check_parity", "estimate", "recapture"]

STORAGE = ("float16", "float32")
PARITY_TOKENS = 32
PARITY_TOLERANCE = {"float32": 1e-5, "bfloat16": 5e-2, "float16": 1e-2}  # of the largest logit


@dataclass(frozen=True)
class Parity:
    """How far the logits under capture are from the model's own, under its eager attention."""

    max_difference: float
    scale: float
    n_layers: int
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the difference is round-off."""
        return self.max_difference <= self.tolerance * max(1.0, self.scale)


@dataclass(frozen=True)
class Estimate:
    """What a capture will take, known before it starts."""

    memory_bytes: int  # above the model itself, at the peak of one layer
    model_bytes: int
    batch_bytes: int  # stored, per batch
    batches: int

    def __str__(self) -> str:
        return (
            f"memory {human_bytes(self.model_bytes)} for the model and about {human_bytes(self.memory_bytes)} beside "
            f"it; storage {human_bytes(self.batch_bytes)} a batch, "
            f"{human_bytes(self.batch_bytes * self.batches)} in all"
        )


class _Sink(Protocol):
    def add(self, name: str, array: npt.NDArray[Any]) -> None: ...


@dataclass
class _Memory:
    """Keeps a batch's arrays in memory, as `ArrayWriter` does on disk."""

    arrays: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def add(self, name: str, array: npt.NDArray[Any]) -> None:
        self.arrays[name] = array


class _CaptureTap(Tap):
    """Writes what is kept of every layer as soon as the layer has run."""

    def __init__(
        self, network: torch.nn.Module, chosen: dict[str, tuple[Site, list[int]]], keep: Sequence[str], dtype: str
    ) -> None:
        names = {name: id(module) for name, module in network.named_modules()}
        self.chosen = {names[name]: place for name, place in chosen.items()}
        self.keep, self.dtype = set(keep), dtype
        self.start(_Memory())

    def _store(self, name: str, tensor: Tensor) -> npt.NDArray[Any]:
        array = tensor.detach().to(getattr(torch, self.dtype)).cpu().numpy()
        if not np.isfinite(array).all():
            cause = "overflows float16; capture with dtype float32" if self.dtype == "float16" else "is not finite"
            raise InputError(f"{name} {cause}")
        return array

    def _rows(self, what: str, call: AttentionCall, maps: Tensor) -> None:
        """Collect row blocks of a map (1, head, rows, key) until the layer is complete."""
        site, heads = self.chosen[id(call.module)]
        name = f"{what}/{site.block}.{site.layer}"
        block = self._store(name, maps[0] if len(heads) == site.n_heads else maps[0, heads])
        rows = call.rows or slice(0, maps.shape[2])
        n_query = self._n_query.get(id(call.module), rows.stop)
        if rows == slice(0, n_query):
            self._open[name] = block
            return
        if name not in self._open:
            self._open[name] = np.empty((len(heads), n_query, maps.shape[3]), dtype=self.dtype)
        self._open[name][:, rows] = block

    def inputs(self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Keep queries, keys and values; learn the number of rows."""
        self._n_query[id(call.module)] = query.shape[2]
        if id(call.module) not in self.chosen:
            return
        site, heads = self.chosen[id(call.module)]
        for what, tensor in (("queries", query), ("keys", key), ("values", value)):
            if what in self.keep:
                name = f"{what}/{site.block}.{site.layer}"
                self.sink.add(name, self._store(name, tensor[0, heads] if what == "queries" else tensor[0]))

    def scores(self, call: AttentionCall, scores: Tensor) -> Tensor:
        """Keep what softmax sees."""
        if "scores" in self.keep and id(call.module) in self.chosen:
            self._rows("scores", call, scores)
        return scores

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        """Keep what softmax gives."""
        self.seen.add(id(call.module))
        if "probs" in self.keep and id(call.module) in self.chosen:
            self._rows("probs", call, probs)
        return probs

    def outputs(self, call: AttentionCall, outputs: Tensor) -> Tensor:
        """The layer is complete: write its maps, and the head outputs if kept."""
        self.flush()
        if "head_outputs" in self.keep and id(call.module) in self.chosen:
            site, heads = self.chosen[id(call.module)]
            name = f"head_outputs/{site.block}.{site.layer}"
            flat = outputs.reshape(-1, *outputs.shape[-2:])  # batch of one: (query, head, dim) in any layout
            self.sink.add(name, self._store(name, flat[:, heads].transpose(0, 1).contiguous()))
        return outputs

    def flush(self) -> None:
        """Hand the finished maps to the sink."""
        for name in sorted(self._open):
            self.sink.add(name, self._open.pop(name))

    def start(self, sink: _Sink) -> None:
        """Begin a new batch."""
        self.sink = sink
        self.seen: set[int] = set()
        self._open: dict[str, npt.NDArray[Any]] = {}
        self._n_query: dict[int, int] = {}


def main_output(result: Any) -> Tensor:
    """The tensor a model is judged by: logits, else the last hidden state, else the first tensor it returned."""
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(result, name, None), Tensor):
            return getattr(result, name)  # type: ignore[no-any-return]
    if isinstance(result, Tensor):
        return result
    found = next((part for part in result if isinstance(part, Tensor)), None)
    if found is None:
        raise InputError("the module returns no tensor")
    return found


def check_parity(model: Model, batch: Any = None) -> Parity:
    """Compare the logits under capture with the model's own eager logits on one short input.

    Raises a `HeadscapeError` when some attention layer was not captured.
    """
    batch = example_input(model) if batch is None else batch
    tap = _CaptureTap(model.module, {s.name: (s, list(range(s.n_heads))) for s in model.sites}, KEEP[:1], "float32")
    with torch.no_grad(), untapped(model.module):
        with attention_implementation(model.module, "eager"):
            own = main_output(run(model, batch)).float()
        tap.start(_Memory())
        with tapped(model.module, tap, model.attention):
            ours = main_output(run(model, batch)).float()
    missing = set(tap.chosen) - tap.seen
    if missing:
        raise HeadscapeError(f"{len(missing)} attention layers of {model.source} were not captured")
    difference = (own - ours).abs().max().item()
    return Parity(difference, own.abs().max().item(), len(model.sites), PARITY_TOLERANCE[model.dtype])


def estimate(
    model: Model, n_tokens: int, keep: Sequence[str], dtype: str, batches: int, kept_heads: int, on_disk: bool
) -> Estimate:
    """Memory and storage of a capture, from shapes alone; `benchmarks/capture.py` puts it beside what is measured.

    At any moment one layer's maps are held: the stored copy, the working set of one block of rows, the mask and the
    streams of the layer. In memory, all that is kept stays too.
    """
    item = np.dtype(dtype).itemsize
    width = max(site.n_heads for site in model.sites)
    area = n_tokens**2
    maps = sum(what in keep for what in ("probs", "scores"))
    hidden = getattr(model.config, "hidden_size", 0) or 0
    vectors = sum(what in keep for what in ("queries", "keys", "values", "hidden", "head_outputs"))
    batch_bytes = maps * kept_heads * area * item + vectors * len(model.sites) * n_tokens * hidden * item
    streams = 24 * n_tokens * hidden * 4  # queries, keys, values, outputs, and the four times wider middle of the MLP
    working = 6 * min(width * area * 4, BLOCK_BYTES) + 3 * area * 4
    kept = maps * width * area * item if on_disk else batch_bytes * batches
    bytes_of = {"float32": 4, "float16": 2, "bfloat16": 2}
    return Estimate(kept + working + streams, model.n_parameters * bytes_of[model.dtype], batch_bytes, batches)


def capture(
    model: Model | torch.nn.Module,
    inputs: Any,
    tokens: int = 256,
    batches: int | None = 10,
    keep: Sequence[str] = ("probs",),
    layers: Sequence[int] | None = None,
    heads: Sequence[Any] | None = None,
    dtype: str = "float16",
    out: str | Path | None = None,
    *,
    seed: int = 0,
    chat: bool = False,
    keep_short: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], None] = lambda _: None,
) -> Capture:
    """Run a model on inputs and keep its attention; one sample is one batch of the paper.

    Parameters
    ----------
    model
        From `load_model`, or a module (wrapped by `wrap_module`).
    inputs
        Text models: a list of strings, a text file or a folder of them, cut into disjoint windows of `tokens` tokens.
        Vision models: an array of images, an image file, a folder of them. Plain modules: a list of their arguments.
    tokens, batches
        Length of a context, special tokens included, and how many of them; the choice among all windows is seeded and
        kept in reading order. None takes all.
    keep
        Any of probs, scores, queries, keys, values, hidden, head_outputs.
    layers, heads
        Keep only these layers, or only these heads (`HeadId`, "decoder.3.7" or (layer, head)).
    dtype
        Of the storage, "float16" or "float32"; values come back as float32.
    out
        A run directory: batches are written as they come, and a killed capture goes on where it stopped.
    chat
        Put each window into the model's chat template.
    keep_short
        Keep texts shorter than a window at their own length. Nothing is ever padded.
    progress, say
        Called with (finished, total), and with lines worth printing.

    Raises
    ------
    InputError
        Empty or too short text, too many tokens, unknown names, a run directory made with other settings.
    HeadscapeError
        The logits under capture differ from the model's own by more than round-off.
    """
    if not isinstance(model, Model):
        model = wrap_module(model)
    _check_options(tokens, batches, keep, dtype)
    samples, facts = samples_of(model, inputs, tokens, batches, seed=seed, chat=chat, keep_short=keep_short)
    if model.task == "module" and model.example is None:
        model.example = samples[0].arguments
    chosen = _choose(model, layers, heads)
    n_tokens = _n_tokens(model, samples[0], tokens)
    n_heads = sum(len(found) for _, found in chosen.values())
    needed = estimate(model, n_tokens, keep, dtype, len(samples), n_heads, out is not None)
    say(str(needed))

    target: Run | None = None
    if out is not None:
        config = {
            "kind": "capture",
            "tokens": n_tokens,
            "batches": len(samples),
            "keep": sorted(keep),
            "heads": None if layers is None and heads is None else {name: found for name, (_, found) in chosen.items()},
            "dtype": dtype,
            "seed": seed,
            "chat": chat,
        }
        _check_space(Path(out), needed.batch_bytes * len(samples))
        target = Run.create(out, config=config, model=model.describe(), inputs=facts)
    todo = [i for i in range(len(samples)) if target is None or not target.batch_path(i).exists()]
    if todo:
        parity = check_parity(model, _short(model, samples[0]))
        if not parity.ok:
            raise HeadscapeError(
                f"logits of {model.source} under capture differ from its own by {parity.max_difference:.2g} "
                f"(largest logit {parity.scale:.2g}); its attention is not understood and was not captured"
            )
        if target is not None:
            target.update(parity={"max_difference": parity.max_difference, "layers": parity.n_layers})
    tap = _CaptureTap(model.module, chosen, keep, dtype)
    held: list[Batch] = []
    progress(len(samples) - len(todo), len(samples))
    for done, i in enumerate(todo, start=len(samples) - len(todo) + 1):
        info = _info(samples[i], chosen, keep)
        if target is not None:
            n_arrays = len(chosen) * len(keep) + 4
            with ArrayWriter(target.batch_path(i), n_arrays, {"headscape": json.dumps(info)}) as writer:
                _run_sample(model, samples[i], tap, writer)
        else:
            memory = _Memory()
            _run_sample(model, samples[i], tap, memory)
            held.append(Batch(info, list(memory.arrays), memory.arrays.__getitem__))
        progress(done, len(samples))
    if target is None:
        return Capture.in_memory(held)
    target.update(finished={"attention": len(samples)})
    return Capture.of_run(target)


def recapture(model: Model, captured: Capture, keep: Sequence[str] = ("probs",), dtype: str = "float16") -> Capture:
    """Show the inputs of a capture to another model of the same architecture (random weights, say), in memory."""
    _check_options(1, None, keep, dtype)
    chosen = _choose(model, None, None)
    tap = _CaptureTap(model.module, chosen, keep, dtype)
    held = []
    for sample in replayed(model, captured):
        memory = _Memory()
        _run_sample(model, sample, tap, memory)
        held.append(Batch(_info(sample, chosen, keep), list(memory.arrays), memory.arrays.__getitem__))
    return Capture.in_memory(held)


def _check_options(tokens: int, batches: int | None, keep: Sequence[str], dtype: str) -> None:
    if isinstance(keep, str) or not keep or not set(keep) <= set(KEEP):
        raise InputError(f"keep is a selection of {', '.join(KEEP)}, not {keep!r}")
    if dtype not in STORAGE:
        raise InputError(f"storage dtype is float16 or float32, not {dtype!r}")
    if tokens < 1:
        raise InputError(f"tokens must be at least 1, not {tokens}")
    if batches is not None and batches < 1:
        raise InputError(f"batches must be at least 1, not {batches}")


def _choose(model: Model, layers: Any, heads: Any) -> dict[str, tuple[Site, list[int]]]:
    if layers is not None:
        unknown = sorted(set(layers) - {site.layer for site in model.sites})
        if unknown:
            raise InputError(f"{model.source} has no layer {unknown[0]}; it has {model.n_layers}, counted from 0")
    picked = None if heads is None else select_heads(model, heads)
    chosen = {}
    for site in model.sites:
        if layers is not None and site.layer not in layers:
            continue
        found = list(range(site.n_heads)) if picked is None else picked.get(site.name, [])
        if found:
            chosen[site.name] = (site, found)
    if not chosen:
        raise InputError("no head is left to capture; check layers and heads")
    return chosen


def _n_tokens(model: Model, sample: Sample, tokens: int) -> int:
    if model.images is not None:
        return len(next(iter(sample.tokens.values()))[0])
    ids = sample.stored.get("input_ids")
    return len(ids) if ids is not None else tokens


def _short(model: Model, sample: Sample) -> Any:
    """The first tokens of a real input, enough for the parity check."""
    if model.task == "module" or model.images is not None:
        return sample.arguments
    return {name: ids[:, :PARITY_TOKENS] for name, ids in sample.arguments.items()}


def _check_space(out: Path, needed: int) -> None:
    place = next(p for p in (out, *out.absolute().parents) if p.exists())
    written = sum(p.stat().st_size for p in out.rglob("batch-*.safetensors")) if out.exists() else 0
    free = shutil.disk_usage(place).free
    if needed - written > free:
        raise InputError(
            f"the capture needs {human_bytes(needed - written)} on disk, {place} has {human_bytes(free)} free; "
            "take fewer batches, tokens or heads, or another place"
        )


def _info(sample: Sample, chosen: dict[str, tuple[Site, list[int]]], keep: Sequence[str]) -> dict[str, Any]:
    blocks: dict[str, Any] = {}
    layers: dict[str, dict[str, list[int]]] = {}
    for site, found in chosen.values():
        query_tokens, key_tokens = sample.tokens.get(site.block, ([], []))
        blocks[site.block] = {"mask": site.mask, "query_tokens": query_tokens, "key_tokens": key_tokens}
        layers.setdefault(site.block, {})[str(site.layer)] = found
    return {"keep": sorted(keep), "blocks": blocks, "layers": layers, "origin": sample.origin}


def _run_sample(model: Model, sample: Sample, tap: _CaptureTap, sink: _Sink) -> None:
    for name, array in sample.stored.items():
        sink.add(name, array)
    tap.start(sink)
    hidden = "hidden" in tap.keep
    if hidden and model.task == "module":
        raise InputError("hidden states of a plain module cannot be kept; drop 'hidden' from keep")
    with torch.no_grad(), tapped(model.module, tap, model.attention):
        result = run(model, sample.arguments, whole=False, hidden=hidden)
    tap.flush()
    missing = set(tap.chosen) - tap.seen
    if missing:
        raise HeadscapeError(f"{len(missing)} attention layers gave nothing; the capture is refused")
    if {"queries", "keys", "values"} & tap.keep and not set(tap.chosen) <= set(tap._n_query):
        raise InputError(
            f"{model.source} computes attention in its own way and does not show its queries, keys and values; "
            "keep probs, scores or head_outputs"
        )
    if hidden:
        for name, states in _hidden_states(model, result):
            stacked = torch.stack([state[0] for state in states])
            sink.add(f"hidden/{name}", tap._store(f"hidden/{name}", stacked))


def _hidden_states(model: Model, result: Any) -> Iterator[tuple[str, Sequence[Tensor]]]:
    if model.task == "seq2seq-lm":
        yield "encoder", result.encoder_hidden_states
        yield "decoder", result.decoder_hidden_states
    else:
        yield model.sites[0].block, result.hidden_states
