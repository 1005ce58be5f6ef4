"""A map as a picture of 8-bit greys."""

from __future__ import annotations

import base64
import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from headscape.tensor import Kind

__all__ = ["Encoded", "encode", "png"]

Encoded = tuple[str, float, float]


def encode(
    values: npt.NDArray[np.float32], kind: Kind, present: npt.NDArray[np.bool_], scale: float | None = None
) -> Encoded:
    """One map as a base64 PNG of 8-bit greys, and the values of grey 0 and 255.

    Probabilities are shown by their square root, grey = 255 sqrt(p / max p), so that weak attention is visible too;
    scores linearly between their extremes. `scale` is the largest value of several maps that share their colours; with
    it, scores have 0 in the middle, and grey 0 is left to entries that are absent.
    """
    shown = values[present] if present.any() else np.zeros(1, dtype=np.float32)
    low, high = float(shown.min()), float(shown.max()) if scale is None else scale
    if kind == "probs":
        low = 0.0
    elif scale is not None:
        low = -scale
    share = np.clip((values - low) / ((high - low) or 1.0), 0, 1)
    grey = np.rint(255 * (np.sqrt(share) if kind == "probs" else share)).astype(np.uint8)
    grey = grey if low == 0 or scale is None else np.maximum(grey, 1)
    return png(np.where(present, grey, 0).astype(np.uint8)), low, high


def png(pixels: npt.NDArray[np.uint8]) -> str:
    """The base64 of a PNG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=6)
    return base64.b64encode(file.getvalue()).decode("ascii")
