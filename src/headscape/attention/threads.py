"""How many threads torch may use, inside a with block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["torch_threads"]


@contextmanager
def torch_threads(n: int | None) -> Iterator[None]:
    """Let torch use n threads within the block, None for as many as now; afterwards it has the former number again."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(before if n is None else n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
