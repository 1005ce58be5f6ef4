"""The hidden state that layers hand to each other, in every discretization of the Hopfield equations."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from headscape.errors import InputError

__all__ = ["HiddenState", "Init", "Scheme", "Skip", "carry", "check_alphas", "skip_over"]

Init = Literal["zero", "first", "debias"]
Skip = Literal["scaled", "residual"]
Scheme = Literal["forward-backward", "forward-forward", "backward-forward", "backward-backward", "central", "sum"]
"""Difference quotient of the tokens, then of the scores (section F of the supplement); "sum" is RealFormer's."""
SCALED_ONLY = ("backward-forward", "backward-backward", "central")
UNDIVIDED = ("forward-forward", "central", "sum")


class HiddenState(NamedTuple):
    """H after `depth` layers: scores (batch, head, query, key) already divided by sqrt(dk), no mask in them.

    `faded` is the product of their a', what is left of H_0. `before` and `tokens` are H and the tokens one layer
    earlier, for central differences.
    """

    scores: Tensor
    depth: int
    faded: float | Tensor = 1.0
    before: Tensor | None = None
    tokens: Tensor | None = None


def check_alphas(
    alpha: float, alpha_hidden: float, init: str, skip: str, scheme: str = "forward-backward", learned: bool = False
) -> None:
    """Raise an `InputError` for an alpha outside [0, 1), an unknown name, or names that do not go together."""
    for name, value in (("alpha", alpha), ("alpha_hidden", alpha_hidden)):
        if not 0 <= value < 1:  # NaN too
            raise InputError(f"{name} must be at least 0 and below 1, not {value}; 0 switches it off")
    if learned and (alpha_hidden == 0 or (alpha == 0 and skip == "scaled")):
        raise InputError("a learned value must start above 0, for example at 0.02; from 0 it would never move")
    for name, given, known in (("init", init, Init), ("skip", skip, Skip), ("scheme", scheme, Scheme)):
        if given not in get_args(known):
            raise InputError(f"{name} must be one of {', '.join(get_args(known))}, not {given!r}")
    if scheme in SCALED_ONLY and (skip != "scaled" or learned):
        raise InputError(f"the scheme {scheme} needs a scaled skip with fixed alphas; take skip='scaled'")
    if scheme in UNDIVIDED and init == "debias":
        raise InputError(f"init='debias' does not apply to the scheme {scheme}; take init='zero' or 'first'")


def carry(
    state: HiddenState | None,
    scores: Tensor,
    alpha_hidden: float | Tensor,
    init: Init = "zero",
    scheme: Scheme = "forward-backward",
) -> tuple[Tensor, HiddenState | None]:
    """One layer of the hidden state: what enters the softmax, and what the next layer gets.

    H_n = a' H_n-1 + (1 - a') S_n, with S_n the scores of this layer. `state` is None in the first layer, where

    * init "zero" takes H_0 = 0: the first layer is flatter by 1 - a' (the paper);
    * "first" takes H_1 = S_1;
    * "debias" takes H_0 = 0 and passes H_n / (1 - a'^n) to the softmax; what is carried stays undivided.

    a' may be a tensor that broadcasts to the scores, such as (head, 1, 1). With a' = 0 scores are returned unchanged,
    and nothing is carried. Other schemes, with rho' = 1 - a':

    * "forward-forward": H_n = a' H_n-1 + (1 - a') S_n-1: scores arrive one layer late (eq. 51); H_1 = 0, or S_1.
    * "central": H_n+1 = H_n-1 + 2 rho' (S_n - H_n), the signs of eq. 61 corrected; begun by a forward step.
    * "sum": H_n = H_n-1 + S_n, no decay (RealFormer).

    The implicit "backward-" schemes differ in the tokens from which scores are computed, not here.
    """
    if isinstance(alpha_hidden, float | int) and alpha_hidden == 0 and scheme not in UNDIVIDED:
        return scores, None
    if state is not None and state.scores.shape != scores.shape:
        raise InputError(
            f"layer {state.depth + 1} has scores of shape {tuple(scores.shape)} (batch, head, query, key), the one "
            f"before it {tuple(state.scores.shape)}; a hidden state needs equal shapes"
        )
    depth, faded = (0, 1.0) if state is None else (state.depth, state.faded)
    if scheme == "sum":
        hidden = scores if state is None else state.scores + scores
        return hidden, HiddenState(hidden, depth + 1)
    if scheme in ("forward-forward", "central"):
        now = (scores if init == "first" else torch.zeros_like(scores)) if state is None else state.scores
        if scheme == "central" and state is not None and state.before is not None:
            after = state.before + 2 * (1 - alpha_hidden) * (scores - now)
        else:
            after = _mixed(scores, now, alpha_hidden)
        return now, HiddenState(after, depth + 1, before=now if scheme == "central" else None)
    faded = faded * alpha_hidden
    if state is None:
        hidden = scores if init == "first" else scores * (1 - alpha_hidden)
    else:
        hidden = _mixed(scores, state.scores, alpha_hidden)
    return hidden / (1 - faded) if init == "debias" else hidden, HiddenState(hidden, depth + 1, faded)


def skip_over(x: Tensor, out: Tensor, alpha: float | Tensor, skip: Skip) -> Tensor:
    """What follows a layer: a x + (1 - a) out ("scaled"; no skip at a = 0), or x + out ("residual")."""
    return _mixed(out, x, alpha) if skip == "scaled" else x + out


def _mixed(new: Tensor, old: Tensor, kept: float | Tensor) -> Tensor:
    """Return kept * old + (1 - kept) * new in the wider of their number types, which differ under autocast."""
    wider = torch.promote_types(new.dtype, old.dtype)
    weight = kept.to(wider) if isinstance(kept, Tensor) else kept
    return torch.lerp(new.to(wider), old.to(wider), weight)
