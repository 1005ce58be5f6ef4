"""Modern Hopfield Attention as a torch module, and the hidden state that layers hand to each other."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscape.errors import InputError, NotConvergedError
from headscape.hopfield.state import HiddenState, Init, Scheme, Skip, carry, check_alphas, skip_over

__all__ = ["HopfieldAttention", "KeyValues", "Rotate"]

Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
TOLERANCE = 1e-5  # of the fixed-point iteration of the implicit schemes, relative to the largest token
MAX_ITERATIONS = 200


class KeyValues:
    """Keys and values (batch, head, token, dk) that one layer computed so far; generation passes one per layer."""

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.value: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.key is None else self.key.shape[2]

    def added(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append those of the new tokens and return all."""
        if self.key is not None and self.value is not None:
            key, value = torch.cat([self.key, key], dim=2), torch.cat([self.value, value], dim=2)
        self.key, self.value = key, value
        return key, value


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
        "forward-backward", the equations above; the other discretizations of section F (`carry`): "forward-forward"
        (scores one layer late), "backward-forward" and "backward-backward" (implicit: X_n+1 = a X_n +
        (1 - a) softmax(H) V(X_n+1) is solved by iteration to a relative change of 1e-5, through which gradients flow),
        "central" (X_n+1 = X_n-1 + 2 (1 - a) (softmax(H_n) V(X_n) - X_n), unstable); and "sum": scores are added up
        without decay (RealFormer).
    learned
        a' of each head is a weight of the layer (its sigmoid), and starts at alpha_hidden; with a scaled skip a of each
        head too: mean_h(a_h) x + sum_h (1 - a_h) P_h V_h W_h.
    dropout
        Share of the probabilities dropped in training.

    >>> import torch
    >>> layer = hs.HopfieldAttention(8, 2)
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
        if dropout and scheme.startswith("backward"):
            raise InputError(f"the scheme {scheme} is solved by iteration, which dropout would change; take dropout=0")
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
        norm: Callable[[Tensor], Tensor] | None = None,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        rotate: Rotate | None = None,
        cache: KeyValues | None = None,
    ) -> tuple[Tensor, HiddenState | None]:
        """One layer.

        Parameters
        ----------
        x
            Tokens (batch, token, dim): what the skip carries.
        state
            What the layer before returned; None in the first.
        norm
            Applied to what attention reads in place of x: a LayerNorm in a pre-norm network.
        memory
            Tokens (batch, earlier, dim) that are attended to but do not attend; their keys come first.
        mask
            Added to the scores, or boolean with True where attention is allowed; broadcast to
            (batch, head, query, key). Never part of the hidden state.
        causal
            Tokens attend only to earlier ones. May be combined with a mask.
        rotate
            Applied to queries and keys (batch, head, token, dk) before the scores, as rotary positions are.
        cache
            Of this layer: keys and values of earlier tokens, to which those of x are added. The state is only that of
            the tokens in x, along depth; nothing else is kept from step to step.

        Returns
        -------
        The tokens after the skip, and the hidden state for the next layer (None when alpha_hidden is 0).
        """
        if x.dim() != 3 or x.shape[-1] != self.q_proj.in_features:
            raise InputError(f"tokens must be (batch, token, {self.q_proj.in_features}), not {tuple(x.shape)}")
        if cache is not None and (memory is not None or self.scheme.startswith("backward")):
            raise InputError("a cache works neither with a memory nor with an implicit scheme")
        read = norm or (lambda tokens: tokens)
        query, key, value = self._projected(read(x), memory, rotate, cache)
        scores = None if self._plain else self.scores(query, key)
        if self.scheme.startswith("backward"):
            assert scores is not None
            return self._solved(x, state, scores, lambda y: self._projected(read(y), memory, rotate), mask, causal)
        heads, after = self._attended(query, key, value, scores, state, mask, causal)
        if self.skip_logit is not None:
            kept = torch.sigmoid(self.skip_logit)
            out = self._joined(heads * (1 - kept[:, None, None]))
            return kept.mean() * x + out, after
        out = self._joined(heads)
        if self.scheme == "central" and after is not None:
            before = None if state is None else state.tokens
            new = (
                skip_over(x, out, self.alpha, "scaled") if before is None else before + 2 * (1 - self.alpha) * (out - x)
            )
            return new, after._replace(tokens=x)
        return skip_over(x, out, self.alpha, self.skip), after

    def _projected(
        self, source: Tensor, memory: Tensor | None, rotate: Rotate | None, cache: KeyValues | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (batch, head, token, dk), after rotation and with as many heads each."""
        keys_from = source if memory is None else torch.cat([memory, source], dim=1)
        query, key, value = (
            projection(given).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection, given in ((self.q_proj, source), (self.k_proj, keys_from), (self.v_proj, keys_from))
        )
        if rotate is not None:
            query, key = rotate(query, key)
        if cache is not None:
            key, value = cache.added(key, value)
        if self.n_kv_heads != self.n_heads:
            key, value = (t.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1) for t in (key, value))
        return query, key, value

    def _joined(self, heads: Tensor) -> Tensor:
        out: Tensor = self.out_proj(heads.transpose(1, 2).flatten(2))
        return out

    @property
    def _plain(self) -> bool:
        """Whether attention is the usual one, which may be fused."""
        usual = self.scheme == "forward-backward" and self.hidden_logit is None and self.alpha_hidden == 0
        return usual and type(self).scores is HopfieldAttention.scores

    def _solved(
        self,
        x: Tensor,
        state: HiddenState | None,
        scores: Tensor,
        projected: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]],
        mask: Tensor | None,
        causal: bool,
    ) -> tuple[Tensor, HiddenState | None]:
        """X' = a x + (1 - a) softmax(h') V(x') by fixed-point iteration from x (eqs. 56 to 59)."""
        y = x
        for _ in range(MAX_ITERATIONS):
            query, key, value = projected(y)
            seen = scores if self.scheme == "backward-forward" else self.scores(query, key)
            heads, after = self._attended(query, key, value, seen, state, mask, causal)
            new = skip_over(x, self._joined(heads), self.alpha, "scaled")
            change = float((new - y).detach().abs().max())
            y = new
            tolerance = max(TOLERANCE, 2 * torch.finfo(value.dtype).eps)  # no finer than what autocast rounds to
            if change <= tolerance * max(1.0, float(y.detach().abs().max())):
                return y, after
            if not math.isfinite(change):
                break
        raise NotConvergedError(
            f"the implicit step did not converge to {TOLERANCE:g} in {MAX_ITERATIONS} iterations; take a larger alpha"
        )

    def _attended(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scores: Tensor | None,
        state: HiddenState | None,
        mask: Tensor | None,
        causal: bool,
    ) -> tuple[Tensor, HiddenState | None]:
        """Each head's weighted values (batch, head, query, dk), and the state; fused where no score is carried."""
        dropout = self.dropout if self.training else 0.0
        if scores is None and mask is None and (not causal or query.shape[2] == key.shape[2]):
            fused = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
            return fused, None
        scores = self.scores(query, key) if scores is None else scores
        entering, after = carry(state, scores, self.kept, self.init, self.scheme)
        probs = F.softmax(_masked(entering, mask, causal), dim=-1)
        return F.dropout(probs, dropout) @ value, after

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
