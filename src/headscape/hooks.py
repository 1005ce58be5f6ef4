"""What a lower room may ask of a higher one without importing it; the package fills the hooks when it is imported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__: list[str] = []

render_html: Callable[..., str] | None = None
"""How a notebook shows a result (all of it, or the figures named) or a head: `headscape.report.notebook.render`, set in `headscape/__init__.py`."""

restore_conversion: Callable[[Any, Any], None] | None = None
"""How a model that was saved converted is converted again: `headscape.hopfield.convert.restored`."""
