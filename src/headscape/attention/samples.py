"""Samples: inputs turned into the arguments of forward passes, one sample a batch of the paper."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headscape.attention.inputs import Windows, chosen_of, cut_windows, read_images, read_texts
from headscape.attention.models import Model
from headscape.captures import Capture
from headscape.errors import InputError

__all__ = ["Sample", "grouped", "replayed", "samples_of"]


@dataclass(frozen=True)
class Sample:
    """One input ready to run.

    `tokens` holds the display strings of queries and keys by block, `stored` the arrays worth keeping beside attention,
    `origin` where it came from, `label` the class of an image.
    """

    arguments: Any
    tokens: dict[str, tuple[list[str], list[str]]]
    stored: dict[str, npt.NDArray[Any]]
    origin: list[Any]
    label: int | None = None


def samples_of(
    model: Model,
    inputs: Any,
    tokens: int = 256,
    batches: int | None = None,
    *,
    seed: int = 0,
    chat: bool = False,
    keep_short: bool = False,
    shown: bool = True,
) -> tuple[list[Sample], dict[str, Any]]:
    """Choose `batches` samples of the inputs (None: all), the beginning of a seeded shuffle; and the facts to record.

    `shown=False` leaves out the display strings of the tokens, which take longer than all the rest.
    """
    if model.task == "module":
        return _module_samples(inputs, batches)
    if model.images is not None:
        return _image_samples(model, inputs, batches, seed)
    windows, facts = _windows(model, inputs, tokens, batches, seed, chat, keep_short)
    return _text_samples(model, windows, shown), facts


def _token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as a reader would see them; pieces of a multi-byte character keep the tokenizer's own spelling."""
    shown = [str(tokenizer.decode([i], clean_up_tokenization_spaces=False)) for i in ids]
    if any("\ufffd" in s for s in shown):
        raw = tokenizer.convert_ids_to_tokens(list(ids))
        shown = [r if "\ufffd" in s else s for s, r in zip(shown, raw, strict=True)]
    return shown


def _windows(
    model: Model, inputs: Any, tokens: int, batches: int | None, seed: int, chat: bool, keep_short: bool
) -> tuple[Windows, dict[str, Any]]:
    if model.tokenizer is None:
        raise InputError(f"{model.source} has no tokenizer; it cannot read text")
    if model.max_tokens is not None and tokens > model.max_tokens:
        raise InputError(f"{tokens} tokens asked, {model.source} takes at most {model.max_tokens}")
    texts = read_texts(inputs)
    windows = cut_windows(
        texts, model.tokenizer, tokens, batches, seed=seed, chat=chat, keep_short=keep_short, prefix=model.prefix
    )
    return windows, {"kind": "text", "texts": len(texts), "windows": windows.n_available, "sha256": windows.sha256}


def _text_samples(model: Model, windows: Windows, shown: bool) -> list[Sample]:
    samples = []
    for ids, origin in zip(windows.ids, windows.origins, strict=True):
        read = _token_strings(model.tokenizer, ids.tolist()) if shown else []
        arguments = {"input_ids": torch.from_numpy(ids)[None]}
        names = {site.block: (read, read) for site in model.sites}
        if model.task == "seq2seq-lm":  # the decoder reads the same text, one step behind
            shifted = np.concatenate([[model.config.decoder_start_token_id], ids[:-1]])
            arguments["decoder_input_ids"] = torch.from_numpy(shifted)[None]
            delayed = _token_strings(model.tokenizer, shifted.tolist()) if shown else []
            names |= {"decoder": (delayed, delayed), "decoder.cross": (delayed, read)}
        samples.append(Sample(arguments, names, {"input_ids": ids}, list(origin)))
    return samples


def _image_samples(model: Model, inputs: Any, batches: int | None, seed: int) -> tuple[list[Sample], dict[str, Any]]:
    assert model.images is not None
    images = read_images(inputs, model.images)
    n = len(images.pixels)
    if batches is not None and batches > n:
        raise InputError(f"{n} images given, {batches} batches were asked; lower batches to {n} or give more images")
    chosen = chosen_of(n, batches, seed)
    size = model.config.patch_size
    patch = size if isinstance(size, int) else size[0]
    rows, columns = model.images.height // patch, model.images.width // patch
    names = ["[CLS]", *(f"({r},{c})" for r in range(rows) for c in range(columns))]
    samples = []
    for i in chosen:
        label = None if images.labels is None else int(images.labels[i])
        arguments = {"pixel_values": torch.from_numpy(images.pixels[i : i + 1])}
        blocks = {site.block: (names, names) for site in model.sites}
        samples.append(Sample(arguments, blocks, {"pixel_values": images.pixels[i]}, [images.names[i], label], label))
    digest = hashlib.sha256(images.pixels.tobytes()).hexdigest()
    return samples, {"kind": "images", "images": n, "sha256": digest, "grid": [rows, columns]}


def _module_samples(inputs: Iterable[Any], batches: int | None) -> tuple[list[Sample], dict[str, Any]]:
    everything = list(inputs)
    given = everything[:batches]
    if not given:
        raise InputError("no inputs given")
    digest = hashlib.sha256()
    for arguments in everything:
        parts = arguments.values() if isinstance(arguments, dict) else arguments
        for part in [parts] if isinstance(parts, Tensor) else parts:
            if isinstance(part, Tensor):
                digest.update(part.detach().cpu().contiguous().numpy().tobytes())
    return [Sample(a, {}, {}, [i]) for i, a in enumerate(given)], {"kind": "module", "sha256": digest.hexdigest()}


def replayed(model: Model, captured: Capture, block: str | None = None) -> list[Sample]:
    """The inputs of a capture as samples again, from what it stored; for another model of the same architecture.

    With `block`, a model that does not have the heads of that block is an `InputError`.
    """
    ours = {head for site in model.sites for head in site.heads}
    missing = [head for head in (captured.heads(block) if block else []) if head not in ours]
    if missing:
        raise InputError(f"{model.source} has no head {missing[0]}: it is not the model of this capture")
    samples = []
    for i in range(len(captured)):
        batch = captured.batch(i)
        tokens = {name: batch.tokens(name) for name in batch.info["blocks"]}
        inputs: list[str] = [name for name in ("input_ids", "pixel_values") if name in batch.names]
        if not inputs:
            raise InputError("this capture has no inputs of its own to show to another model")
        stored = {name: batch.read(name) for name in inputs}
        arguments = {name: torch.from_numpy(array)[None] for name, array in stored.items()}
        if model.task == "seq2seq-lm":
            start = torch.tensor([[model.config.decoder_start_token_id]])
            arguments["decoder_input_ids"] = torch.cat([start, arguments["input_ids"][:, :-1]], dim=1)
        origin = batch.info["origin"]
        label = origin[1] if "pixel_values" in stored and origin[1] is not None else None
        samples.append(Sample(arguments, tokens, stored, origin, label))
    return samples


def grouped(samples: Sequence[Sample], size: int) -> Iterator[tuple[dict[str, Tensor], list[Sample]]]:
    """Join neighbouring samples of equal shape into forward passes of at most `size`."""
    start = 0
    while start < len(samples):
        shape = {k: v.shape for k, v in samples[start].arguments.items()}
        stop = start
        while (
            stop < min(start + size, len(samples)) and {k: v.shape for k, v in samples[stop].arguments.items()} == shape
        ):
            stop += 1
        part = list(samples[start:stop])
        yield {k: torch.cat([s.arguments[k] for s in part]) for k in shape}, part
        start = stop
