"""Attention that you already have, from files or from memory, as a capture; no model is needed."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from headscape.captures import Batch, Capture
from headscape.checks import one_of
from headscape.errors import InputError
from headscape.fingerprints import full_hash
from headscape.locks import locked
from headscape.runs import Run
from headscape.storage import LOCK, foreign_file
from headscape.tensor import Kind, MaskKind

__all__ = ["from_attentions", "import_array", "write_capture"]

AXES = ("batch", "layer", "head", "query", "key")
SLACK = 1e-2  # a probability in float16 or bfloat16 may exceed 1, and its row's sum more so
_BLOCKS = {  # names of transformers' outputs
    "attentions": "heads",
    "encoder_attentions": "encoder",
    "decoder_attentions": "decoder",
    "cross_attentions": "decoder.cross",
}
_NONE = (
    "the model returned no attention: load it with attn_implementation='eager' and call it with output_attentions=True, "
    "or give the model itself to hs.capture"
)
_CACHE_KEYS = {  # of a layer's maps among all that hooks kept
    "probs": re.compile(r"(?:^|\.)(\d+)\..*?(?:hook_pattern|pattern|attn_weights|attn_probs|attentions?)$"),
    "scores": re.compile(r"(?:^|\.)(\d+)\..*?(?:hook_attn_scores|attn_scores|scores)$"),
}
Array = npt.NDArray[Any]
Layers = Mapping[int, Array]  # by the number of the layer, each (head, query, key)


def from_attentions(
    attentions: Any,
    tokens: Any = None,
    *,
    kind: Kind = "probs",
    mask: MaskKind | None = None,
    dtype: str = "float32",
    out: str | Path | None = None,
) -> Capture:
    """Make a capture of attention in memory: what a model returned with `output_attentions=True`, or a cache of hooks.

    Parameters
    ----------
    attentions
        The `attentions` tuple of transformers, or its whole output (encoder-decoders: encoder, decoder and cross
        attention become blocks); one array per layer, (head, query, key) or (batch, head, query, key); a list of such
        for several prompts; or a mapping like a TransformerLens cache ("blocks.3.attn.hook_pattern"; of scores
        "blocks.3.attn.hook_attn_scores"), or from numbers of layers. numpy or torch.
    tokens
        Strings for queries and keys: one list, or a list per batch; for several blocks a mapping from block to them.
        "decoder.cross" has the decoder's tokens as queries and the encoder's as keys.
    kind, mask
        "probs" or "scores"; "causal" or "full", found from what is above the diagonal (0, or -inf of scores) when not
        given.
    dtype
        Number type to store, "float32" or "float16".
    out
        A run directory to write to.

    Raises
    ------
    InputError
        Nothing that looks like attention; shapes that do not fit; entries that are NaN, infinite or not probabilities.

    >>> maps = np.full((2, 3, 3), 1 / 3)  # head, query, key
    >>> hs.from_attentions([maps, maps], tokens=["a", "b", "c"]).tensor(0)
    AttentionTensor(3 queries x 3 keys x 4 heads, full, probs)
    """
    _check_choices(kind, mask, dtype)
    batches = _batches_of(attentions, kind)
    names = [_tokens_of(tokens, i, batch, len(batches)) for i, batch in enumerate(batches)]
    masks = {block: mask or _mask_of([batch[block] for batch in batches]) for block in batches[0]}
    for i, batch in enumerate(batches):
        for block, layers in batch.items():
            for n, maps in layers.items():
                _check_values(maps, kind, dtype, f"batch {i}, {block} layer {n}")
    made = [_batch(batch, kind, masks, shown, dtype) for batch, shown in zip(batches, names, strict=True)]
    if out is None:
        return Capture.in_memory(made)
    content = hashlib.sha256(b"".join(batch.read(name).tobytes() for batch in made for name in batch.names)).hexdigest()
    config = {"kind": "memory", "attention": kind, "dtype": dtype}
    return _written(made, Path(out), config=config, inputs={"sha256": content})


def import_array(
    file: str | Path,
    out: str | Path,
    *,
    name: str | None = None,
    layout: str | None = None,
    kind: Kind = "probs",
    mask: MaskKind | None = None,
    dtype: str = "float16",
) -> Capture:
    """Make a run from an .npy, .npz or .safetensors file of attention.

    Parameters
    ----------
    file
        An array of order 3, or of order 4 or 5 with batches or layers before it; or an .npz or .safetensors with one
        array per layer, whose names end in the number of the layer or are those of a TransformerLens cache.
    name
        Which array of an .npz or .safetensors file; needed when there are several that are not layers.
    layout
        The axes of the array in their order: query, key, head and optionally batch or layer, as in
        "batch,head,query,key". By default "query,key,head", and "head,query,key" for one array per layer, with batch
        before it if it has four axes.
    mask
        "causal" or "full"; found from what is above the diagonal (0, or -inf of scores) when not given.
    dtype
        Number type to store, "float16" or "float32".

    >>> np.save("maps.npy", np.full((2, 4, 4), 0.25))
    >>> hs.import_array("maps.npy", "runs/mine", layout="head,query,key").tensor(0)
    AttentionTensor(4 queries x 4 keys x 2 heads, full, probs)
    """
    _check_choices(kind, mask, dtype)
    if not isinstance(file, (str, Path)):
        raise InputError(
            f"import_array reads a file, not a {type(file).__name__}; attention in memory: hs.from_attentions"
        )
    path = Path(file)
    read = _read(path, name, kind)
    per_layer = isinstance(read, Mapping)
    arrays = list(read.values()) if isinstance(read, Mapping) else [read]
    by_batch = "batch," if arrays[0].ndim == 4 else ""  # as transformers returns them
    layout = layout or (f"{by_batch}head,query,key" if per_layer else "query,key,head")
    arrays = [_ordered(array, layout, path) for array in arrays]
    if len({array.shape for array in arrays}) > 1:
        raise InputError(f"{path}: the layers have different shapes {sorted({a.shape for a in arrays})}")
    values = _unmasked(np.concatenate(arrays, axis=1) if per_layer else arrays[0], kind)
    _check_values(values, kind, dtype, str(path))
    numbers = list(read) if isinstance(read, Mapping) else range(values.shape[1])
    batches: list[Layers] = [dict(zip(numbers, layers, strict=True)) for layers in values]
    block: MaskKind = mask or _mask_of(batches)
    made = [_batch({"heads": layers}, kind, {"heads": block}, {}, dtype) for layers in batches]
    config = {"kind": "import", "layout": layout, "attention": kind, "mask": block, "dtype": dtype}
    inputs = {"file": path.name, "array": name, "shape": list(values.shape), "sha256": full_hash(path)}
    return _written(made, Path(out), config=config, inputs=inputs)


def write_capture(captured: Capture, out: Path, **sections: Mapping[str, Any]) -> Capture:
    """Write a capture that is in memory as a run, with these sections of run.json."""
    facts = {"config": {"kind": "memory"}, "inputs": {"kind": "memory"}} | sections
    return _written([captured.batch(i) for i in range(len(captured))], out, **facts)


def _check_choices(kind: str, mask: str | None, dtype: str) -> None:
    one_of("kind", kind, ("probs", "scores"))
    if mask is not None:
        one_of("mask", mask, ("causal", "full"))
    one_of("dtype", dtype, ("float16", "float32"))


def _check_values(values: Array, kind: str, dtype: str, where: str) -> None:
    """Raise unless an array can be attention of that kind and be stored in that number type."""
    if values.dtype.kind not in "fiub":
        raise InputError(f"{where} has dtype {values.dtype}; attention is real numbers")
    if not values.size or 0 in values.shape:
        raise InputError(f"{where} is empty: shape {values.shape}")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        place = ", ".join(f"{a} {i}" for a, i in zip(AXES[-values.ndim :], bad[0], strict=True))
        raise InputError(f"{where} has {len(bad)} entries that are NaN or infinite, the first at {place}")
    if kind == "probs" and (values.min() < 0 or values.max() > 1 + SLACK):
        raise InputError(
            f"{where} has entries from {values.min():.3g} to {values.max():.3g}, which are not probabilities; "
            'use kind="scores" (--kind scores) if these are scores before softmax'
        )
    if np.abs(values).max() > np.finfo(dtype).max:
        better = "; import it with dtype float32" if dtype == "float16" else ""
        raise InputError(f"{where} has values beyond the range of {dtype}{better}")


def _unmasked(maps: Array, kind: str) -> Array:
    """Scores (..., query, key) whose future is masked by -inf, as TransformerLens keeps them, with 0 there instead."""
    n_query, n_key = maps.shape[-2:]
    future = ~np.tri(n_query, n_key, k=n_key - n_query, dtype=bool)
    if kind != "scores" or maps.dtype.kind != "f" or not future.any() or not np.isneginf(maps[..., future]).all():
        return maps
    return np.where(future, 0, maps)


def _mask_of(batches: Sequence[Layers]) -> MaskKind:
    """Causal if nothing lies above the diagonal of any map."""
    for maps in (maps for layers in batches for maps in layers.values()):
        n_query, n_key = maps.shape[-2:]
        if not n_key >= n_query > 1 or maps[..., ~np.tri(n_query, n_key, k=n_key - n_query, dtype=bool)].any():
            return "full"
    return "causal"


def _batch(
    blocks: Mapping[str, Layers],
    kind: str,
    masks: Mapping[str, MaskKind],
    tokens: Mapping[str, tuple[list[str], list[str]]],
    dtype: str,
) -> Batch:
    arrays = {f"{kind}/{b}.{n}": np.asarray(a, dtype=dtype) for b, ls in blocks.items() for n, a in ls.items()}
    facts: dict[str, dict[str, Any]] = {block: {"mask": masks[block]} for block in blocks}
    for block, (query, key) in tokens.items():
        facts[block] |= {"query_tokens": query, "key_tokens": key}
    layers = {b: {str(n): list(range(len(a))) for n, a in ls.items()} for b, ls in blocks.items()}
    return Batch({"keep": [kind], "blocks": facts, "layers": layers}, list(arrays), arrays.__getitem__)


def _written(batches: Sequence[Batch], out: Path, **sections: Mapping[str, Any]) -> Capture:
    """Write batches as a run, whole or not at all."""
    with locked(out / f"capture{LOCK}", f"the import in {out}", lambda _: None):
        run = Run.create(out, **sections)
        try:
            for i, batch in enumerate(batches):
                batch.write(run.batch_path(i))
            run.update(finished={"attention": len(batches)})
        except BaseException:
            run.discard()
            raise
    return Capture.of_run(run)


# --- files -----------------------------------------------------------------------------------------------------------


def _ordered(array: Array, layout: str, path: Path) -> Array:
    """An array as (batch, layer, head, query, key)."""
    axes = [axis.strip() for axis in layout.split(",")]
    if not {"query", "key", "head"} <= set(axes) or not set(axes) <= set(AXES) or len(set(axes)) < len(axes):
        raise InputError(f"layout {layout!r} must name query, key and head once each, and may name batch and layer")
    if array.ndim != len(axes):
        raise InputError(
            f"{path} has shape {array.shape}, layout '{layout}' names {len(axes)} axes; name them in order: --layout "
            "layer,head,query,key"
        )
    for extra in ("layer", "batch"):
        if extra not in axes:
            array, axes = array[None], [extra, *axes]
    return array.transpose([axes.index(axis) for axis in AXES])


def _read(path: Path, name: str | None, kind: str) -> Array | Layers:
    """The array of a file, or the arrays of its layers in their order."""
    if not path.is_file():
        raise InputError(f"no file {path}")
    ending = path.suffix.lower()
    if ending in (".pt", ".pth", ".bin", ".pkl"):
        raise InputError(
            f"{path} is a pickle, which can run code when read; convert it, if it holds one tensor per layer: python -c "
            f"\"import torch, safetensors.torch as s; x = torch.load('{path}', weights_only=True); s.save_file({{str(i): "
            f"a.clone().contiguous() for i, a in (x.items() if hasattr(x, 'items') else enumerate(x))}}, "
            f"'{path.with_suffix('.safetensors')}')\""
        )
    with foreign_file(path):
        if ending == ".npy":
            return cast("Array", np.load(path, allow_pickle=False))
        if ending == ".npz" and not zipfile.is_zipfile(path):
            raise InputError(f"{path} cannot be read: it is not an .npz file")
        if ending == ".npz":
            with np.load(path, allow_pickle=False) as loaded:
                return _chosen(path, {key: lambda key=key: loaded[key] for key in loaded.files}, name, kind)
        if ending == ".safetensors":
            with safe_open(path, framework="np") as opened:
                keys = list(opened.keys())
                return _chosen(path, {key: lambda key=key: opened.get_tensor(key) for key in keys}, name, kind)
    raise InputError(f"{path} is not .npy, .npz or .safetensors")


def _chosen(path: Path, arrays: Mapping[str, Any], name: str | None, kind: str) -> Array | Layers:
    """The array of that name, the only one, or all of them if they are numbered layers."""
    if name is not None:
        if name not in arrays:
            raise InputError(f"{path} has no array {name!r}; it has {', '.join(sorted(arrays))}")
        return cast("Array", arrays[name]())
    if len(arrays) == 1:
        return cast("Array", next(iter(arrays.values()))())
    layers = _numbered(arrays, kind)
    if not layers:
        listed = ", ".join(sorted(arrays)[:6])
        raise InputError(
            f"{path} holds {len(arrays)} arrays ({listed}); choose one with --name, or name one per layer layer_0, ..."
        )
    return {number: cast("Array", read()) for number, read in layers.items()}


def _numbered(given: Mapping[Any, Any], kind: str) -> dict[int, Any]:
    """The entries whose keys are numbers of layers, in that order: the maps in a cache, or all entries."""
    cached = [(int(found[1]), key) for key in given if (found := _CACHE_KEYS[kind].search(str(key)))]
    ends = [re.fullmatch(r"(.*?)(\d+)", str(key)) for key in given]
    alike = all(ends) and len({end[1] for end in ends if end}) == 1  # layer_0, layer_1, ...
    numbers = cached or ([(int(end[2]), key) for end, key in zip(ends, given, strict=True) if end] if alike else [])
    return {number: given[key] for number, key in sorted(numbers, key=lambda pair: pair[0])}


# --- memory ----------------------------------------------------------------------------------------------------------


def _numpy(value: Any) -> Array:
    """A torch tensor or anything array-like as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float().numpy() if str(value.dtype) in ("torch.bfloat16", "torch.float16") else value.numpy()
    return np.asarray(value)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _batches_of(given: Any, kind: str) -> list[dict[str, Layers]]:
    """What was given as batches: block -> layers, each (head, query, key)."""
    if hasattr(given, "keys") and not isinstance(given, Mapping):  # TransformerLens' ActivationCache is no Mapping
        given = {key: given[key] for key in given.keys()}  # noqa: SIM118
    named = {b: v for n, b in _BLOCKS.items() if (v := _get(given, n)) is not None and len(v)}
    if named:
        return _split({block: dict(enumerate(layers)) for block, layers in named.items()}, kind)
    if isinstance(given, Mapping):
        found = _numbered(given, kind)
        if not found:
            if any(name in given for name in _BLOCKS):
                raise InputError(_NONE)
            example = "hook_pattern" if kind == "probs" else "hook_attn_scores"
            raise InputError(
                f"no attention in a mapping with keys {', '.join(map(str, list(given)[:4]))}; keys like "
                f"'blocks.3.attn.{example}', or numbers of layers, are understood"
            )
        return _split({"heads": found}, kind)
    if _is_array(given):
        array = _numpy(given)
        return _split({"heads": dict(enumerate(array if array.ndim > 3 else [array]))}, kind)
    if given is None or (isinstance(given, (list, tuple)) and all(layer is None for layer in given)):
        raise InputError(_NONE)
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise InputError(f"attention comes as arrays, one per layer, not as a {type(given).__name__}")
    if all(_is_array(layer) for layer in given):
        return _split({"heads": dict(enumerate(given))}, kind)
    batches = [batch for one in given for batch in _batches_of(one, kind)]
    if len({tuple((b, n, len(maps)) for b, ls in batch.items() for n, maps in ls.items()) for batch in batches}) > 1:
        raise InputError("the batches have different blocks, layers or heads; give attention of one network")
    return batches


