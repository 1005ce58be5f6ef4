"""Sites: the places of a network where attention is computed, and how they are named."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.wrapping import Model
from headscape.errors import HeadscapeError, InputError
from headscape.tensor import HeadId, MaskKind

__all__ = ["Site", "example_input", "find_sites", "run", "select_heads"]

PROBE_TOKENS = 12
_MODALITIES = {
    name: re.compile(sign)
    for name, sign in {"vision": "vision|visual", "audio": "audio", "text": "text|language"}.items()
}  # parts of a network for several kinds of input
_CROSS = re.compile(r"encdec|cross|encoder_attn", re.IGNORECASE)


@dataclass(frozen=True)
class Site:
    """One attention layer: qualified name, block and layer, its query heads, and whether it only looks back."""

    name: str
    block: str
    layer: int
    n_heads: int
    mask: MaskKind

    @property
    def heads(self) -> list[HeadId]:
        """The ids of its heads."""
        return [HeadId(self.block, self.layer, h) for h in range(self.n_heads)]


def example_input(model: Model, tokens: int = PROBE_TOKENS) -> Any:
    """A short seeded input the model accepts."""
    if model.example is not None:
        return model.example
    generator = torch.Generator().manual_seed(0)
    if model.images is not None:
        prep = model.images
        return {"pixel_values": torch.randn(1, prep.channels, prep.height, prep.width, generator=generator)}
    if model.task == "module":
        raise InputError(f"{model.source} is a plain module: give one of its inputs, wrap_module(module, example=...)")
    vocabulary = model.config.vocab_size
    ids = torch.randint(min(10, vocabulary - 1), vocabulary, (1, tokens), generator=generator)
    batch = {"input_ids": ids}
    if model.task == "seq2seq-lm":
        batch["decoder_input_ids"] = ids.flip(1)
    return batch


def run(model: Model, batch: Any, *, whole: bool = True, hidden: bool = False) -> Any:
    """One forward pass without gradients and without a cache; `whole=False` leaves the output head out."""
    module: Any = model.module
    if model.task == "module":
        if model.reads_ids and isinstance(batch, dict):
            batch = batch["input_ids"]
        if isinstance(batch, dict):
            return module(**{k: _to(v, model.device) for k, v in batch.items()})
        args = batch if isinstance(batch, tuple) else (batch,)
        return module(*(_to(a, model.device) for a in args))
    if not whole:
        module = module.base_model
    options: dict[str, Any] = {"output_hidden_states": True} if hidden else {}
    if model.images is None:
        options["use_cache"] = False
    moved = {k: _to(v, model.device) for k, v in batch.items()}
    kind = getattr(torch, model.dtype)
    moved = {k: v.to(kind) if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in moved.items()}
    return module(**moved, **options)


def _to(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


class _Probe(Tap):
    """Notes every attention call: which module, how many heads, and whether anything lies above the diagonal."""

    blockwise = False

    def __init__(self) -> None:
        self.calls: dict[int, tuple[int, bool]] = {}

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        n_query, n_key = probs.shape[-2:]
        above = torch.ones(n_query, n_key, dtype=torch.bool, device=probs.device).triu(n_key - n_query + 1)
        causal = bool(n_key >= n_query > 1 and (probs[..., above] == 0).all())
        self.calls[id(call.module)] = (probs.shape[1], causal)
        return probs


def find_sites(model: Model) -> list[Site]:
    """Run one short input and list the attention layers it went through, in the order of the modules.

    Raises a `HeadscapeError` when a layer of the same kind was not reached: a capture with holes is refused.
    """
    probe = _Probe()
    with torch.no_grad(), tapped(model.module, probe, model.attention):
        run(model, example_input(model), whole=False)
    names = {id(module): (name, module) for name, module in model.module.named_modules()}
    called = {key: names[key] for key in names if key in probe.calls}
    if not called:
        raise InputError(
            f"no attention was seen in {model.source}; for a network of your own, name the submodules that compute it: "
            "wrap_module(module, attention=[...])"
        )
    kinds = {type(module) for _, module in called.values()}
    missed = [name for key, (name, module) in names.items() if type(module) in kinds and key not in called]
    if missed and model.attention is None:
        raise HeadscapeError(f"attention layer {missed[0]} of {model.source} was not reached by a forward pass")
    counter: Counter[str] = Counter()
    sites = []
    blocks = _block_names(model, list(called.values()), all(probe.calls[key][1] for key in called))
    for (key, (name, _)), block in zip(called.items(), blocks, strict=True):
        n_heads, causal = probe.calls[key]
        mask: MaskKind = "causal" if causal and not block.endswith(".cross") else "full"
        sites.append(Site(name, block, counter[block], n_heads, mask))
        counter[block] += 1
    return sites


def _block_names(model: Model, called: list[tuple[str, nn.Module]], causal: bool) -> list[str]:
    """Name each layer's block: encoder, decoder, decoder.cross; or the path without its layer number."""
    seq2seq = model.task == "seq2seq-lm"
    paths = [re.sub(r"\.\d+\.", ".", f".{name}.").strip(".") or "attention" for name, _ in called]
    if seq2seq:
        return [
            ("decoder" if "decoder" in path else "encoder")
            + (".cross" if _CROSS.search(f"{path} {type(module).__name__}") else "")
            for path, (_, module) in zip(paths, called, strict=True)
        ]
    if model.task == "module":
        return ["attention"] * len(called) if len(set(paths)) == 1 or all("." not in p for p in paths) else paths
    if len(set(paths)) == 1:
        return ["decoder" if causal else "encoder"] * len(called)
    modal = [next((name for name, sign in _MODALITIES.items() if sign.search(path)), path) for path in paths]
    return modal if len(set(modal)) == len(set(paths)) else paths


def select_heads(model: Model, heads: Any) -> dict[str, list[int]]:
    """Turn head ids (HeadId, 'block.layer.head', or 'layer.head' and (layer, head) when there is one block) into {site: heads}."""
    by_place = {(site.block, site.layer): site for site in model.sites}
    blocks = sorted({site.block for site in model.sites})
    chosen: dict[str, list[int]] = {}
    for head in heads:
        if isinstance(head, str):
            head = HeadId.parse(head, blocks)
        elif len(head) == 2:
            if len(blocks) > 1:
                raise InputError(f"head {tuple(head)} needs its block, one of {', '.join(blocks)}")
            head = HeadId(blocks[0], *head)
        site = by_place.get((head[0], head[1]))
        if site is None or not 0 <= head[2] < site.n_heads:
            raise InputError(f"{model.source} has no head {HeadId(*head)}")
        chosen.setdefault(site.name, []).append(head[2])
    return {name: sorted(set(found)) for name, found in chosen.items()}
