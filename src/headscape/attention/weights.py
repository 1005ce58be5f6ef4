"""Weights: the matrices of every layer by what they do, wherever a family keeps them; to be read, or put in place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headscape.attention.placing import on_disk, present
from headscape.attention.projections import columns_of, input_width, layout_of, output_projections, output_width
from headscape.attention.sites import Site
from headscape.attention.wrapping import Model
from headscape.errors import InputError

__all__ = [
    "KINDS",
    "Part",
    "Skipped",
    "check_changeable",
    "check_weights",
    "parts_of",
    "put",
    "read",
    "read_bias",
    "select_parts",
]

Array = npt.NDArray[Any]
Kind = Literal["q", "k", "v", "o", "gate", "up", "down"]
KINDS: tuple[Kind, ...] = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True)
class Part:
    """One matrix (out, in) of a layer: some rows of the weight of a module, seen as (out, in).

    `rows` are None for all of them. `n_heads` heads lie side by side: along the rows for q, k and v, along the columns
    for o; 1 for the maps of the feed-forward part.
    """

    kind: Kind
    block: str
    layer: int
    module: str
    rows: tuple[int, ...] | None = None
    n_heads: int = 1

    def by_head(self, matrix: Array) -> Array:
        """Its matrix cut into heads: (n_head, dim, d) for q, k and v, (n_head, d, dim) for o."""
        if self.kind == "o":
            cut = matrix.reshape(len(matrix), self.n_heads, -1)
            return np.ascontiguousarray(np.moveaxis(cut, 1, 0))
        return matrix.reshape(self.n_heads, -1, matrix.shape[1])

    def joined(self, heads: Array) -> Array:
        """The inverse of `by_head`."""
        if self.kind == "o":
            return np.moveaxis(heads, 0, 1).reshape(heads.shape[1], -1)
        return heads.reshape(-1, heads.shape[2])


class Skipped(NamedTuple):
    """What was left out, and why."""

    place: str
    why: str


def check_changeable(network: nn.Module, what: str) -> None:
    """Raise an `InputError` for a network with layers on disk, whose weights are not available; `what` needs it whole."""
    if on_disk(network):
        raise InputError(f"{what}, and some of its layers are on disk; load it whole (another --device)")


def check_weights(network: nn.Module) -> None:
    """Raise an `InputError` that names the first weight with an entry that is NaN or infinite."""
    for place, module in network.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        with torch.no_grad(), present(module) if any(p.is_meta for p in own.values()) else nullcontext():
            for name, parameter in module.named_parameters(prefix=place, recurse=False):
                # a sum is cheap, and is finite unless an entry is not (or it overflows)
                if not torch.isfinite(parameter.sum()) and not torch.isfinite(parameter).all():
                    raise InputError(
                        f"weight {name} holds NaN or infinite values; nothing computed from it would be meaningful"
                    )


def parts_of(model: Model) -> tuple[list[Part], list[Skipped]]:
    """The matrices of every layer in the order of the layers, and what was left out with the reason.

    Queries, keys and values are cut out of fused maps; grouped keys and values have fewer heads than the queries.
    """
    modules = dict(model.module.named_modules())
    parts: list[Part] = []
    skipped: list[Skipped] = []
    try:
        outputs = output_projections(model)
    except InputError:
        outputs = {}
        skipped.append(Skipped("o", "no linear map takes the heads side by side"))
    for site in model.sites:
        output = outputs.get(site.name)
        found = _inputs(site, modules[site.name], None if output is None else modules[output])
        if not found:
            skipped.append(Skipped(site.name, f"{type(modules[site.name]).__name__} keeps its heads in an unknown way"))
        parts += found
        if output is not None:
            parts.append(Part("o", site.block, site.layer, output, n_heads=site.n_heads))
        width = int(_matrix(modules[found[0].module]).shape[1]) if found else 0
        known = {site.name: site for site in model.sites}
        forward, strange = _feed_forward(site, modules, known, set(outputs.values()), width)
        parts += forward
        skipped += strange
    return parts, skipped


def _inputs(site: Site, module: nn.Module, output: nn.Module | None) -> list[Part]:
    """Queries, keys and values of a layer; none where they are kept in an unknown way."""
    kinds: tuple[Kind, ...] = ("q", "k", "v")
    if isinstance(module, nn.MultiheadAttention):
        if module.in_proj_weight is None:
            return []
        size = module.embed_dim
        thirds = [tuple(range(i * size, (i + 1) * size)) for i in range(3)]
        return [
            Part(kind, site.block, site.layer, site.name, rows, site.n_heads)
            for kind, rows in zip(kinds, thirds, strict=True)
        ]
    if output is None:
        return []
    try:
        layout = layout_of(module, output, site.n_heads)
    except InputError:
        return []
    counts = (layout.n_heads, layout.n_kv_heads, layout.n_kv_heads)
    if layout.kind == "separate":
        return [
            Part(kind, site.block, site.layer, f"{site.name}.{name}", None, n)
            for kind, name, n in zip(kinds, layout.maps, counts, strict=True)
        ]
    name, dim = f"{site.name}.{layout.maps[0]}", layout.dim
    if layout.kind == "interleaved":  # query, key and value of the first head, then of the second
        starts = [[(3 * h + j) * dim for h in range(layout.n_heads)] for j in range(3)]
    else:
        offsets = np.cumsum([0, *counts])
        starts = [[(int(offsets[j]) + h) * dim for h in range(counts[j])] for j in range(3)]
    rows = [tuple(start + i for start in found for i in range(dim)) for found in starts]
    return [Part(kind, site.block, site.layer, name, r, n) for kind, r, n in zip(kinds, rows, counts, strict=True)]


def _feed_forward(
    site: Site, modules: Mapping[str, nn.Module], sites: Mapping[str, Site], outputs: set[str], width: int
) -> tuple[list[Part], list[Skipped]]:
    """The other linear maps of the layer's block, distinguished by their shapes and names.

    A block with self- and cross-attention gives them to the layer that comes first.
    """
    place = _block_of(site, sites)
    inside = [name for name in sites if place and name.startswith(place + ".")]
    if not place or not width or inside[0] != site.name:
        return [], []
    parts: list[Part] = []
    skipped: list[Skipped] = []
    for name, module in modules.items():
        if not name.startswith(place + ".") or name in outputs or any(name.startswith(f"{s}.") for s in inside):
            continue
        leaf = name.rsplit(".", 1)[1]
        if not _is_map(module):
            wide = [p for p in module.parameters(recurse=False) if p.dim() > 2]
            if wide:
                skipped.append(Skipped(name, f"{type(module).__name__} holds arrays of order {wide[0].dim()}"))
            continue
        here = (site.block, site.layer, name)
        n_in, n_out = input_width(module), output_width(module)
        if leaf == "gate_up_proj" and n_in == width:
            parts.append(Part("gate", *here, tuple(range(n_out // 2))))
            parts.append(Part("up", *here, tuple(range(n_out // 2, n_out))))
        elif n_in == width and n_out >= width and not any(p.kind == "down" for p in parts):
            parts.append(Part("gate" if "gate" in leaf or leaf == "wi_0" else "up", *here))
        elif n_out == width and n_in >= width:
            parts.append(Part("down", *here))
        else:
            skipped.append(Skipped(name, f"a map of {n_in} to {n_out}, neither into nor out of a wider layer"))
    return parts, skipped


def _is_map(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return (isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D") and isinstance(weight, Tensor)


def _block_of(site: Site, sites: Mapping[str, Site]) -> str:
    """The outermost numbered module around a layer that holds no second layer of the same block; '' without one."""
    for match in re.finditer(r"\.?\d+(?=\.)", site.name):
        place = site.name[: match.end()]
        if sum(name.startswith(place + ".") and other.block == site.block for name, other in sites.items()) == 1:
            return place
    return ""


def _matrix(module: nn.Module) -> Tensor:
    """The whole weight as (out, in), a view."""
    if isinstance(module, nn.MultiheadAttention):
        assert module.in_proj_weight is not None
        return module.in_proj_weight.detach()
    return columns_of(module)


def _names(module: nn.Module) -> tuple[str, str]:
    """The attributes that hold weight and bias."""
    return ("in_proj_weight", "in_proj_bias") if isinstance(module, nn.MultiheadAttention) else ("weight", "bias")


def _rows(part: Part, tensor: Tensor) -> Tensor:
    return tensor if part.rows is None else tensor[torch.tensor(part.rows, device=tensor.device)]


def read(model: Model, part: Part) -> npt.NDArray[np.float32]:
    """The matrix of a part, (out, in)."""
    module = model.module.get_submodule(part.module)
    with present(module):
        return _rows(part, _matrix(module)).float().cpu().numpy().copy()


def read_bias(model: Model, part: Part) -> npt.NDArray[np.float32] | None:
    """The bias of a part, (out,); None where there is none."""
    module = model.module.get_submodule(part.module)
    with present(module):
        bias = getattr(module, _names(module)[1], None)
        return None if bias is None else _rows(part, bias.detach()).float().cpu().numpy().copy()


@contextmanager
def put(model: Model, matrices: Iterable[tuple[Part, Array, Array | None]]) -> Iterator[Model]:
    """Put matrices, and biases where not None, in place of parts; the original parameters are restored afterwards.

    Raises an `InputError` when a shape does not fit, or weights are only read from disk for a pass.
    """
    if on_disk(model.module):
        raise InputError(f"weights of {model.source} lie on disk and cannot be changed; load it without a device map")
    with ExitStack() as restore:
        changed: set[str] = set()
        for part, matrix, bias in matrices:
            module = model.module.get_submodule(part.module)
            if part.module not in changed:
                changed.add(part.module)
                for name in _names(module):
                    _replace(module, name, restore)
            _write(part, _matrix(module), matrix)
            if bias is not None:
                _write(part, getattr(module, _names(module)[1]).detach(), bias)
        yield model


def _replace(module: nn.Module, name: str, restore: ExitStack) -> None:
    """Give a module a copy of a parameter until the stack is closed."""
    own = getattr(module, name, None)
    if own is None:
        return
    copy = nn.Parameter(own.detach().clone(), requires_grad=own.requires_grad)
    restore.callback(setattr, module, name, own)
    setattr(module, name, copy)


def _write(part: Part, target: Tensor, values: Array) -> None:
    given = torch.as_tensor(np.ascontiguousarray(values)).to(target)
    if given.shape != _rows(part, target).shape:
        raise InputError(
            f"{part.kind} of {part.block}.{part.layer} has shape {tuple(_rows(part, target).shape)}, "
            f"{tuple(given.shape)} was given"
        )
    if part.rows is None:
        target.copy_(given)
    else:
        target[torch.tensor(part.rows, device=target.device)] = given


def select_parts(parts: Sequence[Part], kinds: Sequence[str], layers: Iterable[int] | None = None) -> list[Part]:
    """The parts of some kinds and layers; unknown ones are an `InputError`."""
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise InputError(f"no matrix is called {unknown[0]!r}; there are {', '.join(KINDS)}")
    wanted = None if layers is None else set(layers)
    if wanted is not None:
        missing = sorted(wanted - {part.layer for part in parts})
        if missing:
            raise InputError(f"there is no layer {missing[0]} among those that can be read")
    found = [part for part in parts if part.kind in kinds and (wanted is None or part.layer in wanted)]
    if not found:
        raise InputError(f"no {', '.join(kinds)} matrix of this network is understood")
    return found
