"""Run a model on real inputs and keep its attention, one layer at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headscape.attention.capture_tap import CaptureTap, Memory, Sink
from headscape.attention.estimate import Estimate, Stored, estimate, measure_pace
from headscape.attention.parity import PARITY_TOLERANCE, Parity, check_parity, main_output
from headscape.attention.pooling import check_pool, rows_of_windows
from headscape.attention.samples import Sample, replayed, samples_of
from headscape.attention.sites import Site, run, select_heads
from headscape.attention.tapping import tapped
from headscape.attention.wrapping import Model, evaluating, lender, wrap_module
from headscape.captures import KEEP, Batch, Capture
from headscape.checks import integer, renamed
from headscape.checks import seed as check_seed
from headscape.errors import HeadscapeError, InputError
from headscape.locks import locked
from headscape.runs import Run, human_bytes
from headscape.storage import LOCK, ArrayWriter
from headscape.tensor import block_bounds, block_labels

__all__ = [
    "PARITY_TOLERANCE",
    "Estimate",
    "Parity",
    "capture",
    "check_parity",
    "estimate",
    "main_output",
    "plan_capture",
    "recapture",
]

STORAGE = ("float16", "float32")
PARITY_TOKENS = 32


@renamed("seed", "random_state")
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
    pool: int | None = None,
    windows: str | None = None,
    random_state: int = 0,
    chat: bool = False,
    keep_short: bool = False,
    tokenizer: Any = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    say: Callable[[str], None] = lambda _: None,
) -> Capture:
    """Run a model on inputs and keep its attention; one sample is what the paper calls a batch.

    Parameters
    ----------
    model
        From `load_model`, or a module (wrapped by `wrap_module`), also inside a wrapper of nnsight; a HookedTransformer.
    inputs
        Text models: a sentence or a list of prompts, each kept at its own length if none is longer than `tokens`; a
        text file, a folder of them or a list of longer texts, cut into disjoint windows of `tokens` tokens; token ids
        (list, array, tensor, `BatchEncoding`), for which no tokenizer is needed. Any model: a dictionary of arguments,
        as processors make them, or a list of such. Vision models: an array of images, an image file, a folder of them.
        Plain modules: a list of their arguments.
    tokens, batches
        Length of a context, special tokens included, and how many of them; None takes all. Batch i is the i-th window
        of a seeded shuffle, so that requesting more batches later extends a run.
    keep
        Any of probs, scores, queries, keys, values, hidden, head_outputs.
    layers, heads
        Keep only these layers, or only these heads (`HeadId`, "decoder.3.7" or (layer, head)).
    dtype
        Number type on disk, "float16" or "float32"; values are returned as float32.
    out
        A run directory: each batch is written when done, and a killed capture resumes.
    pool
        For long contexts: keep means over a pool x pool grid of token blocks instead of maps. The mean is over the
        present entries of a pair of blocks, and is taken while the pass runs; no map is ever held whole.
    windows
        "rows:K" keeps K sampled rows of every pooled map whole; `Capture.rows` reads them.
    chat
        Put each window into the model's chat template.
    keep_short
        Keep texts shorter than a window at their own length. Nothing is ever padded.
    tokenizer
        For a module that comes without one; it reads text and names the tokens of ids.
    progress, say
        Functions called with (finished, total), and with lines to print.

    Raises
    ------
    InputError
        Empty or too short text, too many tokens, a pool larger than the tokens, unknown names, a run directory made
        with other settings.
    HeadscapeError
        The logits under capture differ from the model's own by more than round-off.

    >>> captured = hs.capture(model, ["the cat sat", "on the mat"])
    >>> captured
    Capture(2 batches of decoder; keeps probs)
    >>> "".join(captured.tensor(1).query_tokens)
    'on the mat'
    """
    request = Request(tokens, batches, tuple(keep), layers, heads, dtype, pool, windows, random_state, chat, keep_short)
    with evaluating(model):
        if not isinstance(model, Model):
            model = wrap_module(model, tokenizer=tokenizer)
        elif tokenizer is not None:
            model = replace(model, tokenizer=tokenizer)
        plan = _plan(model, inputs, out is not None, request)
        say(str(plan.needed))
        return _captured(plan, out, progress, say)


def _captured(
    plan: _Plan, out: str | Path | None, progress: Callable[[int, int], None], say: Callable[[str], None]
) -> Capture:
    """Run a plan, into memory or a run directory."""
    if out is None:
        held = []
        for i, sample in enumerate(plan.captured(range(len(plan.samples)), progress)):
            memory = Memory()
            plan.run(sample, memory, i)
            held.append(Batch(plan.info(sample), list(memory.arrays), memory.arrays.__getitem__))
        return Capture.in_memory(held, {"config": plan.config, "inputs": plan.facts}, lender(plan.model))
    folder = Path(out)
    _check_space(folder, plan.needed.batch_bytes * len(plan.samples))
    with locked(folder / f"capture{LOCK}", f"the capture in {folder}", say):
        run = Run.create(folder, config=plan.config, model=plan.model.describe(), inputs=plan.facts)
        try:
            _write(plan, run, progress)
        except BaseException:
            run.discard()
            raise
    return Capture.of_run(run)


def _write(plan: _Plan, run: Run, progress: Callable[[int, int], None]) -> None:
    """Capture into a run directory what is not there yet."""
    todo = [i for i in range(len(plan.samples)) if not run.batch_path(i).exists()]
    for i, sample in zip(todo, plan.captured(todo, progress, run), strict=True):
        info = plan.info(sample)
        n_arrays = 2 * len(plan.chosen) * len(plan.request.keep) + 3 * len(info["blocks"]) + 4
        with ArrayWriter(run.batch_path(i), n_arrays, {"headscape": json.dumps(info)}) as writer:
            plan.run(sample, writer, i)
    run.update(finished={"attention": len(plan.samples)})


@dataclass(frozen=True)
class Request:
    """The request for a capture, as `capture` takes it."""

    tokens: int = 256
    batches: int | None = 10
    keep: tuple[str, ...] = ("probs",)
    layers: Sequence[int] | None = None
    heads: Sequence[Any] | None = None
    dtype: str = "float16"
    pool: int | None = None
    windows: str | None = None
    random_state: int = 0
    chat: bool = False
    keep_short: bool = False

    def check(self) -> None:
        """Raise an `InputError` for what is wrong with any model."""
        if isinstance(self.keep, str) or not self.keep or not set(self.keep) <= set(KEEP):
            raise InputError(f"keep is a selection of {', '.join(KEEP)}, not {', '.join(self.keep)!r}")
        if self.dtype not in STORAGE:
            raise InputError(f"storage dtype is float16 or float32, not {self.dtype!r}")
        for name, value in (("tokens", self.tokens), ("batches", self.batches)):
            if value is not None:
                integer(name, value, low=1)
        if self.pool is not None:
            integer("pool", self.pool, low=1)
        check_seed(self.random_state)


@dataclass(frozen=True)
class _Plan:
    """A capture that was checked and can start."""

    request: Request
    model: Model
    samples: list[Sample]
    facts: dict[str, Any]  # of the inputs
    chosen: dict[str, tuple[Site, list[int]]]
    needed: Estimate
    n_rows: int

    @property
    def config(self) -> dict[str, Any]:
        """What run.json records of the request."""
        asked = self.request
        everything = asked.layers is None and asked.heads is None
        config = {
            "kind": "capture",
            "tokens": self.needed.n_tokens,
            "batches": len(self.samples),
            "keep": sorted(asked.keep),
            "heads": None if everything else {name: found for name, (_, found) in self.chosen.items()},
            "dtype": asked.dtype,
            "seed": asked.random_state,
            "chat": asked.chat,
        }
        return config if asked.pool is None else config | {"pool": asked.pool, "windows": asked.windows}

    def tap(self, pool: int | None, n_rows: int) -> CaptureTap:
        asked = self.request
        return CaptureTap(self.model.module, self.chosen, asked.keep, asked.dtype, pool, n_rows, asked.random_state)

    def info(self, sample: Sample) -> dict[str, Any]:
        return _info(sample, self.chosen, self.request.keep, self.request.pool)

    def run(self, sample: Sample, sink: Sink, i: int) -> None:
        _run_sample(self.model, sample, self.tap(self.request.pool, self.n_rows), sink, i)

    def captured(
        self, todo: Sequence[int], progress: Callable[[int, int], None], run: Run | None = None
    ) -> Iterator[Sample]:
        """The samples still to run, one after the other; parity is checked before the first."""
        total = len(self.samples)
        if todo:
            parity = check_parity(self.model, _short(self.model, self.samples[0]))
            if not parity.ok:
                raise HeadscapeError(
                    f"logits of {self.model.source} under capture differ from its own by {parity.max_difference:.2g} "
                    f"(largest logit {parity.scale:.2g}); its attention is not understood and was not captured"
                )
            if run is not None:
                run.update(parity={"max_difference": parity.max_difference, "layers": parity.n_layers})
        progress(total - len(todo), total)
        for done, i in enumerate(todo, start=total - len(todo) + 1):
            yield self.samples[i]
            progress(done, total)


def _plan(model: Model, inputs: Any, on_disk: bool, request: Request) -> _Plan:
    request.check()
    tokens, pool = request.tokens, request.pool
    n_rows = rows_of_windows(request.windows)
    check_pool(pool, n_rows, [] if model.images is not None or model.task == "module" else [tokens])
    seed, chat, short = request.random_state, request.chat, request.keep_short
    samples, facts = samples_of(model, inputs, tokens, request.batches, seed=seed, chat=chat, keep_short=short)
    check_pool(pool, n_rows, [len(side) for s in samples for names in s.tokens.values() for side in names])
    if model.task == "module" and model.example is None:
        model.example = samples[0].arguments
    chosen = _choose(model, request.layers, request.heads)
    n_tokens = _n_tokens(model, samples[0], tokens)
    n_heads = sum(len(found) for _, found in chosen.values())
    stored = Stored(request.keep, request.dtype, n_heads, pool, n_rows)
    needed = estimate(model, n_tokens, stored, len(samples), on_disk)
    return _Plan(request, model, samples, facts, chosen, needed, n_rows)


def plan_capture(model: Model | torch.nn.Module, inputs: Any, *, on_disk: bool = True, **options: Any) -> Estimate:
    """The memory, storage and time that `capture` would take with the same arguments. Nothing is written.

    `options` are those of `capture` but out, progress and say. Time comes from a few short captured passes
    (`measure_pace`), pooled to blocks of the same size where the capture is pooled; writing to disk comes on top.
    """
    with evaluating(model):
        model = model if isinstance(model, Model) else wrap_module(model)
        return _timed(_plan(model, inputs, on_disk, Request(**options)))


def _timed(plan: _Plan) -> Estimate:
    """What a plan takes, its time from a few short passes."""
    n_tokens = plan.needed.n_tokens

    def once(arguments: Any, n: int) -> None:
        pool, n_rows = plan.request.pool, plan.n_rows
        if pool is not None:
            pool, n_rows = max(1, pool * n // n_tokens), n_rows * n // n_tokens
        _run_sample(plan.model, Sample(arguments, {}, {}, []), plan.tap(pool, n_rows), Memory())

    return plan.needed.timed(measure_pace(plan.model, n_tokens, once))


def recapture(model: Model, captured: Capture, keep: Sequence[str] = ("probs",), dtype: str = "float16") -> Capture:
    """Capture another model of the same architecture (random weights, say) on the same inputs, in memory.

    A pooled capture is pooled again, on the same grid.
    """
    Request(1, None, tuple(keep), dtype=dtype).check()
    samples = replayed(model, captured)
    chosen = _choose(model, None, None)
    pool = captured.pool
    tap = CaptureTap(model.module, chosen, keep, dtype, pool)
    held = []
    for sample in samples:
        memory = Memory()
        _run_sample(model, sample, tap, memory)
        held.append(Batch(_info(sample, chosen, keep, pool), list(memory.arrays), memory.arrays.__getitem__))
    return Capture.in_memory(held)


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
    """Of queries and keys, about; frames of audio count as tokens."""
    if model.images is not None and sample.tokens:
        return len(next(iter(sample.tokens.values()))[0])
    ids, frames = sample.stored.get("input_ids"), sample.stored.get("argument/input_features")
    if ids is None and frames is None:
        return tokens
    return max(len(ids) if ids is not None else 1, frames.shape[-1] if frames is not None else 1)


def _short(model: Model, sample: Sample) -> Any:
    """The first tokens of a real input, enough for the parity check."""
    ids_only = isinstance(sample.arguments, dict) and not set(sample.arguments) - {"input_ids", "decoder_input_ids"}
    if model.task == "module" or not ids_only:
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


def _info(
    sample: Sample, chosen: dict[str, tuple[Site, list[int]]], keep: Sequence[str], pool: int | None
) -> dict[str, Any]:
    blocks: dict[str, Any] = {}
    layers: dict[str, dict[str, list[int]]] = {}
    for site, found in chosen.values():
        layers.setdefault(site.block, {})[str(site.layer)] = found
        if site.block in blocks:
            continue
        query, key = sample.tokens.get(site.block, ([], []))
        facts: dict[str, Any] = {"mask": site.mask, "query_tokens": query, "key_tokens": key}
        if pool is not None and query and key:  # blocks are what a tensor shows; the tokens stay beside them
            facts |= {f"{axis}_tokens": _labels(side, pool) for axis, side in (("query", query), ("key", key))}
            facts["pooled_tokens"] = {"query": query, "key": key}
        blocks[site.block] = facts
    info = {"keep": sorted(keep), "blocks": blocks, "layers": layers, "origin": sample.origin}
    return info if pool is None else info | {"pool": pool}


def _labels(tokens: Sequence[str], pool: int) -> list[str]:
    return block_labels(tokens, block_bounds(len(tokens), pool))


def _run_sample(model: Model, sample: Sample, tap: CaptureTap, sink: Sink, i: int = 0) -> None:
    for name, array in sample.stored.items():
        sink.add(name, array)
    tap.start(sink, i)
    hidden = "hidden" in tap.keep
    if hidden and model.task == "module":
        raise InputError("hidden states of a plain module cannot be kept; drop 'hidden' from keep")
    with torch.no_grad(), tapped(model.module, tap, model.attention):
        result = run(model, sample.arguments, whole=False, hidden=hidden)
    tap.flush()
    missing = set(tap.chosen) - tap.seen
    if missing:
        raise HeadscapeError(f"{len(missing)} attention layers gave nothing; the capture is refused")
    if {"queries", "keys", "values"} & tap.keep and not set(tap.chosen) <= set(tap.shapes):
        raise InputError(
            f"{model.source} computes attention in its own way and does not show its queries, keys and values; "
            "keep probs, scores or head_outputs"
        )
    if hidden:
        for name, states in _hidden_states(model, result):
            stacked = torch.stack([state[0] for state in states])
            sink.add(f"hidden/{name}", tap.store(f"hidden/{name}", stacked))


def _hidden_states(model: Model, result: Any) -> Iterator[tuple[str, Sequence[Tensor]]]:
    if model.task == "seq2seq-lm":
        yield "encoder", result.encoder_hidden_states
        yield "decoder", result.decoder_hidden_states
    else:
        yield model.sites[0].block, result.hidden_states
