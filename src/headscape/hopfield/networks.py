"""Transformers to train from scratch: GPT, LLaMA-like, Vision Transformer, Transformer-XL; any kind of attention.

All are pre-norm, x, H = attention(x, H, norm); x = x + mlp(norm(x)), built on `HopfieldAttention`: the standard
network is the one with alpha_hidden 0 and a residual skip. Weights are initialized the same way for every attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscape.errors import InputError
from headscape.hopfield.layer import HopfieldAttention, KeyValues, Rotate
from headscape.hopfield.state import HiddenState, Init, Scheme, Skip, check_alphas

__all__ = ["ARMS", "Arm", "Attention", "NetworkConfig", "Output", "Transformer", "arm", "base_arm"]

Kind = Literal["gpt", "vit", "xl", "model"]
Start = Literal["usual", "scaled"]
STD = 0.02  # of all initial weights, as in GPT-2 and ViT


@dataclass(frozen=True)
class Attention:
    """The kind of attention of a network: see `HopfieldAttention`.

    `start` is how projections into the stream begin: "usual" (GPT-2: smaller by sqrt(2 layers)), or "scaled", as large
    as a stream that every layer scales down asks for (`Transformer`).
    """

    alpha: float = 0.5
    alpha_hidden: float = 0.0
    init: Init = "zero"
    skip: Skip = "residual"
    scheme: Scheme = "forward-backward"
    learned: bool = False
    start: Start = "usual"

    def __post_init__(self) -> None:
        check_alphas(self.alpha, self.alpha_hidden, self.init, self.skip, self.scheme, self.learned)
        if self.start not in get_args(Start):
            raise InputError(f"start must be one of {', '.join(get_args(Start))}, not {self.start!r}")


@dataclass(frozen=True)
class Arm:
    """An arm of a training comparison: one kind of attention, its name in tables and in sentences, and what it changes."""

    title: str
    about: str
    hidden: bool = False  # scores are carried along depth, with a' as given
    scaled: bool = False  # the skip is a x + (1 - a) attention
    changes: Mapping[str, Any] = field(default_factory=dict)  # other fields of `Attention`
    stretch: float = 1.0  # of the number of steps


LEARNED_START = 0.02


def _hopfield(title: str, about: str, **changes: Any) -> Arm:
    """An arm with both the hidden state and the scaled skip."""
    return Arm(title, about, hidden=True, scaled=True, changes=changes)


LEARNED = {"learned": True, "alpha_hidden": LEARNED_START}
ARMS = {
    "standard": Arm("standard", "standard attention with a residual skip"),
    "hidden": Arm("hidden state", "the hidden state alone (scores carried along depth)", hidden=True),
    "skip": Arm("scaled skip", "the scaled skip alone", scaled=True),
    "both": _hopfield("both (Hopfield)", "Modern Hopfield Attention (hidden state and scaled skip)"),
    "rescaled": _hopfield("both, own start", "Modern Hopfield Attention with initial weights made for its scaled skip", start="scaled"),
    "realformer": Arm("RealFormer", "RealFormer (scores added up over depth)", changes={"scheme": "sum"}),
    "learned": Arm("learned hidden state", "a hidden state whose a' is learned per layer and head", changes=LEARNED),
    "delayed": _hopfield("(forward, forward)", "Hopfield attention with scores one layer late (forward, forward)", scheme="forward-forward"),
    "implicit": _hopfield("(backward, backward)", "the implicit Hopfield layer (backward, backward)", scheme="backward-backward"),
    "implicit-delayed": _hopfield("(backward, forward)", "the implicit layer with explicit scores (backward, forward)", scheme="backward-forward"),
    "central": _hopfield("(central, central)", "the Hopfield layer of central differences", scheme="central"),
    "longer": Arm("standard, longer", "standard attention with a third more steps", stretch=4 / 3),
}  # fmt: skip
"""`longer` is the positive control: a gain that a comparison should detect."""


def base_arm(name: str) -> Arm:
    """The arm of a name, which may be followed by the alphas it is run with.

    >>> base_arm("both a=0.3 a'=0.5").title
    "both (Hopfield) a=0.3 a'=0.5"
    """
    key, _, alphas = name.partition(" ")
    if not alphas:
        return ARMS[key]
    about = f"{ARMS[key].about} with {alphas.replace(' ', ' and ').replace('=', ' = ')}"
    return replace(ARMS[key], title=f"{ARMS[key].title} {alphas}", about=about)


def arm(name: str, alpha: float = 0.5, alpha_hidden: float = 0.5, init: Init = "zero") -> Attention:
    """The attention of one of the `ARMS`.

    >>> arm("hidden", alpha_hidden=0.7).alpha_hidden, arm("standard").alpha_hidden
    (0.7, 0.0)
    """
    if name not in ARMS:
        raise InputError(f"no arm {name!r}; there are {', '.join(ARMS)}")
    chosen = ARMS[name]
    usual = Attention(alpha, alpha_hidden if chosen.hidden else 0.0, init, "scaled" if chosen.scaled else "residual")
    return replace(usual, **chosen.changes)


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of a network.

    `outputs` are the classes of a ViT, the vocabulary of the others. `tokens` is the context of a language model,
    `memory` how many earlier tokens a Transformer-XL attends to beyond it. Kind "model" is a trained model, `source`.
    """

    kind: Kind
    layers: int
    heads: int
    dim: int
    outputs: int = 256
    tokens: int = 128
    mlp: int | None = None  # 4 dim when not given
    kv_heads: int | None = None
    head_dim: int | None = None
    memory: int = 0
    image: int = 28
    patch: int = 4
    channels: int = 1
    modern: bool = False  # RMSNorm, SwiGLU, rotary positions, no biases (LLaMA)
    dropout: float = 0.0
    drop_path: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        sizes = {"layers": self.layers, "heads": self.heads, "dim": self.dim, "tokens": self.tokens}
        for name, size in (sizes | {"outputs": self.outputs, "patch": self.patch}).items():
            if size < 1:
                raise InputError(f"{name} must be at least 1, not {size}")
        if self.kind not in get_args(Kind):
            raise InputError(f"a network is one of {', '.join(get_args(Kind))}, not {self.kind!r}")
        if self.kind == "vit" and self.image % self.patch:
            raise InputError(f"patches of {self.patch} do not divide an image of {self.image} pixels")

    @property
    def n_tokens(self) -> int:
        """Tokens in a forward pass; a ViT has one more than patches."""
        return (self.image // self.patch) ** 2 + 1 if self.kind == "vit" else self.tokens


class Output(NamedTuple):
    """What a network returns: logits; tokens before layer 1 and after each layer; memory for the next segment."""

    logits: Tensor
    hidden: list[Tensor]
    memory: list[Tensor]


class RelativeAttention(HopfieldAttention):
    """Transformer-XL's scores: ((q + u) k^T + (q + v) r^T) / sqrt(dk), r a function of how far back the key is."""

    def __init__(self, dim: int, n_heads: int, **options: Any) -> None:
        super().__init__(dim, n_heads, **options)
        self.r_proj = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.u = nn.Parameter(torch.zeros(n_heads, 1, self.head_dim))
        self.v = nn.Parameter(torch.zeros(n_heads, 1, self.head_dim))

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Content and position, (batch, head, query, key)."""
        n_query, n_key = query.shape[2], key.shape[2]
        back = torch.arange(n_key - 1, -1, -1, device=query.device)
        angle = _angles(back, self.r_proj.in_features)
        wave = torch.cat([angle.sin(), angle.cos()], dim=-1)[:, : self.r_proj.in_features].to(query.dtype)
        r = self.r_proj(wave).unflatten(-1, (self.n_heads, -1))
        content = torch.matmul(query + self.u, key.transpose(2, 3))
        position = torch.matmul(query + self.v, r.permute(1, 2, 0))  # column: how far back, the farthest first
        scores: Tensor = (content + _relative_shift(position, n_query, n_key)) * self.head_dim**-0.5
        return scores


def _relative_shift(x: Tensor, n_query: int, n_key: int) -> Tensor:
    """Entry (i, j) becomes that of distance n_key - n_query + i - j; entries for later keys are arbitrary (masked)."""
    padded = F.pad(x, (1, 0)).reshape(*x.shape[:2], n_key + 1, n_query)
    return padded[:, :, 1:].reshape(*x.shape[:2], n_query, n_key)


def _angles(positions: Tensor, dim: int) -> Tensor:
    """Positions times the dim / 2 frequencies of sinusoidal and rotary embeddings."""
    return positions[:, None] * 10000.0 ** (-torch.arange(0, dim, 2, device=positions.device) / dim)


def _rotary(n: int, head_dim: int, like: Tensor, begun: int = 0) -> Rotate:
    angle = _angles(torch.arange(begun, begun + n, device=like.device), head_dim)
    cos, sin = (torch.cat([f(angle)] * 2, dim=-1).to(like.dtype) for f in (torch.cos, torch.sin))

    def turned(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-b, a], dim=-1) * sin

    return lambda query, key: (turned(query), turned(key))


class _Mlp(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        width = config.mlp or 4 * config.dim
        self.up = nn.Linear(config.dim, width, bias=not config.modern)
        self.gate = nn.Linear(config.dim, width, bias=False) if config.modern else None
        self.down = nn.Linear(width, config.dim, bias=not config.modern)
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        return F.dropout(self.down(inner), self.dropout, self.training)


class _Block(nn.Module):
    def __init__(self, config: NetworkConfig, attention: Attention, drop_path: float) -> None:
        super().__init__()
        kind = RelativeAttention if config.kind == "xl" else HopfieldAttention
        self.attention = kind(
            config.dim,
            config.heads,
            n_kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            bias=not config.modern,
            dropout=config.dropout,
            **{name: value for name, value in vars(attention).items() if name != "start"},
        )
        norm = nn.RMSNorm if config.modern else nn.LayerNorm
        self.norm1, self.norm2, self.mlp = norm(config.dim), norm(config.dim), _Mlp(config)
        self.drop_path = drop_path

    def forward(
        self,
        x: Tensor,
        state: HiddenState | None,
        memory: Tensor | None,
        causal: bool,
        rotate: Rotate | None,
        cache: KeyValues | None = None,
    ) -> tuple[Tensor, HiddenState | None]:
        earlier = None if memory is None else self.norm1(memory)
        more = {"norm": self.norm1, "memory": earlier, "causal": causal, "rotate": rotate, "cache": cache}
        new, state = self.attention(x, state, **more)
        x = self._dropped(x, new)
        return self._dropped(x, x + self.mlp(self.norm2(x))), state

    def _dropped(self, x: Tensor, new: Tensor) -> Tensor:
        """In training skip a layer for a share of the sequences (stochastic depth)."""
        if not self.training or self.drop_path == 0:
            return new
        keep = (torch.rand(len(x), 1, 1, device=x.device) >= self.drop_path).to(x.dtype)
        return x + keep * (new - x) / (1 - self.drop_path)


class Transformer(nn.Module):
    """A network with one `NetworkConfig` and one kind of `Attention`.

    >>> net = Transformer(NetworkConfig("gpt", layers=2, heads=2, dim=8, tokens=16), Attention(alpha_hidden=0.5))
    >>> tuple(net(torch.zeros(1, 16, dtype=torch.long)).logits.shape)
    (1, 16, 256)
    """

    def __init__(self, config: NetworkConfig, attention: Attention | None = None) -> None:
        super().__init__()
        self.config, self.attention = config, attention or Attention()
        dim = config.dim
        if config.kind == "vit":
            self.patches = nn.Conv2d(config.channels, dim, config.patch, stride=config.patch)
            self.class_token = nn.Parameter(torch.zeros(1, 1, dim))
        else:
            self.embedding = nn.Embedding(config.outputs, dim)
        learned = config.kind != "xl" and not config.modern
        self.positions = nn.Parameter(torch.zeros(1, config.n_tokens, dim)) if learned else None
        rates = [config.drop_path * i / max(1, config.layers - 1) for i in range(config.layers)]
        self.blocks = nn.ModuleList(_Block(config, self.attention, rate) for rate in rates)
        self.norm = nn.RMSNorm(dim) if config.modern else nn.LayerNorm(dim)
        self.head = nn.Linear(dim, config.outputs, bias=config.kind == "vit")
        if config.kind != "vit":
            self.head.weight = self.embedding.weight
        self._start()

    def _start(self) -> None:
        """Normal weights of one scale; projections into the residual stream smaller by sqrt(2 layers), as in GPT-2.

        A scaled skip a x + (1 - a) attention fades what earlier layers added: after L layers as much is left as of
        (1 - a^2L) / (1 - a^2) whole ones. A start made for it counts these in place of the layers, and output
        projections are larger by 1 / (1 - a).
        """
        counted, grown, a = float(self.config.layers), 1.0, self.attention.alpha
        if self.attention.start == "scaled":
            counted, grown = (1 - a ** (2 * self.config.layers)) / (1 - a**2), 1 / (1 - a)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1 and not name.endswith((".u", ".v")):
                into_stream = name.endswith(("out_proj.weight", "down.weight"))
                std = STD / math.sqrt(2 * counted) if into_stream else STD
                nn.init.normal_(parameter, std=std * grown if name.endswith("out_proj.weight") else std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    @property
    def n_parameters(self) -> int:
        """Number of weights, shared ones counted once."""
        return sum(p.numel() for p in self.parameters())

    def _embedded(self, inputs: Tensor, begun: int) -> Tensor:
        if self.config.kind == "vit":
            x = self.patches(inputs).flatten(2).transpose(1, 2)
            x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1)
        else:
            x = self.embedding(inputs)
        if self.positions is not None:
            last = begun + x.shape[1]
            if last > self.positions.shape[1]:
                raise InputError(f"{last} tokens; the network takes at most {self.positions.shape[1]}")
            x = x + self.positions[:, begun:last]
        return F.dropout(x, self.config.dropout, self.training)

    def forward(
        self, inputs: Tensor, memory: list[Tensor] | None = None, cache: Sequence[KeyValues] | None = None
    ) -> Output:
        """Run images (batch, channel, height, width) or ids (batch, token), with the memory of the segment before.

        With a cache, one `KeyValues` per layer, the ids are those that follow what it has seen.
        """
        begun = len(cache[0]) if cache else 0
        x = self._embedded(inputs, begun)
        config, state = self.config, None
        hidden = [x]
        rotate = _rotary(x.shape[1], config.head_dim or config.dim // config.heads, x, begun) if config.modern else None
        for i, block in enumerate(self.blocks):
            own = memory[i] if memory else None
            x, state = block(x, state, own, config.kind != "vit", rotate, cache[i] if cache else None)
            hidden.append(x)
        final = self.norm(x)
        logits = self.head(final[:, 0] if config.kind == "vit" else final)
        return Output(logits, hidden, self._remembered(hidden, memory))

    def _remembered(self, hidden: list[Tensor], before: list[Tensor] | None) -> list[Tensor]:
        """The last `memory` tokens that entered each layer, without gradients."""
        if self.config.memory == 0:
            return []
        old = before or [h[:, :0] for h in hidden[:-1]]
        joined = [torch.cat([m, h], dim=1) for m, h in zip(old, hidden[:-1], strict=True)]
        return [m[:, -self.config.memory :].detach() for m in joined]
