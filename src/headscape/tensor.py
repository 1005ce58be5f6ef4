"""AttentionTensor: the query x key x head array that everything else works on, with its names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape import hooks
from headscape.checks import check_finite, integer, one_of
from headscape.errors import InputError

__all__ = [
    "AXES",
    "AttentionHead",
    "AttentionTensor",
    "HeadId",
    "Kind",
    "MaskKind",
    "as_probabilities",
    "block_bounds",
    "block_labels",
    "check_finite",
    "named_heads",
    "present_entries",
    "present_pairs",
]

AXES = ("query", "key", "head")
LABEL_PART = 10  # characters of a token in the label of a block
MaskKind = Literal["causal", "full"]
Kind = Literal["probs", "scores"]


class HeadId(NamedTuple):
    """Which head: block of the network, layer of the block, query head of the layer.

    >>> hs.HeadId("decoder", 3, 7)
    HeadId(block='decoder', layer=3, head=7)
    >>> str(hs.HeadId("decoder", 3, 7))
    'decoder.3.7'
    """

    block: str
    layer: int
    head: int

    def __str__(self) -> str:
        return f"{self.block}.{self.layer}.{self.head}"

    @classmethod
    def parse(cls, text: str, blocks: Collection[str] = ()) -> HeadId:
        """Read back what `str` wrote; a block name may itself contain dots. LAYER.HEAD is one of the only block of `blocks`.

        >>> HeadId.parse("decoder.cross.0.2")
        HeadId(block='decoder.cross', layer=0, head=2)
        >>> HeadId.parse("2.3", ["decoder"])
        HeadId(block='decoder', layer=2, head=3)
        """
        try:
            *block, layer, head = text.rsplit(".", 2)
            place = int(layer), int(head)
            name = block[0] if block else next(iter(blocks))
        except (ValueError, StopIteration):
            raise InputError(f"'{text}' is not a head; write BLOCK.LAYER.HEAD, as in decoder.3.7") from None
        if not block and len(blocks) > 1:
            raise InputError(f"head {text} needs its block, one of {', '.join(blocks)}")
        return cls(name, *place)


def as_probabilities(approximation: npt.NDArray[Any], present: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """Clip rows (query, key, ...) at 0 and divide them by their sums over present keys; one with nothing left is uniform."""
    clipped = np.where(present, np.maximum(approximation, 0.0), 0.0)
    clipped = np.where(clipped.any(axis=1, keepdims=True), clipped, present)
    return np.asarray(clipped / clipped.sum(axis=1, keepdims=True))


def named_heads(known: Sequence[HeadId], heads: Sequence[HeadId | str] | None) -> list[HeadId]:
    """The requested heads, in the order of the known ones; by default all."""
    if heads is None:
        return list(known)
    blocks = list(dict.fromkeys(head.block for head in known))
    wanted = {HeadId.parse(head, blocks) if isinstance(head, str) else HeadId(*head) for head in heads}
    if not wanted:
        raise InputError("no heads given; name some, or leave the option out for all")
    missing = sorted(wanted - set(known))
    if missing:
        raise InputError(f"head {missing[0]} was not captured or not chosen; there are {known[0]} to {known[-1]}")
    return [head for head in known if head in wanted]


def block_bounds(n: int, pool: int) -> npt.NDArray[np.int64]:
    """Cut n tokens into `pool` contiguous blocks as even as possible, the longer ones first, like `numpy.array_split`.

    Block b holds the tokens bounds[b] .. bounds[b + 1] - 1.

    >>> block_bounds(10, 4)
    array([ 0,  3,  6,  8, 10])
    """
    integer("pool, the number of blocks of tokens,", pool, 1, n)
    size, longer = divmod(n, pool)
    b = np.arange(pool + 1, dtype=np.int64)
    return b * size + np.minimum(b, longer)


def block_labels(tokens: Sequence[str], bounds: npt.NDArray[np.int64]) -> list[str]:
    """Name blocks by position and their first and last token; a block of one token is that token.

    Positions come first, so that a truncated label still identifies the block.

    >>> block_labels(["The", " black", " cat", " sat"], np.array([0, 3, 4]))
    ['0-2 The … cat', ' sat']
    """

    def short(token: str) -> str:
        text = token.strip() or token
        return text if len(text) <= LABEL_PART else text[: LABEL_PART - 1] + "…"

    labels = []
    for start, stop in pairwise(bounds.tolist()):
        if stop - start == 1:
            labels.append(tokens[start] if len(tokens) else str(start))
        else:
            words = f" {short(tokens[start])} … {short(tokens[stop - 1])}" if len(tokens) else ""
            labels.append(f"{start}-{stop - 1}{words}")
    return labels


def present_pairs(
    mask: MaskKind, query_bounds: npt.NDArray[np.int64], key_bounds: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """How many (query, key) entries are present in every pair of blocks, (n_query_block, n_key_block).

    A causal map has the entries key <= query + n_key - n_query.

    >>> present_pairs("causal", np.array([0, 2, 4]), np.array([0, 2, 4]))
    array([[3, 0],
           [4, 3]])
    """
    sizes = np.diff(key_bounds)
    if mask == "full":
        return np.diff(query_bounds)[:, None] * sizes
    n_query, n_key = int(query_bounds[-1]), int(key_bounds[-1])
    counts = np.empty((len(query_bounds) - 1, len(sizes)), dtype=np.int64)
    for a, (start, stop) in enumerate(pairwise(query_bounds)):
        last = np.arange(start, stop)[:, None] + n_key - n_query
        counts[a] = np.clip(last + 1 - key_bounds[:-1], 0, sizes).sum(axis=0)
    return counts


def present_entries(
    mask: MaskKind,
    shape: tuple[int, int],
    query_bounds: npt.NDArray[np.int64] | None = None,
    key_bounds: npt.NDArray[np.int64] | None = None,
) -> npt.NDArray[np.bool_]:
    """Which entries of a map (n_query, n_key) are present; with bounds, which pairs of blocks have any."""
    if mask == "full":
        return np.ones(shape, dtype=bool)
    if query_bounds is not None and key_bounds is not None:
        last = query_bounds[1:] - 1 + key_bounds[-1] - query_bounds[-1]
        return np.asarray(key_bounds[None, :-1] <= last[:, None])
    return np.tri(*shape, k=shape[1] - shape[0], dtype=bool)


@dataclass(frozen=True, eq=False)
class AttentionTensor:
    """Attention of every head on one input: values (n_query, n_key, n_head), float32.

    Parameters
    ----------
    values
        Real array of order 3, axes query, key, head. Always stored as float32.
    heads
        One `HeadId` per head; by default all heads of layer 0 of a block named "heads".
    query_tokens, key_tokens
        Display strings; by default the positions.
    mask
        "causal" when entries above the diagonal are absent, else "full". With more keys than queries (a memory of
        earlier tokens) the diagonal ends in the last corner.
    kind
        "probs" (rows sum to 1) or "scores" (what softmax sees).
    query_bounds, key_bounds
        For a pooled tensor, both or neither: its queries and keys are blocks of tokens, block b holds the tokens
        bounds[b] .. bounds[b + 1] - 1, and a value is the mean over the present entries of a pair of blocks (0 where
        there are none).

    >>> X = hs.AttentionTensor(np.full((2, 4, 3), 0.25))
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
    query_bounds: npt.NDArray[np.int64] | None = None
    key_bounds: npt.NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        values = np.asarray(self.values)
        if values.ndim != 3:
            raise InputError(f"attention has three axes {AXES}, this array has shape {values.shape}")
        if values.dtype.kind not in "fiub":
            raise InputError(f"attention is real numbers, this array has dtype {values.dtype}")
        n_query, n_key, n_head = values.shape
        object.__setattr__(self, "values", values.astype(np.float32, copy=False))
        if (self.query_bounds is None) != (self.key_bounds is None):
            raise InputError("a pooled tensor has bounds of its query blocks and of its key blocks; one is missing")
        bounds = {"query": self.query_bounds, "key": self.key_bounds}
        for axis, size in (("query", n_query), ("key", n_key)):
            found = bounds[axis]
            if found is not None and (len(found) != size + 1 or found[0] != 0 or (np.diff(found) < 1).any()):
                raise InputError(f"{axis}_bounds must rise from 0 in {size} steps for a tensor of shape {values.shape}")
        defaults: dict[str, list[Any]] = {
            "heads": [HeadId("heads", 0, h) for h in range(n_head)],
            "query_tokens": block_labels([], _or_single(self.query_bounds, n_query)),
            "key_tokens": block_labels([], _or_single(self.key_bounds, n_key)),
        }
        for name, size in (("heads", n_head), ("query_tokens", n_query), ("key_tokens", n_key)):
            given: list[Any] = list(getattr(self, name)) or defaults[name]
            if len(given) != size:
                raise InputError(f"{len(given)} {name} given, the tensor of shape {values.shape} needs {size}")
            object.__setattr__(self, name, given)
        one_of("mask", self.mask, ("causal", "full"))
        one_of("kind", self.kind, ("probs", "scores"))

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n_query, n_key, n_head)."""
        n_query, n_key, n_head = self.values.shape
        return n_query, n_key, n_head

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which (query, key) entries are present, shape (n_query, n_key)."""
        return present_entries(self.mask, self.shape[:2], self.query_bounds, self.key_bounds)

    @property
    def pooled(self) -> bool:
        """Whether a query or key stands for several tokens."""
        return any(b is not None and int(b[-1]) > len(b) - 1 for b in (self.query_bounds, self.key_bounds))

    def mass(self) -> npt.NDArray[np.float32]:
        """The attention a query puts on a key or block of keys, averaged over the queries of a block.

        With m the mean over the c present entries of a pair of blocks and s the number of its queries, m c / s; of
        probabilities, rows sum to 1. Without pooling these are the values themselves.
        """
        if self.query_bounds is None or self.key_bounds is None:
            return self.values
        counts = present_pairs(self.mask, self.query_bounds, self.key_bounds)
        share = counts / np.diff(self.query_bounds)[:, None]
        return (self.values * share[:, :, None]).astype(np.float32)

    def head(self, layer: int, head: int, block: str | None = None) -> AttentionHead:
        """One head with its tokens; it shows itself in a notebook.

        >>> AttentionTensor(np.eye(3)[:, :, None]).head(0, 0)
        AttentionHead(heads.0.0, 3 queries x 3 keys, full, probs)
        """
        found = [i for i, h in enumerate(self.heads) if h[1:] == (layer, head) and block in (None, h.block)]
        if not found:
            (first, last), most = (
                (edge(h.layer for h in self.heads) for edge in (min, max)),
                max(h.head for h in self.heads),
            )
            raise InputError(
                f"there is no head {layer}.{head}; layers go from {first} to {last}, heads from 0 to {most}"
            )
        i = found[0]
        bounds = self.query_bounds, self.key_bounds
        present = present_entries(self.mask, self.shape[:2], *bounds)
        return AttentionHead(
            self.values[:, :, i], self.heads[i], self.query_tokens, self.key_tokens, present, self.mask, self.kind
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=bool(copy)) if copy else np.asarray(self.values, dtype=dtype)

    def __repr__(self) -> str:
        q, k, h = self.shape
        pooled = ""
        if self.query_bounds is not None and self.key_bounds is not None:
            pooled = f", pooled from {self.query_bounds[-1]} x {self.key_bounds[-1]} tokens"
        return f"AttentionTensor({q} queries x {k} keys x {h} heads, {self.mask}, {self.kind}{pooled})"


