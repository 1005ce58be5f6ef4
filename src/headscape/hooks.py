"""Functions that a lower room calls in a higher one without importing it; set when the package is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__: list[str] = []

render_html: Callable[..., str] | None = None
"""Shows a result (all of it, or the figures named) or a head in a notebook: `headscape.report.notebook.render`, set in
`headscape/__init__.py`."""

restore_conversion: Callable[[Any, Any], None] | None = None
"""Converts a model again that was saved after a conversion: `headscape.hopfield.convert.restored`."""
