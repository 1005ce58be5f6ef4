"""Parameters checked by name: each check returns the value, or raises an `InputError` that names both."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError

__all__ = ["LARGEST", "check_finite", "finite", "integer", "one_of", "positive", "renamed", "seed", "within"]

LARGEST = 1e300
"""Entries of an array beyond this are refused: sums and differences of them leave the range of float64."""


P = ParamSpec("P")
R = TypeVar("R")


def renamed(old: str, new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Accept the former name of a parameter, with a warning."""

    def follow(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            if old in kwargs:
                warnings.warn(f"{function.__name__}({old}=) is now {new}=", DeprecationWarning, stacklevel=2)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return called

    return follow


def _refused(name: str, value: Any, what: str) -> InputError:
    return InputError(f"{name} must be {what}, not {value!r}")


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def finite(name: str, value: Any) -> float:
    """A real number, neither NaN nor infinite.

    >>> finite("t", float("nan"))
    Traceback (most recent call last):
    headscape.errors.InputError: t must be a finite number, not nan
    """
    if not math.isfinite(_number(value)):
        raise _refused(name, value, "a finite number")
    return float(value)


def positive(name: str, value: Any) -> float:
    """A number above 0; infinity is one."""
    if not _number(value) > 0:
        raise _refused(name, value, "positive")
    return float(value)


def within(name: str, value: Any, low: float, high: float) -> float:
    """A number from `low` to `high`, both included."""
    if not low <= _number(value) <= high:
        raise _refused(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """A whole number of an integer type, from `low` to `high` where these are given.

    >>> integer("n_iter", 3, low=1)
    3
    >>> integer("n_iter", 2.5, low=1)
    Traceback (most recent call last):
    headscape.errors.InputError: n_iter must be a whole number, not 2.5
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise _refused(name, value, "a whole number") from None
    if isinstance(value, bool):
        raise _refused(name, value, "a whole number")
    if low is not None and number < low and (high is None or low >= 0):
        raise _refused(name, value, f"at least {low}")
    if low is not None and high is not None and not low <= number <= high:
        raise _refused(name, value, f"a whole number from {low} to {high}")
    return number


def seed(value: Any, name: str = "random_state") -> int:
    """A seed: a whole number from 0 to 2**63 - 1.

    >>> seed(-1)
    Traceback (most recent call last):
    headscape.errors.InputError: random_state must be at least 0, not -1
    """
    return integer(name, integer(name, value, low=0), low=0, high=2**63 - 1)


def one_of(name: str, value: Any, options: Iterable[str]) -> str:
    """One of some words.

    >>> one_of("update", "never", ("latest", "previous"))
    Traceback (most recent call last):
    headscape.errors.InputError: update is one of latest, previous, not 'never'
    """
    listed = list(options)
    if value not in listed:
        raise InputError(f"{name} is one of {', '.join(listed)}, not {value!r}")
    return str(value)


def check_finite(values: npt.NDArray[Any], axes: Iterable[str], start: int = 0) -> tuple[float, float]:
    """Smallest and largest entry of an array, or of a block of it that begins at `start` on the first axis.

    Raises an `InputError` that names axis and index of the first entry that is NaN, infinite or beyond `LARGEST`.
    """
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)  # NaN if one is there
    if low >= -LARGEST and high <= LARGEST:
        return low, high
    bad = ~np.isfinite(values)
    way_out = "remove or replace them first"
    if not bad.any():
        bad, way_out = np.abs(values) > LARGEST, f"scale the array first, beyond {LARGEST:g} sums overflow"
    index = np.unravel_index(int(np.argmax(bad)), values.shape)
    where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, (index[0] + start, *index[1:]), strict=True))
    raise InputError(f"{values[index]} at {where} ({int(bad.sum())} such entries); {way_out}")
