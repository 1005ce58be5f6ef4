"""Modern Hopfield Attention as a torch module, and the hidden state that layers hand to each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscape.errors import InputError

__all__ = [
    "HiddenState",
    "HopfieldAttention",
    "Init",
    "Rotate",
    "Scheme",
    "Skip",
    "carry",
    "check_alphas",
    "skip_over",
]

Init = Literal["zero", "first", "debias"]
Skip = Literal["scaled", "residual"]
Scheme = Literal["forward-backward", "sum"]
Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class HiddenState(NamedTuple):
    """H after `depth` layers: scores (batch, head, query, key) already divided by sqrt(dk), no mask in them.

    `faded` is the product of their a', what is left of H_0.
    """

    scores: Tensor
    depth: int
    faded: float | Tensor = 1.0


def check_alphas(
    alpha: float, alpha_hidden: float, init: str, skip: str, scheme: str = "forward-backward", learned: bool = False
) -> None:
    """Raise an `InputError` for an alpha outside [0, 1) or an unknown `init`, `skip` or `scheme`."""
    for name, value in (("alpha", alpha), ("alpha_hidden", alpha_hidden)):
        if not 0 <= value < 1:  # NaN too
            raise InputError(f"{name} must be at least 0 and below 1, not {value}; 0 switches it off")
    if learned and (alpha_hidden == 0 or (alpha == 0 and skip == "scaled")):
        raise InputError("what is learned starts above 0, for example at 0.02; at 0 it would never move")
    for name, given, known in (("init", init, Init), ("skip", skip, Skip), ("scheme", scheme, Scheme)):
        if given not in get_args(known):
            raise InputError(f"{name} must be one of {', '.join(get_args(known))}, not {given!r}")


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
    and nothing is carried. The scheme "sum" adds scores up without decay, H_n = H_n-1 + S_n (RealFormer).
    """
    if isinstance(alpha_hidden, float | int) and alpha_hidden == 0 and scheme != "sum":
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
    scheme
        "forward-backward", the equation above; "sum": scores are added up without decay (RealFormer).
    learned
        a' of each head is a weight of the layer (its sigmoid), and starts at alpha_hidden; with a scaled skip a of each
        head too: mean_h(a_h) x + sum_h (1 - a_h) P_h V_h W_h.
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
        scheme: Scheme = "forward-backward",
        learned: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_alphas(alpha, alpha_hidden, init, skip, scheme, learned)
        n_kv = n_heads if n_kv_heads is None else n_kv_heads
        if min(dim, n_heads, n_kv) < 1 or (head_dim is None and dim % n_heads) or n_heads % n_kv:
            raise InputError(f"{n_heads} heads do not divide width {dim}, or {n_kv} key heads do not divide them")
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv, head_dim or dim // n_heads
        self.alpha, self.alpha_hidden, self.dropout = alpha, alpha_hidden, dropout
        self.init: Init = init
        self.skip: Skip = skip
        self.scheme: Scheme = scheme
        self.hidden_logit: nn.Parameter | None = _logit(alpha_hidden, n_heads) if learned else None
        self.skip_logit: nn.Parameter | None = _logit(alpha, n_heads) if learned and skip == "scaled" else None
        self.q_proj = nn.Linear(dim, n_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(dim, n_kv * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(dim, n_kv * self.head_dim, bias=bias)
        self.out_proj = nn.Linear(n_heads * self.head_dim, dim, bias=bias)

    @property
    def kept(self) -> float | Tensor:
        """A' as `carry` takes it: the number, or those learned (head, 1, 1)."""
        return self.alpha_hidden if self.hidden_logit is None else torch.sigmoid(self.hidden_logit)[:, None, None]

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
        heads, state = self._attended(query, key, value, state, mask, causal)
        if self.skip_logit is None:
            return skip_over(x, self.out_proj(heads.transpose(1, 2).flatten(2)), self.alpha, self.skip), state
        kept = torch.sigmoid(self.skip_logit)
        out = self.out_proj((heads * (1 - kept[:, None, None])).transpose(1, 2).flatten(2))
        return kept.mean() * x + out, state

    def _attended(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: HiddenState | None,
        mask: Tensor | None,
        causal: bool,
    ) -> tuple[Tensor, HiddenState | None]:
        """Each head's weighted values (batch, head, query, dk), and the state; fused where no score is carried."""
        dropout, n_query, n_key = self.dropout if self.training else 0.0, query.shape[2], key.shape[2]
        plain = self.scheme != "sum" and self.hidden_logit is None and self.alpha_hidden == 0
        own = type(self).scores is not HopfieldAttention.scores
        if plain and not own and mask is None and (not causal or n_query == n_key):
            fused = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
            return fused, None
        entering, state = carry(state, self.scores(query, key), self.kept, self.init, self.scheme)
        probs = F.softmax(_masked(entering, mask, causal), dim=-1)
        return F.dropout(probs, dropout) @ value, state

    def extra_repr(self) -> str:
        """The settings, in the module's print."""
        return (
            f"heads={self.n_heads}/{self.n_kv_heads}, alpha={self.alpha}, alpha_hidden={self.alpha_hidden}, "
            f"init={self.init}, skip={self.skip}, scheme={self.scheme}"
        )


def _logit(start: float, n: int) -> nn.Parameter:
    return nn.Parameter(torch.full((n,), math.log(start / (1 - start))))


def _masked(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    if mask is not None:
        lowest = torch.finfo(scores.dtype).min  # not -inf: a row that is wholly masked stays finite
        scores = scores.masked_fill(~mask, lowest) if mask.dtype == torch.bool else scores + mask
    return scores + _ahead(*scores.shape[-2:], scores.dtype, scores.device) if causal else scores


@lru_cache(maxsize=8)
def _ahead(n_query: int, n_key: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What to add to scores so that no token sees a later one; not the lowest number, as sums must not overflow."""
    with torch.inference_mode(False):
        return torch.full((n_query, n_key), 0.75 * torch.finfo(dtype).min, dtype=dtype, device=device).triu(
            n_key - n_query + 1
        )
