"""What the results of studies share: their sentences and pictures are in two files of the study's folder."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pandas as pd

from headscape.results import FigureSpec, Finding, Result

__all__ = ["StudyResult"]


class StudyResult(Result):
    """A result in the `result.py` of a study's folder."""

    heads: pd.DataFrame

    def to_frame(self) -> pd.DataFrame:
        """One row per head: its `heads`; a study whose results are not about heads has another table."""
        return self.heads

    def findings(self) -> list[Finding]:
        """What was found, in sentences: `findings.py: findings` of the folder."""
        return list(self._folder("findings"))

    def figures(self) -> list[FigureSpec]:
        """Its pictures, as plain data: `figures.py: figures` of the folder."""
        return list(self._folder("figures"))

    def _folder(self, name: str) -> Any:  # both files import this one, so they are imported late
        return getattr(import_module(f"..{name}", type(self).__module__), name)(self)