def _get(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def _split(blocks: Mapping[str, Mapping[int, Any]], kind: str) -> list[dict[str, Layers]]:
    """Blocks of layers (batch, head, query, key) or (head, query, key) as batches."""
    found: dict[str, Layers] = {}
    for block, layers in blocks.items():
        arrays = {number: _numpy(layer) for number, layer in layers.items()}
        odd = next((array.shape for array in arrays.values() if array.ndim not in (3, 4)), None)
        if odd is not None:
            raise InputError(
                f"a layer of {block} has shape {odd}; give (head, query, key) or (batch, head, query, key)"
            )
        found[block] = {n: _unmasked(a if a.ndim == 4 else a[None], kind) for n, a in arrays.items()}
        shapes = [array.shape for array in found[block].values()]
        if len({(shape[0], *shape[2:]) for shape in shapes}) > 1:
            raise InputError(f"the layers of {block} differ in batch, queries or keys: {shapes[:4]}")
    sizes = {len(maps) for layers in found.values() for maps in layers.values()}
    if len(sizes) > 1:
        raise InputError(f"the blocks hold different numbers of batches: {sorted(sizes)}")
    return [{b: {n: maps[i] for n, maps in layers.items()} for b, layers in found.items()} for i in range(sizes.pop())]


def _tokens_of(given: Any, i: int, batch: Mapping[str, Layers], n_batch: int) -> dict[str, tuple[list[str], list[str]]]:
    """Query and key strings of a batch by block."""
    if given is None:
        return {}
    found = {}
    for block, layers in batch.items():
        n_query, n_key = next(iter(layers.values())).shape[-2:]
        sides = [block.partition(".")[0], "encoder" if block.endswith(".cross") else block]
        query, key = ([] if (own := _own_tokens(given, side, i, n_batch)) is None else own for side in sides)
        for what, names, n in (("queries", query, n_query), ("keys", key, n_key)):
            if names and len(names) != n:
                raise InputError(f"batch {i} of {block} has {n} {what}, {len(names)} tokens were given")
        found[block] = (query, key)
    return found


def _own_tokens(given: Any, block: str, i: int, n_batch: int) -> list[str] | None:
    """The strings of one batch: a list of strings serves all batches, a list of lists has one for each."""
    if isinstance(given, Mapping):
        given = given.get(block)
    if given is None:
        return None
    if len(given) and isinstance(given[0], str):
        return [str(token) for token in given]
    if len(given) != n_batch:
        raise InputError(f"{len(given)} lists of tokens for {n_batch} batches")
    return [str(token) for token in given[i]]