@dataclass(frozen=True, eq=False)
class AttentionHead:
    """One head on one input: values (n_query, n_key), its id, tokens, and which entries are present.

    >>> head = X.head(0, 1)  # layer 0, head 1
    >>> head
    AttentionHead(decoder.0.1, 16 queries x 16 keys, causal, probs)
    >>> bool(np.allclose(head.values.sum(axis=1), 1, atol=1e-3))  # every query spreads a total of 1
    True
    """

    values: npt.NDArray[np.float32]
    id: HeadId
    query_tokens: list[str]
    key_tokens: list[str]
    present: npt.NDArray[np.bool_]
    mask: MaskKind = "full"
    kind: Kind = "probs"

    @property
    def masked(self) -> npt.NDArray[np.float32]:
        """The values, NaN where a query cannot attend."""
        return np.where(self.present, self.values, np.float32(np.nan))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=bool(copy)) if copy else np.asarray(self.values, dtype=dtype)

    def __repr__(self) -> str:
        q, k = self.values.shape
        return f"AttentionHead({self.id}, {q} queries x {k} keys, {self.mask}, {self.kind})"

    def _repr_html_(self) -> str | None:
        try:
            return None if hooks.render_html is None else hooks.render_html(self)
        except ModuleNotFoundError:  # the extra "report" is not installed
            return None


def _or_single(bounds: npt.NDArray[np.int64] | None, n: int) -> npt.NDArray[np.int64]:
    return np.arange(n + 1) if bounds is None else bounds
