"""Networks and training settings by name: the paper's sizes, and small ones for a laptop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headscape.errors import InputError
from headscape.hopfield.networks import NetworkConfig

__all__ = ["PRESETS", "Preset", "preset"]


@dataclass(frozen=True)
class Preset:
    """A network, and how it is trained by default."""

    about: str
    network: NetworkConfig
    batch: int
    steps: int
    rates: tuple[float, ...]
    warmup: int
    label_smoothing: float = 0.0
    weight_decay: float = 0.1
    floor: float = 0.0  # learning rate at the end of the cosine
    warmup_rate: float = 0.0  # learning rate at the start of the warm-up
    cooldown: int = 0  # last steps, at the floor
    augment: str = "light"


def _gpt(about: str, layers: int, heads: int, dim: int, batch: int, **changes: Any) -> Preset:
    network = NetworkConfig("gpt", layers, heads, dim, **{"outputs": 50257, "tokens": 1024} | changes)
    return Preset(about, network, batch, 100_000, (6e-4,), 2000, floor=1e-6, warmup_rate=1e-6)


def _vit(about: str, layers: int, heads: int, dim: int, batch: int, drop_path: float) -> Preset:
    network = NetworkConfig("vit", layers, heads, dim, outputs=10, image=224, patch=16, channels=3, drop_path=drop_path)
    epoch = 50_000 // batch  # CIFAR
    fixed = Preset(about, network, batch, 310 * epoch, (6.25e-5,), 20 * epoch, 0.1, 0.05, floor=1e-6)
    return replace(fixed, warmup_rate=1e-6, cooldown=10 * epoch, augment="paper")


_SMALL_VIT = NetworkConfig("vit", 6, 4, 64, outputs=10, patch=4)
_SMALL_XL = NetworkConfig("xl", 4, 4, 64, tokens=64, memory=64)
_XL = NetworkConfig("xl", 16, 8, 410, outputs=50257, tokens=150, mlp=2100, head_dim=41, memory=150, dropout=0.1)
_LLAMA = {"outputs": 32000, "mlp": 2048, "modern": True}
_RATES = (1.5e-3, 3e-3, 6e-3)
PRESETS = {
    "gpt": Preset("small GPT", NetworkConfig("gpt", 6, 4, 64), 8, 4000, _RATES, 200),
    "vit": Preset("small ViT, 28 x 28 grey", _SMALL_VIT, 64, 3000, (0.5e-3, 1e-3, 2e-3), 150, weight_decay=0.05),
    "xl": Preset("small Transformer-XL, memory 64", _SMALL_XL, 16, 4000, _RATES, 200),
    "gpt2-small": _gpt("paper, table 2: GPT-2 Small", 12, 12, 768, 12),
    "gpt2-medium": _gpt("paper, table 2: GPT-2 Medium", 24, 16, 1024, 4),
    "llama-small": _gpt("LLaMA-type: RMSNorm, SwiGLU, rotary positions", 12, 12, 768, 12, **_LLAMA),
    "vit-t": _vit("paper, table 3: ViT Tiny", 12, 3, 192, 256, 0.1),
    "vit-s": _vit("paper, table 3: ViT Small", 12, 6, 384, 256, 0.2),
    "vit-b": _vit("paper, table 3: ViT Base", 12, 12, 768, 128, 0.2),
    "vit-l": _vit("paper, table 3: ViT Large", 24, 16, 1024, 32, 0.3),
    "transformer-xl": Preset(
        "Transformer-XL; heads, MLP and memory of its base model", _XL, 60, 200_000, (2.5e-4,), 2000, weight_decay=0.0
    ),
}
"""By name. Where the paper says nothing (steps of the language models, warm-up in steps, memory) the choice is ours."""


def preset(name: str) -> Preset:
    """Look up a preset.

    >>> preset("vit-t").network.dim
    192
    """
    if name not in PRESETS:
        raise InputError(f"no network {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
