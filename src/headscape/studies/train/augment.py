"""Changes to training images: flips and shifts, or all of the paper's, which also mix images and their labels."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["AUGMENTS", "augmented"]

AUGMENTS = ("none", "light", "paper")
MIXUP, CUTMIX, ERASED = 0.8, 1.0, 0.25  # table 3
MAGNITUDE, OPERATIONS = 0.9, 2  # of RandAugment (9, 0.5): 9 of 10, as a share of the largest change; changes per image


def augmented(
    x: Tensor, labels: Tensor, kind: str, n_classes: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Images (n, channel, height, width) of mean 0 and variance 1, changed, and their targets.

    "light" flips half of them and shifts each by up to one pixel. "paper" also makes two random changes (rotation,
    shear, brightness or contrast) with probability 1/2 each, erases a rectangle of a quarter of them, and mixes each
    batch with itself in reverse, by mixup or cutmix; the targets are then distributions (n, n_classes).
    """
    if kind == "none":
        return x, labels
    x = _shifted(x, generator)
    if kind == "light":
        return x, labels
    for _ in range(OPERATIONS):
        x = _changed(x, generator)
    x = _erased(x, generator)
    wanted = F.one_hot(labels, n_classes).to(x.dtype)
    half = torch.rand(1, generator=generator).item() < 0.5
    kept = _beta(MIXUP if half else CUTMIX, generator)
    if half:
        x = kept * x + (1 - kept) * x.flip(0)
    else:
        box = _box(x.shape[-2:], 1 - kept, generator)
        x = torch.where(box, x.flip(0), x)
        kept = 1 - box.float().mean().item()
    return x, kept * wanted + (1 - kept) * wanted.flip(0)


def _beta(concentration: float, generator: torch.Generator) -> float:
    """A draw from Beta(c, c), by Joehnk's method."""
    while True:
        u, v = (torch.rand(2, generator=generator, dtype=torch.float64) ** (1 / concentration)).tolist()
        if 0 < u + v <= 1:
            return float(u / (u + v))


def _shifted(x: Tensor, generator: torch.Generator) -> Tensor:
    n, _, height, width = x.shape
    flip = torch.rand(n, generator=generator) < 0.5
    x = torch.where(flip[:, None, None, None], x.flip(-1), x)
    dy, dx = torch.randint(0, 3, (2, n), generator=generator)
    rows, columns = dy[:, None] + torch.arange(height), dx[:, None] + torch.arange(width)
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate").permute(0, 2, 3, 1)
    return padded[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _changed(x: Tensor, generator: torch.Generator) -> Tensor:
    """Half of the images rotated by up to 27 degrees, sheared by up to 0.27, made brighter or of other contrast."""
    n = len(x)
    which = torch.randint(0, 4, (n,), generator=generator)
    size = (2 * torch.rand(n, generator=generator) - 1) * MAGNITUDE
    size = torch.where(torch.rand(n, generator=generator) < 0.5, size, torch.zeros(n))
    angle = torch.where(which == 0, size * math.pi / 6, torch.zeros(n))
    shear = torch.where(which == 1, 0.3 * size, torch.zeros(n))
    top = torch.stack([angle.cos(), shear - angle.sin(), torch.zeros(n)], dim=1)
    low = torch.stack([angle.sin(), angle.cos(), torch.zeros(n)], dim=1)
    grid = F.affine_grid(torch.stack([top, low], dim=1), list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    brighter = torch.where(which == 2, size, torch.zeros(n))[:, None, None, None]
    contrast = 1 + torch.where(which == 3, size, torch.zeros(n))[:, None, None, None]
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return (x - mean) * contrast + mean + brighter


def _erased(x: Tensor, generator: torch.Generator) -> Tensor:
    chosen = torch.rand(len(x), generator=generator) < ERASED
    for i in chosen.nonzero().flatten().tolist():
        area = 0.02 + 0.31 * torch.rand(1, generator=generator).item()
        noise = torch.randn(x.shape[1:], generator=generator)
        x[i] = torch.where(_box(x.shape[-2:], area, generator), noise, x[i])
    return x


def _box(size: torch.Size, area: float, generator: torch.Generator) -> Tensor:
    """A rectangle of that share of an image, anywhere (it may reach over the edge), as True in (height, width)."""
    sides = []
    for n, centre in zip(size, torch.rand(2, generator=generator).tolist(), strict=True):
        place = (torch.arange(n) + 0.5) / n
        sides.append((place - centre).abs() <= math.sqrt(area) / 2)
    inside: Tensor = sides[0][:, None] & sides[1][None, :]
    return inside
