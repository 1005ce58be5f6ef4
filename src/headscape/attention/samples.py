"""Samples: inputs turned into the arguments of forward passes; one sample is what the paper calls a batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from headscape.attention.given import arguments_of, with_decoder
from headscape.attention.inputs import Prompts, chosen_of, cut_windows, read_images, read_texts, whole_texts
from headscape.attention.models import Model
from headscape.captures import Capture
from headscape.checks import integer
from headscape.errors import InputError

__all__ = ["Sample", "check_ids", "grouped", "is_text", "replayed", "samples_of"]


@dataclass(frozen=True)
class Sample:
    """One input ready to run.

    `tokens` holds the display strings of queries and keys by block, `stored` the arrays to keep along with attention,
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

    Token ids and the inputs a processor made are taken as they are, in their order. `shown=False` leaves out the display
    strings of a text's tokens, which take longer than everything else.
    """
    for name, value in (("tokens", tokens), ("batches", batches)):
        if value is not None:
            integer(name, value, low=1)
    given = arguments_of(inputs) if model.images is None or isinstance(inputs, Mapping) else None
    own = model.task == "module" and not model.reads_ids
    if given is not None and (not own or isinstance(inputs, Mapping)):
        return _given_samples(model, given, batches)
    if own and (model.tokenizer is None or not is_text(inputs)):
        return _module_samples(inputs, batches)
    if model.images is not None:
        return _image_samples(model, inputs, batches, seed)
    return _text_samples(model, inputs, tokens, batches, seed, chat, keep_short, shown)


def is_text(inputs: Any) -> bool:
    """Whether inputs are a text, texts, or the path of some."""
    return isinstance(inputs, (str, Path)) or (isinstance(inputs, Sequence) and all(isinstance(x, str) for x in inputs))


def _token_strings(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as a reader would see them; pieces of a multi-byte character keep the tokenizer's own spelling.

    Without a tokenizer, the ids themselves.
    """
    if tokenizer is None:
        return [str(i) for i in ids]
    shown = [str(tokenizer.decode([i], clean_up_tokenization_spaces=False)) for i in ids]
    if any("\ufffd" in s for s in shown):
        raw = tokenizer.convert_ids_to_tokens(list(ids))
        shown = [r if "\ufffd" in s else s for s, r in zip(shown, raw, strict=True)]
    return shown


def _text_samples(
    model: Model, inputs: Any, tokens: int, batches: int | None, seed: int, chat: bool, keep_short: bool, shown: bool
) -> tuple[list[Sample], dict[str, Any]]:
    if model.tokenizer is None:
        raise InputError(
            f"{model.source} has no tokenizer; it cannot read text. Give it one, capture(..., tokenizer=...), or give "
            "token ids"
        )
    texts = read_texts(inputs)
    limit = tokens if model.max_tokens is None else min(tokens, model.max_tokens)
    windows = None
    if isinstance(texts, Prompts) or not isinstance(inputs, (str, Path)):
        windows = whole_texts(texts, model.tokenizer, limit, chat=chat, prefix=model.prefix)
    facts: dict[str, Any] = {"kind": "text", "texts": len(texts)}
    if windows is None:
        if limit < tokens:
            raise InputError(f"{tokens} tokens requested, {model.source} takes at most {model.max_tokens}")
        windows = cut_windows(
            texts, model.tokenizer, tokens, batches, seed=seed, chat=chat, keep_short=keep_short, prefix=model.prefix
        )
    else:
        if batches is not None and len(windows.ids) > batches:
            raise InputError(
                f"{len(windows.ids)} prompts given, {batches} batches were requested; raise batches to {len(windows.ids)}"
            )
        facts["lengths"] = [len(ids) for ids in windows.ids]
    samples: list[Sample] = []
    for ids, origin in zip(windows.ids, windows.origins, strict=True):
        arguments = with_decoder(model, {"input_ids": torch.from_numpy(ids)[None]})
        check_ids(model, arguments["input_ids"], f"input {len(samples)}")
        passed = arguments["input_ids"] if model.task == "module" else arguments
        names = _names(model, arguments, passed) if shown else {}
        samples.append(Sample(passed, names, {"input_ids": ids}, list(origin)))
    return samples, facts | {"windows": windows.n_available, "sha256": windows.sha256}


