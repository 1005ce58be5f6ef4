"""AttentionTensor: the query x key x head array that everything else works on, with its names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError

__all__ = ["AXES", "AttentionTensor", "HeadId", "Kind", "MaskKind", "check_finite"]

AXES = ("query", "key", "head")
MaskKind = Literal["causal", "full"]
Kind = Literal["probs", "scores"]


class HeadId(NamedTuple):
    """Where a head lives: which block of the network, which layer of it, which query head.

    >>> HeadId("decoder", 3, 7)
    HeadId(block='decoder', layer=3, head=7)
    >>> str(HeadId("decoder", 3, 7))
    'decoder.3.7'
    """

    block: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.block}.{self.layer}.{self.head}"

    @classmethod
    def parse(cls, text: str) -> HeadId:
        """Read back what `str` wrote; a block name may itself contain dots.

        >>> HeadId.parse("decoder.cross.0.2")
        HeadId(block='decoder.cross', layer=0, head=2)
        """
        try:
            block, layer, head = text.rsplit(".", 2)
            return cls(block, int(layer), int(head))
        except ValueError:
            raise InputError(f"'{text}' is not a head; write BLOCK.LAYER.HEAD, as in decoder.3.7") from None


def check_finite(values: npt.NDArray[Any], axes: Sequence[str]) -> None:
    """Raise an `InputError` that names axis and index of the first NaN or infinity."""
    bad = ~np.isfinite(values)
    if bad.any():
        index = np.unravel_index(int(np.argmax(bad)), values.shape)
        where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, index, strict=True))
        raise InputError(f"{values[index]} at {where} ({int(bad.sum())} such entries); remove or replace them first")


@dataclass(frozen=True, eq=False)
class AttentionTensor:
    """Attention of every head on one input: values (n_query, n_key, n_head), float32.

    Parameters
    ----------
    values
        Real array of order 3, axes query, key, head. Kept as float32 whatever comes in.
    heads
        One `HeadId` a head; by default all heads of layer 0 of a block named "heads".
    query_tokens, key_tokens
        Display strings; by default the positions.
    mask
        "causal" when entries above the diagonal are absent, else "full". With more keys than queries (a memory of
        earlier tokens) the diagonal ends in the last corner.
    kind
        "probs" (rows sum to 1) or "scores" (what softmax sees).

    >>> X = AttentionTensor(np.full((2, 4, 3), 0.25))
    >>> X
    AttentionTensor(2 queries x 4 keys x 3 heads, full, probs)
    >>> X.heads[1]
    HeadId(block='heads', layer=0, head=1)
    """

    values: npt.NDArray[np.float32]
    heads: list[HeadId] = field(default_factory=list)
    query_tokens: list[str] = field(default_factory=list)
    key_tokens: list[str] = field(default_factory=list)
    mask: MaskKind = "full"
    kind: Kind = "probs"

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.ndim != 3:
            raise InputError(f"attention has three axes {AXES}, this array has shape {values.shape}")
        if values.dtype.kind not in "fiub":
            raise InputError(f"attention is real numbers, this array has dtype {values.dtype}")
        n_query, n_key, n_head = values.shape
        object.__setattr__(self, "values", values.astype(np.float32, copy=False))
        defaults: dict[str, list[Any]] = {
            "heads": [HeadId("heads", 0, h) for h in range(n_head)],
            "query_tokens": [str(i) for i in range(n_query)],
            "key_tokens": [str(i) for i in range(n_key)],
        }
        for name, size in (("heads", n_head), ("query_tokens", n_query), ("key_tokens", n_key)):
            given: list[Any] = list(getattr(self, name)) or defaults[name]
            if len(given) != size:
                raise InputError(f"{len(given)} {name} given, the tensor of shape {values.shape} needs {size}")
            object.__setattr__(self, name, given)
        if self.mask not in ("causal", "full"):
            raise InputError(f"mask is 'causal' or 'full', not {self.mask!r}")
        if self.kind not in ("probs", "scores"):
            raise InputError(f"kind is 'probs' or 'scores', not {self.kind!r}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n_query, n_key, n_head)."""
        n_query, n_key, n_head = self.values.shape
        return n_query, n_key, n_head

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which (query, key) entries exist, shape (n_query, n_key)."""
        n_query, n_key, _ = self.shape
        if self.mask == "full":
            return np.ones((n_query, n_key), dtype=bool)
        return np.tri(n_query, n_key, k=n_key - n_query, dtype=bool)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=bool(copy)) if copy else np.asarray(self.values, dtype=dtype)

    def __repr__(self) -> str:
        q, k, h = self.shape
        return f"AttentionTensor({q} queries x {k} keys x {h} heads, {self.mask}, {self.kind})"
