"""Networks and training settings by name: the paper's, and small ones for a laptop."""

from __future__ import annotations

from dataclasses import dataclass

from headscape.errors import InputError
from headscape.hopfield.networks import NetworkConfig

__all__ = ["PRESETS", "Preset", "preset"]


@dataclass(frozen=True)
class Preset:
    """A network, and how it is trained when nothing else is said."""

    about: str
    network: NetworkConfig
    batch: int
    steps: int
    rates: tuple[float, ...]
    warmup: int
    label_smoothing: float = 0.0
    weight_decay: float = 0.1
    floor: float = 0.0  # where the cosine ends, absolute


def _vit(about: str, layers: int, heads: int, dim: int, batch: int, drop_path: float) -> Preset:
    network = NetworkConfig("vit", layers, heads, dim, outputs=10, image=224, patch=16, channels=3, drop_path=drop_path)
    epoch = 50_000 // batch  # CIFAR
    return Preset(about, network, batch, 300 * epoch, (6.25e-5,), 20 * epoch, 0.1, 0.05, 1e-6)


_GPT_STEPS = 100_000
PRESETS = {
    "gpt": Preset(
        "small GPT, 6 layers x 4 heads x 64", NetworkConfig("gpt", 6, 4, 64), 8, 1000, (1e-3, 3e-3, 9e-3), 50
    ),
    "vit": Preset(
        "small ViT for 28 x 28 grey images, 6 layers x 4 heads x 64",
        NetworkConfig("vit", 6, 4, 64, outputs=10, patch=7),
        *(64, 1000, (0.5e-3, 1.5e-3, 4.5e-3), 50, 0.0, 0.05),
    ),
    "xl": Preset(
        "small Transformer-XL, 4 layers x 4 heads x 64, memory 64",
        NetworkConfig("xl", 4, 4, 64, tokens=64, memory=64),
        *(16, 1000, (1e-3, 3e-3, 9e-3), 50),
    ),
    "gpt2-small": Preset(
        "paper, table 2: GPT-2 Small",
        NetworkConfig("gpt", 12, 12, 768, outputs=50257, tokens=1024),
        *(12, _GPT_STEPS, (6e-4,), 2000, 0.0, 0.1, 1e-6),
    ),
    "gpt2-medium": Preset(
        "paper, table 2: GPT-2 Medium",
        NetworkConfig("gpt", 24, 16, 1024, outputs=50257, tokens=1024),
        *(4, _GPT_STEPS, (6e-4,), 2000, 0.0, 0.1, 1e-6),
    ),
    "llama-small": Preset(
        "LLaMA-type of GPT-2 Small's size: RMSNorm, SwiGLU, rotary positions",
        NetworkConfig("gpt", 12, 12, 768, outputs=32000, tokens=1024, mlp=2048, modern=True),
        *(12, _GPT_STEPS, (6e-4,), 2000, 0.0, 0.1, 1e-6),
    ),
    "vit-t": _vit("paper, table 3: ViT Tiny", 12, 3, 192, 256, 0.1),
    "vit-s": _vit("paper, table 3: ViT Small", 12, 6, 384, 256, 0.2),
    "vit-b": _vit("paper, table 3: ViT Base", 12, 12, 768, 128, 0.2),
    "vit-l": _vit("paper, table 3: ViT Large", 24, 16, 1024, 32, 0.3),
    "transformer-xl": Preset(
        "Transformer-XL, 16 layers x 8 heads x 410; heads of 41, MLP and memory as in its base model",
        NetworkConfig("xl", 16, 8, 410, outputs=50257, tokens=150, mlp=2100, head_dim=41, memory=150, dropout=0.1),
        *(60, 200_000, (2.5e-4,), 2000, 0.0, 0.0),
    ),
}
"""By name. Where the paper says nothing (steps of the language models, warm-up in steps, memory) the choice is ours.
Of its image augmentation only flips and shifts are built: no mixup, cutmix, RandAugment or erasing."""


def preset(name: str) -> Preset:
    """Look a name up.

    >>> preset("vit-t").network.dim
    192
    """
    if name not in PRESETS:
        raise InputError(f"no network {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
