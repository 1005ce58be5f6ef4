"""Networks of attention alone, from a configuration: what rank collapse looks like without MLPs (table 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscape.collapse.bounds import LayerBounds, d3_decades, layer_bounds
from headscape.collapse.residual import norm_1, norm_1inf, residual
from headscape.errors import InputError

__all__ = [
    *("ALONG", "AttentionNetwork", "AttentionOnly", "Layer", "along_depth", "bounds_of", "four_cells"),
    *("four_variants", "patch_tokens"),
]

Array = npt.NDArray[Any]
Weights = Literal["default", "xavier"]
Norm = Literal["pre", "none"]
POSITION_SCALE = 0.02  # of class token and positions at initialization, as in vision transformers


@dataclass(frozen=True)
class AttentionOnly:
    """Configuration of a network of `depth` attention layers; the defaults are ViT-T without its MLPs.

    Per head, along depth:

        H_n = a' H_n-1 + (1 - a') Q_n K_n^T;  P_n = softmax(H_n / sqrt(dk));  Y_n = sum_h P_n V_n W_O;  H_0 = 0
        X_n+1 = a X_n + (1 - a) Y_n with a skip, Y_n without

    where queries, keys and values come from LayerNorm(X_n) with norm "pre", from X_n with "none".

    Parameters
    ----------
    weights
        "default": as torch initializes a Linear, with biases; "xavier": Xavier-uniform weights, no biases.
    alpha, alpha_hidden
        a, used only with a skip, and a'; at least 0 and below 1.
    """

    depth: int = 12
    width: int = 192
    heads: int = 3
    weights: Weights = "default"
    norm: Norm = "pre"
    skip: bool = False
    alpha: float = 0.5
    alpha_hidden: float = 0.0

    def __post_init__(self) -> None:
        if min(self.depth, self.heads, self.width) < 1 or self.width % self.heads:
            sizes = f"depth {self.depth}, width {self.width} and {self.heads} heads"
            raise InputError(f"{sizes} do not make a network: all must be at least 1, and heads divide the width")
        for name in ("alpha", "alpha_hidden"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 0 and below 1, not {getattr(self, name)}")
        for name, known in (("weights", get_args(Weights)), ("norm", get_args(Norm))):
            if getattr(self, name) not in known:
                raise InputError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")

    @property
    def dim(self) -> int:
        """dk, the width of a head."""
        return self.width // self.heads


def four_variants(config: AttentionOnly, alpha_hidden: float = 0.5) -> dict[str, AttentionOnly]:
    """The network in the four variants {no skip, skip} x {a' = 0, a' > 0}, to see which of the two prevents collapse.

    >>> list(four_variants(AttentionOnly()))
    ["no skip, a'=0", "no skip, a'=0.5", "skip, a'=0", "skip, a'=0.5"]
    """
    return {
        f"{'skip' if skip else 'no skip'}, a'={hidden:g}": replace(config, skip=skip, alpha_hidden=hidden)
        for skip in (False, True)
        for hidden in (0.0, alpha_hidden)
    }


four_cells = four_variants
"""Its name in version 0.1."""


class Layer(NamedTuple):
    """One layer of a forward pass."""

    inputs: Tensor  # (batch, token, width), after the norm
    hidden: Tensor  # H_n, not divided by sqrt(dk): (batch, head, query, key)
    states: Tensor  # X_n+1 (batch, token, width)


class AttentionNetwork(nn.Module):
    """The network of a configuration, in float64; a seed draws the same weights in all four variants.

    >>> network = AttentionNetwork(AttentionOnly(depth=2, width=8, heads=2), seed=0)
    >>> tuple(network(torch.ones(1, 5, 8, dtype=torch.float64)).shape)
    (1, 5, 8)
    """

    def __init__(self, config: AttentionOnly, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        width = config.width
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            layers = [
                {name: nn.Linear(width, width, dtype=torch.float64) for name in "qkvo"} for _ in range(config.depth)
            ]
            if config.weights == "xavier":
                for linear in (linear for maps in layers for linear in maps.values()):
                    nn.init.xavier_uniform_(linear.weight)
                    nn.init.zeros_(linear.bias)
        self.maps = nn.ModuleList(nn.ModuleDict(maps) for maps in layers)

    def layers(self, X: Tensor) -> Iterator[Layer]:
        """Run tokens (batch, token, width) through the network, layer by layer."""
        config = self.config
        if X.dim() != 3 or X.shape[2] != config.width:
            raise InputError(f"the network takes (batch, token, {config.width}), not {tuple(X.shape)}")
        hidden: Tensor | None = None
        for maps in self.maps:
            assert isinstance(maps, nn.ModuleDict)
            inputs = F.layer_norm(X, (config.width,)) if config.norm == "pre" else X
            q, k, v = (maps[name](inputs).unflatten(2, (config.heads, config.dim)).transpose(1, 2) for name in "qkv")
            scores = (1 - config.alpha_hidden) * (q @ k.transpose(2, 3))
            hidden = scores if hidden is None else config.alpha_hidden * hidden + scores
            P = F.softmax(hidden / config.dim**0.5, dim=-1)
            Y = maps["o"]((P @ v).transpose(1, 2).flatten(2))
            X = config.alpha * X + (1 - config.alpha) * Y if config.skip else Y
            yield Layer(inputs, hidden, X)

    def forward(self, X: Tensor) -> Tensor:
        """X after the last layer."""
        for layer in self.layers(X):
            X = layer.states
        return X


class _Weighted(NamedTuple):
    """One layer on one image, with its weights head by head."""

    tokens: Array  # what attention reads (token, width)
    states: Array  # what it leaves (token, width)
    hidden: Array  # H_n, not divided by sqrt(dk): (head, query, key)
    before: Array | None  # H_n-1
    W: Array  # W_V W_O (head, width, width)
    W_QK: Array  # W_Q W_K^T (head, width, width)


def _weighted(network: AttentionNetwork, tokens: Tensor) -> Iterator[_Weighted]:
    config = network.config
    before: Array | None = None
    with torch.no_grad():
        for maps, layer in zip(network.maps, network.layers(tokens[None]), strict=True):
            assert isinstance(maps, nn.ModuleDict)
            weight = {name: linear.get_parameter("weight").T for name, linear in maps.items()}
            q, k, v = (weight[name].reshape(config.width, config.heads, -1).transpose(0, 1) for name in "qkv")
            W, W_QK = v @ weight["o"].reshape(config.heads, -1, config.width), q @ k.transpose(1, 2)
            X, hidden, states = layer.inputs[0].numpy(), layer.hidden[0].numpy(), layer.states[0].numpy()
            yield _Weighted(X, states, hidden, before, W.numpy(), W_QK.numpy())
            before = hidden


def bounds_of(network: AttentionNetwork, tokens: Tensor) -> list[LayerBounds]:
    """The bounds of every layer on tokens (token, width): of the output of attention, before any skip."""
    return [_bounds(network, layer) for layer in _weighted(network, tokens)]


def _bounds(network: AttentionNetwork, layer: _Weighted) -> LayerBounds:
    dim, alpha = network.config.dim, network.config.alpha_hidden
    return layer_bounds(layer.tokens, layer.hidden / dim**0.5, layer.W, layer.W_QK, dim, alpha, layer.before)


ALONG = ("first", "measured", "floor", "repaired", "corrected", "printed")
"""The columns of `along_depth`."""


def along_depth(network: AttentionNetwork, tokens: Tensor) -> Array:
    """What is left of the residual of the tokens (token, width) after each layer, and what bounds it, as log10.

    For networks of attention alone, without norm and skip, to which Theorem D.3 applies. Columns are `ALONG`:
    ||Res(X)||_{1,inf} of the tokens, and after layer n; the round-off of that; the repaired bounds of layers 1 to n one
    after the other (each is a factor of the residual before it); Theorem D.3 corrected and as printed, with the largest
    C1 and C2 of layers 1 to n.
    """
    config = network.config
    if config.skip or config.norm != "none":
        raise InputError("Theorem D.3 is about attention alone: the network must have neither a skip nor a norm")
    first = float(norm_1inf(residual(tokens.numpy())))
    chained, c1, c2 = np.log10(first), 0.0, 0.0
    rows = []
    for n, layer in enumerate(_weighted(network, tokens), start=1):
        chained += np.log10(_bounds(network, layer).anywhere / norm_1inf(residual(layer.tokens)))
        w = norm_1inf(layer.W)
        c1 = max(c1, float(np.max(w * norm_1(layer.W_QK))))
        c2 = max(c2, 0.0 if layer.before is None else float(np.max(w * norm_1(layer.before))))
        scale = 8 * config.heads / config.dim**0.5
        a, b = scale * (1 - config.alpha_hidden) * c1, scale * config.alpha_hidden * c2
        left = norm_1inf(residual(layer.states)), len(layer.states) * np.finfo(np.float64).eps * norm_1inf(layer.states)
        theorem = [d3_decades(a, b, first, n, printed=printed) for printed in (False, True)]
        rows.append([np.log10(first), *np.log10(left), chained, *theorem])
    return np.array(rows)


def patch_tokens(images: npt.ArrayLike, seed: int = 0, *, width: int = 192, size: int = 224, patch: int = 16) -> Tensor:
    """Images (n, height, width) as tokens (n, 1 + n_patch, width) of a vision transformer at initialization.

    Standardized over all images given, resized, cut into patches, each mapped by one linear map as torch initializes
    it; a class token before them, positions added. 224 and 16 make 197 tokens.

    >>> import numpy as np
    >>> tuple(patch_tokens(np.eye(28)[None], size=48).shape)
    (1, 10, 192)
    """
    pixels = torch.as_tensor(images).to(torch.float64)
    if pixels.dim() != 3 or size % patch:
        raise InputError(
            f"images must be (n_image, height, width), and patches of {patch} fill {size}; got {tuple(pixels.shape)}"
        )
    pixels = (pixels - pixels.mean()) / pixels.std().clamp_min(1e-12)
    grey = F.interpolate(pixels[:, None], size=(size, size), mode="bicubic")
    with torch.no_grad(), torch.random.fork_rng([]):
        torch.manual_seed(seed)
        embed = nn.Conv2d(3, width, patch, patch, dtype=torch.float64)  # three equal channels, as for colour
        class_token = POSITION_SCALE * torch.randn(1, 1, width, dtype=torch.float64)
        patches = embed(grey.expand(-1, 3, -1, -1)).flatten(2).transpose(1, 2)
        tokens = torch.cat([class_token.expand(len(patches), 1, width), patches], dim=1)
        return tokens + POSITION_SCALE * torch.randn(tokens.shape[1:], dtype=torch.float64)
