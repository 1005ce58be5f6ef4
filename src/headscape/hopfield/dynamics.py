"""The continuous Hopfield equations along depth, their discretizations, and where those are stable.

    tau  dx/dt = softmax(h) V(x) - x            visible state: the tokens        (eq. 45)
    tau' dh/dt = Q(x) K(x)^T - h                hidden state: the scores         (eq. 46)

A layer of a network is one step. With rho = dt/tau and rho' = dt/tau' each difference quotient gives another network;
Modern Hopfield Attention takes the forward one for x and the backward one for h. Everything here is a pure function of
numpy arrays x (token, dim) and h (token, token); the torch layer is `headscape.hopfield.layer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from headscape.errors import HeadscapeError, InputError

__all__ = [
    "DISCRETIZATIONS",
    "Difference",
    "Field",
    "State",
    "alpha_of",
    "amplification",
    "central_step",
    "is_stable",
    "step",
    "trajectory",
    "velocity",
]

Array = npt.NDArray[np.float64]
Difference = Literal["forward", "backward", "central"]
TOLERANCE = 1e-12  # of the fixed-point iteration, relative to the largest entry of the state
MAX_ITERATIONS = 500
DIVERGED = 1e9  # a change this many times the state: the iteration is not a contraction


class State(NamedTuple):
    """Tokens x (token, dim) and scores h (token, token)."""

    x: Array
    h: Array


@dataclass(frozen=True)
class Field:
    """What a layer computes from its tokens: scores Q(x) K(x)^T / sqrt(dk), and values V(x) W_O."""

    scores: Callable[[Array], Array]
    values: Callable[[Array], Array]

    @classmethod
    def of(cls, query: Array, key: Array, value: Array) -> Field:
        """One head from its projections (dim, dk), (dim, dk) and (dim, dim), without biases."""
        scale = query.shape[1] ** -0.5
        return cls(lambda x: (x @ query) @ (x @ key).T * scale, lambda x: x @ value)

    def attended(self, h: Array, x: Array) -> Array:
        """softmax(h) V(x)."""
        found: Array = softmax(h, axis=-1) @ self.values(x)
        return found


def velocity(state: State, field: Field, tau: float = 1.0, tau_hidden: float = 1.0) -> State:
    """Right side of the continuous equations: (dx/dt, dh/dt)."""
    x, h = state
    return State((field.attended(h, x) - x) / tau, (field.scores(x) - h) / tau_hidden)


DISCRETIZATIONS = tuple(product(("forward", "backward"), repeat=2))
"""(visible, hidden) differences of the one-step methods; (forward, backward) is Modern Hopfield Attention."""


def step(
    state: State,
    field: Field,
    rho: float,
    rho_hidden: float,
    visible: Difference = "forward",
    hidden: Difference = "backward",
) -> State:
    """One layer: (x_n, h_n) -> (x_n+1, h_n+1).

    * (forward, backward), the paper's choice: x' = (1-rho) x + rho softmax(h) V(x), then
      h' = (h + rho' S(x')) / (1 + rho').
    * (forward, forward): h' = (1-rho') h + rho' S(x): scores arrive one layer late. rho' = 1 is delayed attention, not
      a score of 0 as the paper says below eq. 51.
    * (backward, .): x' on both sides, solved by fixed-point iteration to a relative change of 1e-12.

    `field` may differ from step to step, as layers do. Central differences need two states: `central_step`.

    Raises
    ------
    InputError
        An unknown pair, a negative step.
    HeadscapeError
        The implicit equation was not solved.
    """
    if (visible, hidden) not in DISCRETIZATIONS:
        known = ", ".join(f"({a}, {b})" for a, b in DISCRETIZATIONS)
        raise InputError(f"no one-step method ({visible}, {hidden}); there are {known}")
    _check_rho(rho, rho_hidden)
    x, h = state

    def new_h(new_x: Array) -> Array:
        if hidden == "forward":
            return h + rho_hidden * (field.scores(x) - h)  # eqs. 51, 57
        return (h + rho_hidden * field.scores(new_x)) / (1 + rho_hidden)  # eqs. 54, 59

    if visible == "forward":
        new_x = x + rho * (field.attended(h, x) - x)  # eqs. 50, 53
    else:
        new_x = _fixed_point(lambda y: (x + rho * field.attended(new_h(y), y)) / (1 + rho), x)  # eqs. 56, 58
    return State(new_x, new_h(new_x))


def _fixed_point(update: Callable[[Array], Array], start: Array) -> Array:
    x = start
    for _ in range(MAX_ITERATIONS):
        new = update(x)
        change = np.abs(new - x).max()
        x = new
        if change <= TOLERANCE * max(1.0, float(np.abs(x).max())):
            return x
        if not change < DIVERGED * max(1.0, float(np.abs(start).max())):
            break
    raise HeadscapeError(
        f"the implicit step did not converge to {TOLERANCE:g} in {MAX_ITERATIONS} iterations; take a smaller step rho"
    )


def central_step(before: State, now: State, field: Field, rho: float, rho_hidden: float) -> State:
    """Central differences for both states: x_n+1 = x_n-1 + 2 rho (softmax(h_n) V(x_n) - x_n), and h likewise.

    The signs of the printed eqs. 60 and 61 are corrected. Unstable for every rho > 0 (`amplification`), which is why it
    is here.
    """
    _check_rho(rho, rho_hidden)
    dx, dh = velocity(now, field)
    return State(before.x + 2 * rho * dx, before.h + 2 * rho_hidden * dh)


def trajectory(
    state: State,
    field: Field,
    n_steps: int,
    rho: float,
    rho_hidden: float,
    visible: Difference = "forward",
    hidden: Difference = "backward",
) -> list[State]:
    """The start and the state after each of n_steps layers that share their weights.

    Central differences begin with one midpoint step, which keeps the method second order.
    """
    if (visible == "central") != (hidden == "central"):
        raise InputError("central differences are taken for both states or for neither")
    states = [state]
    for _ in range(n_steps):
        if visible != "central":
            states.append(step(states[-1], field, rho, rho_hidden, visible, hidden))
        elif len(states) == 1:
            half = step(state, field, rho / 2, rho_hidden / 2, "forward", "forward")
            states.append(central_step(state, half, field, rho / 2, rho_hidden / 2))
        else:
            states.append(central_step(states[-2], states[-1], field, rho, rho_hidden))
    return states


def amplification(method: Difference, z: complex) -> npt.NDArray[np.complex128]:
    """Factors by which one step multiplies a disturbance of dy/dt = lambda y, at z = lambda dt.

    forward 1 + z; backward 1 / (1 - z); central the two roots of g^2 - 2 z g - 1. The leak of both equations is
    lambda = -1/tau, so z = -rho; there the central roots are -rho +- sqrt(1 + rho^2), one of them always below -1.

    >>> amplification("forward", -0.5).real
    array([0.5])
    """
    if method not in get_args(Difference):
        raise InputError(f"a difference is forward, backward or central, not {method!r}")
    if method == "central":
        root = np.sqrt(complex(z) ** 2 + 1)
        return np.array([z + root, z - root])
    return np.array([1 + z if method == "forward" else 1 / (1 - z)], dtype=complex)


def is_stable(method: Difference, z: complex) -> bool:
    """Whether disturbances die out: every factor of `amplification` inside the unit circle.

    At z = -rho: forward for 0 < rho < 2 (without overshooting up to 1), backward for all rho > 0, central never.

    >>> is_stable("forward", -1.9), is_stable("forward", -2.1), is_stable("backward", -50), is_stable("central", -0.01)
    (True, False, True, False)
    """
    return bool((np.abs(amplification(method, z)) < 1).all())


def alpha_of(rho: float, difference: Literal["forward", "backward"]) -> float:
    """The share of the previous state that a step keeps: 1 - rho (forward, the skip a), 1 / (1 + rho) (backward, a').

    >>> alpha_of(0.5, "forward"), alpha_of(1.0, "backward")
    (0.5, 0.5)
    """
    _check_rho(rho, rho)
    return 1 - rho if difference == "forward" else 1 / (1 + rho)


def _check_rho(*rhos: float) -> None:
    for rho in rhos:
        if not (np.isfinite(rho) and rho >= 0):
            raise InputError(f"a step rho must be finite and at least 0, not {rho}")
