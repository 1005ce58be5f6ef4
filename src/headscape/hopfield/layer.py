"""Modern Hopfield Attention as a torch module, and the hidden state that layers hand to each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscape.errors import InputError

__all__ = ["HiddenState", "HopfieldAttention", "Init", "Rotate", "Skip", "carry", "check_alphas", "skip_over"]

Init = Literal["zero", "first", "debias"]
Skip = Literal["scaled", "residual"]
Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class HiddenState(NamedTuple):
    """H after `depth` layers: scores (batch, head, query, key) already divided by sqrt(dk), no mask in them."""

    scores: Tensor
    depth: int


def check_alphas(alpha: float, alpha_hidden: float, init: str, skip: str) -> None:
    """Raise an `InputError` for an alpha outside [0, 1) or an unknown `init` or `skip`."""
    for name, value in (("alpha", alpha), ("alpha_hidden", alpha_hidden)):
        if not 0 <= value < 1:  # NaN too
            raise InputError(f"{name} must be at least 0 and below 1, not {value}; 0 switches it off")
    for name, given, known in (("init", init, get_args(Init)), ("skip", skip, get_args(Skip))):
        if given not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, not {given!r}")


def carry(
    state: HiddenState | None, scores: Tensor, alpha_hidden: float, init: Init = "zero"
) -> tuple[Tensor, HiddenState | None]:
    """One layer of the hidden state: what enters the softmax, and what the next layer gets.

    H_n = a' H_n-1 + (1 - a') S_n, with S_n the scores of this layer. `state` is None in the first layer, where

    * init "zero" takes H_0 = 0: the first layer is flatter by 1 - a' (the paper);
    * "first" takes H_1 = S_1;
    * "debias" takes H_0 = 0 and passes H_n / (1 - a'^n) to the softmax; what is carried stays undivided.

    With a' = 0 scores are returned unchanged, and nothing is carried.
    """
    if alpha_hidden == 0:
        return scores, None
    if state is None:
        hidden, depth = scores if init == "first" else scores * (1 - alpha_hidden), 1
    else:
        if state.scores.shape != scores.shape:
            raise InputError(
                f"layer {state.depth + 1} has scores of shape {tuple(scores.shape)} (batch, head, query, key), the one "
                f"before it {tuple(state.scores.shape)}; a hidden state needs equal shapes"
            )
        hidden, depth = _mixed(scores, state.scores, alpha_hidden), state.depth + 1
    entering = hidden / (1 - alpha_hidden**depth) if init == "debias" else hidden
    return entering, HiddenState(hidden, depth)


def skip_over(x: Tensor, out: Tensor, alpha: float, skip: Skip) -> Tensor:
    """What follows a layer: a x + (1 - a) out ("scaled"; no skip at a = 0), or x + out ("residual")."""
    return _mixed(out, x, alpha) if skip == "scaled" else x + out


def _mixed(new: Tensor, old: Tensor, kept: float) -> Tensor:
    """Return kept * old + (1 - kept) * new in the wider of their number types, which differ under autocast."""
    wider = torch.promote_types(new.dtype, old.dtype)
    return torch.lerp(new.to(wider), old.to(wider), kept)


class HopfieldAttention(nn.Module):
    """Attention whose scores are a moving average over the layers before it.

    Per head, along depth:

        H_n = a' H_n-1 + (1 - a') Q_n K_n^T / sqrt(dk);  P_n = softmax(H_n + mask);  X_n+1 = a X_n + (1 - a) P_n V_n W_O

    a = a' = 0 is attention without a skip; a' = 0 and `skip="residual"` the usual layer x + attention(x).

    Parameters
    ----------
    dim, n_heads
        Width of the tokens, and how many heads share it.
    n_kv_heads
        Heads of keys and values, if fewer than of queries (grouped queries).
    head_dim
        Width of a head, if it is not dim / n_heads.
    alpha, alpha_hidden
        a and a', at least 0 and below 1.
    init
        How the hidden state starts: "zero", "first" or "debias" (`carry`).
    skip
        "scaled": a x + (1 - a) attention, which at a = 0 is no skip; "residual": x + attention, alpha unused.
    dropout
        Of the probabilities, in training.

    >>> layer = HopfieldAttention(8, 2)
    >>> x = torch.randn(1, 5, 8)
    >>> x, state = layer(x)
    >>> x, state = layer(x, state)
    >>> tuple(x.shape), tuple(state.scores.shape), state.depth
    ((1, 5, 8), (1, 2, 5, 5), 2)
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        alpha: float = 0.5,
        alpha_hidden: float = 0.5,
        init: Init = "zero",
        skip: Skip = "scaled",
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_alphas(alpha, alpha_hidden, init, skip)
        n_kv = n_heads if n_kv_heads is None else n_kv_heads
        if min(dim, n_heads, n_kv) < 1 or (head_dim is None and dim % n_heads) or n_heads % n_kv:
            raise InputError(f"{n_heads} heads do not divide width {dim}, or {n_kv} key heads do not divide them")
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv, head_dim or dim // n_heads
        self.alpha, self.alpha_hidden, self.dropout = alpha, alpha_hidden, dropout
        self.init: Init = init
        self.skip: Skip = skip
        self.q_proj = nn.Linear(dim, n_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, n_kv * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(dim, n_kv * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(n_heads * self.head_dim, dim, bias=bias)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Q K^T / sqrt(dk), (batch, head, query, key); for another kind of position, override this."""
        return torch.matmul(query * self.head_dim**-0.5, key.transpose(2, 3))

    def forward(
        self,
        x: Tensor,
        state: HiddenState | None = None,
        *,
        source: Tensor | None = None,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        rotate: Rotate | None = None,
    ) -> tuple[Tensor, HiddenState | None]:
        """One layer.

        Parameters
        ----------
        x
            Tokens (batch, token, dim): what the skip carries.
        state
            What the layer before returned; None in the first.
        source
            What attention reads in place of x: LayerNorm(x) in a pre-norm network.
        memory
            Tokens (batch, earlier, dim) that are attended to but do not attend; their keys come first.
        mask
            Added to the scores, or boolean with True where attention is allowed; broadcast to
            (batch, head, query, key). Never part of the hidden state.
        causal
            Tokens attend only to earlier ones. May be combined with a mask.
        rotate
            Applied to queries and keys (batch, head, token, dk) before the scores, as rotary positions are.

        Returns
        -------
        The tokens after the skip, and the hidden state for the next layer (None when alpha_hidden is 0).
        """
        if x.dim() != 3 or x.shape[-1] != self.q_proj.in_features:
            raise InputError(f"tokens must be (batch, token, {self.q_proj.in_features}), not {tuple(x.shape)}")
        source = x if source is None else source
        keys_from = source if memory is None else torch.cat([memory, source], dim=1)
        query, key, value = (
            projection(given).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection, given in ((self.q_proj, source), (self.k_proj, keys_from), (self.v_proj, keys_from))
        )
        if rotate is not None:
            query, key = rotate(query, key)
        if self.n_kv_heads != self.n_heads:
            key, value = (t.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1) for t in (key, value))
        entering, state = carry(state, self.scores(query, key), self.alpha_hidden, self.init)
        probs = F.softmax(_masked(entering, mask, causal), dim=-1)
        heads = F.dropout(probs, self.dropout, self.training) @ value
        out = self.out_proj(heads.transpose(1, 2).flatten(2))
        return skip_over(x, out, self.alpha, self.skip), state

    def extra_repr(self) -> str:
        """The settings, in the module's print."""
        return (
            f"heads={self.n_heads}/{self.n_kv_heads}, alpha={self.alpha}, alpha_hidden={self.alpha_hidden}, "
            f"init={self.init}, skip={self.skip}"
        )


def _masked(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    lowest = torch.finfo(scores.dtype).min  # not -inf: a row that is wholly masked stays finite
    if mask is not None:
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    if causal:
        n_query, n_key = scores.shape[-2:]
        ahead = torch.ones(n_query, n_key, dtype=torch.bool, device=scores.device).triu(n_key - n_query + 1)
        scores = scores.masked_fill(ahead, lowest)
    return scores
