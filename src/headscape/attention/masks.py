"""Masks in blocks of rows: a mask over thousands of tokens is as large as a map, so it is never built whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["RowMask", "additive_rows", "mask_in_rows", "seen_keys"]


@dataclass(frozen=True)
class RowMask:
    """The mask of a transformers network, as a recipe: any rows of it can be built when they are needed."""

    build: Callable[..., Tensor]  # (q_length, q_offset) -> (batch, 1, q_length, n_key) of floats
    n_query: int
    n_key: int
    offset: int

    def rows(self, rows: slice) -> Tensor:
        """What is added to the scores of these rows, (batch, 1, row, key)."""
        return self.build(q_length=rows.stop - rows.start, q_offset=self.offset + rows.start)


def additive_rows(mask: Tensor | RowMask | None, rows: slice, n_key: int, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores of some rows, (..., row or 1, n_key); a boolean mask says True = present."""
    if mask is None:
        return None
    if isinstance(mask, RowMask):
        return mask.rows(rows)[..., :n_key]
    part = (mask if mask.shape[-2] == 1 else mask[..., rows, :])[..., :n_key]
    if part.dtype == torch.bool:
        return torch.zeros_like(part, dtype=dtype).masked_fill(~part, torch.finfo(dtype).min)
    return part


def seen_keys(mask: Tensor) -> int:
    """How many keys there are up to the last that some row sees, given what is added to the scores (..., row, key)."""
    seen = (mask > torch.finfo(mask.dtype).min / 2).flatten(0, -2).any(dim=0).nonzero()
    return int(seen[-1]) + 1 if len(seen) else mask.shape[-1]


def mask_in_rows(large: Callable[[], int]) -> Callable[..., Any]:
    """A mask builder for transformers that gives a `RowMask` where the mask would take more than `large()` bytes.

    Padding is part of it: which keys are padding does not depend on the row. Masks made by functions that cannot be
    evaluated for some rows alone are built whole.
    """
    from transformers.masking_utils import eager_mask

    def build(*, q_length: int, kv_length: int, q_offset: Any = 0, **rest: Any) -> Any:
        simple = isinstance(q_offset, int) and not rest.get("use_vmap")
        skipped = rest.get("allow_is_bidirectional_skip", False)
        if not simple or skipped or q_length * kv_length * 4 <= large():
            return eager_mask(q_length=q_length, kv_length=kv_length, q_offset=q_offset, **rest)

        def rows(*, q_length: int, q_offset: int) -> Tensor:
            return eager_mask(q_length=q_length, kv_length=kv_length, q_offset=q_offset, **rest)

        return RowMask(rows, q_length, kv_length, q_offset)

    return build
