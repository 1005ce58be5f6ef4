"""What the prune study found: its tables, and the export of the very model that was judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.stats import rankdata

from headscape.attention.loss import Loss
from headscape.errors import InputError
from headscape.intervals import Interval, jackknife
from headscape.pruning.compensation import Fitted
from headscape.pruning.judges import cost_unit
from headscape.results import FigureSpec, Finding, Result
from headscape.studies.prune.judging import Curve
from headscape.tensor import HeadId
from headscape.tree import PartitionTree

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.pruning.export import Export, Kind

__all__ = ["CONTROLS", "PruneResult", "percent"]

CONTROLS = ("random", "l1_all_random", "l1_all_natural", "leave_one_out")
"""Never chosen by "auto": the controls, and removing one head at a time, which sees the loss itself."""


def percent(interval: Interval, what: str = "") -> str:
    """An interval in percent, of something, with its n.

    >>> percent(Interval(0.01234, -0.001, 0.03, 8), "drop of accuracy"), percent(Interval(0.01, n=1))
    ('+1.23% [-0.10, +3.00] (drop of accuracy, n = 8)', '+1.00% (n = 1)')
    """
    return f"{_percent(interval)} ({what}{', ' if what else ''}n = {interval.n})"


def _percent(interval: Interval) -> str:
    ends = f" [{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]" if interval.known else ""
    return f"{interval.value:+.2%}{ends}"


@dataclass(frozen=True, eq=False)
class PruneResult(Result):
    """Which heads can be removed.

    `heads` has one row per head: its place in the chosen ranking, whether the proposal removes it, and its score by
    every criterion. `choice` compares criteria and compensations on the inputs to choose on; `curves` are on the judging
    inputs, which nothing was chosen by. `leave_one_out` is (n_head, n_sample) on ranking inputs. `fitted` is the
    compensation of the proposal by attention module; `recipe` says in small JSON how to make the same model again.
    """

    study: ClassVar[str] = "prune"
    title: ClassVar[str] = "Which heads can be removed?"

    block: str
    heads: pd.DataFrame
    criterion: str
    compensation: str
    budget: float | None
    choice: pd.DataFrame
    intact: Loss
    curves: Sequence[Curve]
    trials: Sequence[tuple[int, float]]
    proposal: tuple[HeadId, ...]
    leave_one_out: npt.NDArray[np.float64] | None
    tree: PartitionTree | None
    skipped: Mapping[str, str]
    settings: Mapping[str, Any]
    fitted: Mapping[str, Fitted]
    recipe: Mapping[str, Any]

    def export(self, out: str | Path, kind: Kind = "masked", *, model: Model | None = None, timed: int = 0) -> Export:
        """Write the model that was judged: without the proposed heads, with the compensation fitted for them.

        An export that was interrupted leaves nothing half-written; one that is finished is accepted. `model` is loaded
        unless given; a model made by hand must be given after the result was read from disk. The other parameters are
        those of `hs.export_pruned`.
        """
        from headscape.pruning.export import export_pruned
        from headscape.studies.prune.pruning import Pruning

        if not self.proposal:
            raise InputError("nothing to export: the study proposes no heads to remove")
        checked = self.model if model is None else Pruning.of_recipe(self.recipe).checked(model)
        return export_pruned(checked, self.proposal, out, kind, fitted=self.fitted, recipe=self.recipe, timed=timed)

    @cached_property
    def model(self) -> Model:
        """The intact model; loaded unless the study was made in this process."""
        from headscape.studies.prune.pruning import Pruning

        return Pruning.of_recipe(self.recipe).load()

    def to_frame(self) -> pd.DataFrame:
        """One row per head."""
        return self.heads

    def tables(self) -> dict[str, pd.DataFrame]:
        """The proposal beside its rivals, and all costs."""
        return {"evidence": self.evidence, "costs": self.table}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """Costs under the chosen compensation, and the proposal beside its rivals."""
        shown = self.table[self.table["compensation"] == self.compensation] if len(self.table) else self.table
        titles = (
            f"Cost of removing heads with compensation {self.compensation} ({self.unit})",
            "The proposal beside as many heads by other criteria",
        )
        return [(title, frame) for title, frame in zip(titles, (shown, self.evidence), strict=True) if len(frame)]

    def to_json(self) -> dict[str, Any]:
        """The choice and the proposed heads, findings and tables, and the recipe."""
        chosen = {"criterion": self.criterion, "compensation": self.compensation}
        heads = [str(head) for head in self.proposal]
        return {**chosen, "heads": heads, **super().to_json(), "recipe": dict(self.recipe)}

    @property
    def unit(self) -> str:
        """What a cost measures."""
        return cost_unit(self.intact)

    @property
    def criteria(self) -> list[str]:
        """The criteria that were compared, by their columns."""
        return [name for name in self.heads.columns if name not in ("block", "layer", "head", "place", "removed")]

    def curve(self, criterion: str, compensation: str | None = None, proposal: bool = False) -> Curve | None:
        """The curve of a criterion, under the chosen compensation unless another is named."""
        wanted = (criterion, compensation or self.compensation, proposal)
        return next((c for c in self.curves if (c.criterion, c.compensation, c.proposal) == wanted), None)

    def share(self, n: int) -> str:
        """A number of heads as a share of all."""
        return f"{n / len(self.heads):.0%}"

    @cached_property
    def table(self) -> pd.DataFrame:
        """Cost by criterion, compensation and number of heads, best curve first; intervals are over n inputs."""
        rows = []
        for c in sorted((c for c in self.curves if not c.proposal), key=lambda c: (c.compensation, c.area.value)):
            costs = {f"{self.share(n)} removed": _percent(c.cost(i)) for i, n in enumerate(c.n)}
            facts = {"criterion": c.criterion, "compensation": c.compensation}
            rows.append({**facts, **costs, "mean": _percent(c.area), "n": c.area.n})
        return pd.DataFrame(rows)

    @cached_property
    def evidence(self) -> pd.DataFrame:
        """The proposal beside as many heads by other criteria, under the same compensation; intervals over n inputs."""
        own = self.curve("proposal", proposal=True)
        rows = []
        for c in (c for c in self.curves if c.proposal and own is not None):
            more = "" if c is own or own is None else _percent(c.minus(own))
            row = {"removed by": c.criterion, "heads": c.n[0], "cost": _percent(c.cost(0)), "n": c.area.n}
            rows.append({**row, "loss": f"{c.losses.mean():.4g}", "costs more than the proposal by": more})
        return pd.DataFrame(rows)

    @cached_property
    def correlations(self) -> dict[str, Interval]:
        """Spearman correlation of each criterion with leave-one-out; the interval is over sequences."""
        if self.leave_one_out is None:
            return {}
        rises, found = self.leave_one_out, {}
        for name in self.criteria:
            rank = rankdata(self.heads[name])

            def with_loss(chosen: npt.NDArray[np.intp], rank: npt.NDArray[np.float64] = rank) -> float:
                other = rankdata(rises[:, chosen].mean(axis=1))
                return 0.0 if rank.std() == 0 or other.std() == 0 else float(np.corrcoef(rank, other)[0, 1])

            if name != "leave_one_out":
                found[name] = jackknife(with_loss, rises.shape[1])
        return found

    def findings(self) -> list[Finding]:
        """The proposal first, then what it is compared with."""
        from headscape.studies.prune.findings import findings

        return findings(self)

    def figures(self) -> list[FigureSpec]:
        """The proposal, the curves, compensation, importance, correlations, clusters of the tree, the choice."""
        from headscape.studies.prune.figures import figures

        return figures(self)