def _given_samples(
    model: Model, given: list[dict[str, Tensor]], batches: int | None
) -> tuple[list[Sample], dict[str, Any]]:
    """Samples of arguments that are ready: token ids, or what a processor returned for audio or images."""
    chosen = given[:batches]
    digest = hashlib.sha256()
    samples = []
    for i, arguments in enumerate(given):
        for name, value in arguments.items():
            digest.update(name.encode() + value.detach().cpu().float().contiguous().numpy().tobytes())
        if i >= len(chosen):
            continue
        whole = with_decoder(model, arguments) if model.task != "module" else arguments
        ids = whole.get("input_ids")
        if model.reads_ids and (others := ", ".join(sorted(set(whole) - {"input_ids"}))):
            raise InputError(f"{model.source} reads token ids alone: give input_ids without {others}")
        check_ids(model, ids, f"input {i}")
        stored = {f"argument/{name}": value.numpy() for name, value in whole.items() if name != "input_ids"}
        if ids is not None:
            stored["input_ids"] = ids[0].numpy()
        samples.append(Sample(whole, _names(model, whole, whole), stored, [i]))
    lengths = [int(s.arguments["input_ids"].shape[1]) for s in samples if "input_ids" in s.arguments]
    return samples, {"kind": "ids", "inputs": len(given), "lengths": lengths, "sha256": digest.hexdigest()}


def check_ids(model: Model, ids: Tensor | None, what: str) -> None:
    """Refuse token ids (1, n_token) that a model does not know or that are too many for it; `what` names the input."""
    if ids is None:
        return
    n_vocabulary = getattr(model.config, "vocab_size", None)
    if n_vocabulary is not None and not 0 <= int(ids.min()) <= int(ids.max()) < n_vocabulary:
        raise InputError(
            f"{what} has token ids from {int(ids.min())} to {int(ids.max())}; {model.source} knows 0 to {n_vocabulary - 1}"
        )
    if model.max_tokens is not None and ids.shape[1] > model.max_tokens:
        raise InputError(f"{what} has {ids.shape[1]} tokens, {model.source} takes at most {model.max_tokens}")


def _names(model: Model, arguments: Mapping[str, Tensor], example: Any) -> dict[str, tuple[list[str], list[str]]]:
    """Display strings of queries and keys by block; none for what are not tokens (frames of audio, patches)."""
    if model.example is None and (model.task == "module" or set(arguments) - {"input_ids", "decoder_input_ids"}):
        model.example = example
    shown, delayed = (
        [] if (ids := arguments.get(name)) is None else _token_strings(model.tokenizer, ids[0].tolist())
        for name in ("input_ids", "decoder_input_ids")
    )
    blocks = {site.block for site in model.sites}
    if model.task == "seq2seq-lm":
        return {"encoder": (shown, shown), "decoder": (delayed, delayed), "decoder.cross": (delayed, shown)}
    if len(blocks) > 1:
        blocks &= {"text"}
    attending = getattr(model.module, "segment", len(shown))  # a network with a memory attends from its last tokens
    return dict.fromkeys(blocks, (shown[-attending:], shown))


def _image_samples(model: Model, inputs: Any, batches: int | None, seed: int) -> tuple[list[Sample], dict[str, Any]]:
    assert model.images is not None
    images = read_images(inputs, model.images)
    n = len(images.pixels)
    if batches is not None and batches > n:
        raise InputError(f"{n} images given for {batches} batches; lower batches to {n} or give more images")
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
    samples = []
    for i in range(len(captured)):
        batch = captured.batch(i)
        tokens = {name: batch.tokens(name) for name in batch.info["blocks"]}
        stored = {
            name: batch.read(name)
            for name in batch.names
            if name in ("input_ids", "pixel_values") or name.startswith("argument/")
        }
        if not stored:
            raise InputError("this capture holds no inputs that another model could read")
        arguments = {
            name.removeprefix("argument/"): torch.from_numpy(array) if "/" in name else torch.from_numpy(array)[None]
            for name, array in stored.items()
        }
        arguments = with_decoder(model, arguments)
        if model.example is None and any("/" in name for name in stored):
            model.example = arguments
        origin = batch.info["origin"]
        label = origin[1] if "pixel_values" in stored and origin[1] is not None else None
        samples.append(Sample(arguments, tokens, stored, origin, label))
    wanted = captured.heads(block) if block else []
    ours = {head for site in model.sites for head in site.heads} if wanted else set()
    missing = [head for head in wanted if head not in ours]
    if missing:
        raise InputError(f"{model.source} has no head {missing[0]}: it is not the model of this capture")
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
