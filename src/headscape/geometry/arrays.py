"""What comes in: any real array of order two or more, or an AttentionTensor, with names for its axes."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.tensor import AXES, AttentionTensor, check_finite

__all__ = ["as_values", "per_axis"]


def as_values(X: AttentionTensor | npt.ArrayLike) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """Return the array and the names of its axes, after looking for what cannot be organised.

    An AttentionTensor has axes query, key, head; another array axis0, axis1, ... Nothing is copied.

    Raises
    ------
    InputError
        If the order is below two, an axis is empty, the entries are not real numbers, or one is NaN or infinite (the
        message names axis and index).
    """
    if isinstance(X, AttentionTensor):
        values: npt.NDArray[Any] = X.values
        names: tuple[str, ...] = AXES
    else:
        values = np.asarray(X)
        names = tuple(f"axis{a}" for a in range(values.ndim))
    if values.dtype.kind not in "fiub":
        raise InputError(f"an array of real numbers is needed, this one has dtype {values.dtype}")
    if values.ndim < 2:
        raise InputError(f"an array of order 2 or more is needed, this one has shape {values.shape}")
    for name, size in zip(names, values.shape, strict=True):
        if size == 0:
            raise InputError(f"axis '{name}' of the array of shape {values.shape} is empty")
    check_finite(values, names)
    return values, names


def per_axis(names: tuple[str, ...], values: Iterable[Any]) -> Any:
    """Make a named tuple with one value an axis.

    >>> per_axis(("query", "key"), [3, 4])
    Axes(query=3, key=4)
    """
    return _axes(names)(*values)


@cache
def _axes(names: tuple[str, ...]) -> Any:
    axes = namedtuple("Axes", names)  # type: ignore[misc]  # the names are known when an array is
    setattr(axes, "__reduce__", lambda self: (per_axis, (names, tuple(self))))  # noqa: B010 - so that it pickles
    return axes
