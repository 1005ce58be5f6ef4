"""A still of the head map, shown before plotly is loaded and where scripts are off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headscape.report.palette import CIVIDIS
from headscape.tensor import HeadId

__all__ = ["preview"]

WIDTH, HEIGHT, MARGIN = 700, 460, 24


def preview(coordinates: npt.NDArray[np.float64], heads: Sequence[HeadId]) -> str:
    """Return an SVG of the first two coordinates (n_head, k), coloured by layer.

    >>> preview(np.array([[0.0, 0.0], [1.0, 1.0]]), [HeadId("decoder", 0, 0), HeadId("decoder", 1, 0)]).count("<circle")
    2
    """
    flat = np.zeros((len(coordinates), 2))
    flat[:, : coordinates.shape[1]] = np.nan_to_num(coordinates[:, :2])
    low, span = flat.min(axis=0), np.ptp(flat, axis=0)
    share = (flat - low) / np.where(span > 0, span, 1) if len(flat) else flat
    share = np.where(span > 0, share, 0.5)
    x = MARGIN + share[:, 0] * (WIDTH - 2 * MARGIN)
    y = HEIGHT - MARGIN - share[:, 1] * (HEIGHT - 2 * MARGIN)
    last = max((head.layer for head in heads), default=0) or 1
    dots = "".join(
        f'<circle cx="{a:.0f}" cy="{b:.0f}" r="4" fill="{CIVIDIS[round((len(CIVIDIS) - 1) * head.layer / last)]}"/>'
        for a, b, head in zip(x, y, heads, strict=True)
    )
    return f'<svg class="still" viewBox="0 0 {WIDTH} {HEIGHT}" aria-hidden="true">{dots}</svg>'
