"""What the prune study found: its tables, and the export of exactly the model that was judged."""

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
from headscape.pruning.criteria import CRITERIA
from headscape.pruning.judges import cost_unit
from headscape.results import few
from headscape.runs import without_places
from headscape.studies.prune.judging import Curve
from headscape.studies.work.result import StudyResult
from headscape.tensor import HeadId
from headscape.tree import PartitionTree

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.pruning.export import Export, Kind

__all__ = ["CONTROLS", "PruneResult", "percent"]

CONTROLS = ("random", "l1_all_random", "l1_all_natural", "leave_one_out")
"""Never chosen by "auto": the controls, and removing one head at a time, which sees the loss itself."""


def percent(interval: Interval, what: str = "") -> str:
    """An interval in percent, what it is of, and its n.

    >>> percent(Interval(0.01234, -0.001, 0.03, 8), "drop of accuracy"), percent(Interval(0.01, n=1))
    ('+1.23% [-0.10, +3.00] (drop of accuracy, n = 8)', '+1.00% (n = 1)')
    """
    return f"{_percent(interval)} ({what}{', ' if what else ''}n = {interval.n})"


def _percent(interval: Interval) -> str:
    ends = f" [{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]" if interval.readable else ""
    return f"{interval.value:+.2%}{ends}"


@dataclass(frozen=True, eq=False)
class PruneResult(StudyResult):
    """Which heads can be removed.

    `heads` has one row per head: its place in the chosen ranking, whether the proposal removes it, and its score by
    every criterion. `choice` compares criteria and compensations on the selection inputs; `abilities` says which of
    them the intact model has there; `curves` are on held-out inputs. `budget` is that of
    every ability that binds, `classes` the accuracy of a classifier by class. `leave_one_out` is
    (n_head, n_sample) on ranking inputs. `fitted` is the compensation of the proposal by attention module; `recipe`
    says in small JSON how to make the same model again.
    """

    study: ClassVar[str] = "prune"
    title: ClassVar[str] = "Which heads can be removed?"

    block: str
    heads: pd.DataFrame
    criterion: str
    compensation: str
    unit: str
    budget: Mapping[str, float]
    choice: pd.DataFrame
    abilities: pd.DataFrame
    intact: Mapping[str, Loss]
    classes: pd.DataFrame
    curves: Sequence[Curve]
    trials: Sequence[tuple[int, float]]
    proposal: tuple[HeadId, ...]
    leave_one_out: npt.NDArray[np.float64] | None
    tree: PartitionTree | None
    skipped: Mapping[str, str]
    settings: Mapping[str, Any]
    fitted: Mapping[str, Fitted]
    recipe: Mapping[str, Any]

    def export(
        self,
        out: str | Path,
        kind: Kind = "auto",
        *,
        model: Model | None = None,
        numbers: str = "f16",
        timed: int = 0,
    ) -> Export:
        """Write the model that was judged: without the proposed heads, with the compensation fitted for them.

        An export that was interrupted leaves nothing half-written; one that is finished is accepted. `model` is loaded
        unless given; a model built in Python must be given once the result was read from disk. The other parameters are
        those of `hs.export_pruned`.
        """
        from headscape.pruning.export import export_pruned
        from headscape.studies.prune.pruning import Pruning

        if not self.proposal:
            raise InputError("nothing to export: the study proposes no heads to remove")
        checked = self.model if model is None else Pruning.of_recipe(self.recipe).checked(model)
        options: dict[str, Any] = {"fitted": self.fitted, "recipe": self.recipe, "numbers": numbers, "timed": timed}
        return export_pruned(checked, self.proposal, out, kind, **options)

    @cached_property
    def model(self) -> Model:
        """The intact model; loaded unless the study was made in this process."""
        from headscape.studies.prune.pruning import Pruning

        return Pruning.of_recipe(self.recipe).load()

    def meanings(self) -> Mapping[str, str]:
        """What the scores of a head mean."""
        pairs = [name for name in map(str, self.heads) if "+" in name]
        averages = {name: f"average of the ranks by {name.replace('+', ' and ')}" for name in pairs}
        known = {name: criterion.about for name, criterion in CRITERIA.items()} | averages
        return known | {"place": "place in the order of removal, lowest removed first"}

    def tables(self) -> dict[str, pd.DataFrame]:
        """What each ability costs, the proposal beside its rivals, all costs, and accuracy by class."""
        named = {"abilities": self.costs, "evidence": self.evidence, "costs": self.table, "classes": self.classes}
        return {name: frame for name, frame in named.items() if len(frame)}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """What each ability costs; of a study also costs under the chosen compensation, and the proposal's rivals."""
        shown = self.table[self.table["compensation"] == self.compensation] if len(self.table) else self.table
        found = {
            f"Without {len(self.proposal)} of {len(self.heads)} heads, on held-out inputs": self.costs,
            f"Cost of removing heads with compensation {self.compensation} ({self.measure})": shown,
            "The proposal, and as many heads by other criteria": self.evidence,
            "Accuracy by class": self.classes,
        }
        return [(title, frame) for title, frame in found.items() if len(frame)]

    def to_json(self) -> dict[str, Any]:
        """The choice and the proposed heads, findings and tables, and the recipe."""
        chosen = {"criterion": self.criterion, "compensation": self.compensation}
        heads = [str(head) for head in self.proposal]
        return {**chosen, "heads": heads, **super().to_json(), "recipe": without_places(self.recipe)}

    @property
    def main(self) -> str:
        """The ability that the model is made for: text, accuracy or similarity."""
        return next(iter(self.intact))

    @property
    def measure(self) -> str:
        """What a cost of the main ability measures."""
        return cost_unit(self.intact[self.main])

    @property
    def criteria(self) -> list[str]:
        """The criteria that were compared, by their columns."""
        return [
            name for name in self.heads.columns if name not in ("block", "layer", "head", "place", "removed", "role")
        ]

    def curve(
        self, criterion: str, compensation: str | None = None, proposal: bool = False, ability: str | None = None
    ) -> Curve | None:
        """The curve of a criterion, of the main ability and under the chosen compensation unless others are named."""
        wanted = (criterion, compensation or self.compensation, proposal, ability or self.main)
        found = (c for c in self.curves if (c.criterion, c.compensation, c.proposal, c.ability) == wanted)
        return next(found, None)

    def on(self, ability: str | None = None, proposal: bool = False) -> list[Curve]:
        """The curves of an ability, of the main one unless another is named."""
        return [c for c in self.curves if c.ability == (ability or self.main) and c.proposal == proposal]

    @cached_property
    def costs(self) -> pd.DataFrame:
        """What the proposal costs by ability: loss or accuracy intact, by chance and now, cost and budget."""
        rows = []
        for ability in self.intact if self.proposal else ():
            own = self.curve("proposal", proposal=True, ability=ability)
            if own is None:
                continue
            facts = self.abilities[self.abilities["ability"] == ability].iloc[0]
            bound = self.budget.get(ability)
            limit = f"{bound:.2%}" if bound is not None else "-" if facts["binds"] else "none: not shown to beat chance"
            intact, now = self.levels(own)
            chance = facts.get("right by chance", np.nan) if own.answers else facts["chance"]
            row = {"ability": ability, "intact": intact, "chance": chance}
            price = _percent(own.cost(0)) if facts["binds"] else "-"
            row |= {"now": now, "cost": price, "budget": limit}
            again = self.curve("healed", proposal=True, ability=ability)
            if again is not None:
                row |= {"healed": self.levels(again)[1], "cost healed": _percent(again.cost(0))}
            rows.append({**row, "n": own.cost(0).n})
        return pd.DataFrame(rows)

    def levels(self, curve: Curve) -> tuple[float, float]:
        """The loss of the intact model and without the heads of a proposal; the accuracy where answers are counted."""
        intact = self.intact[curve.ability]
        if not curve.answers or intact.correct is None:
            return intact.mean, float(curve.losses.mean())
        right = float(intact.correct.mean())
        return right, right - curve.cost(0).value

    @property
    def roles(self) -> dict[str, tuple[int, int]]:
        """By role: how many of its heads are removed, of how many; empty where roles are not known."""
        if "role" not in self.heads:
            return {}
        gone = self.heads["removed"] == "yes"
        counts = self.heads.groupby("role")["removed"].agg(len)
        removed = self.heads[gone].groupby("role")["removed"].agg(len)
        return {str(role): (int(removed.get(role, 0)), int(n)) for role, n in counts.items()}

    def share(self, n: int) -> str:
        """A number of heads as a share of all."""
        return f"{n / len(self.heads):.0%}"

    @cached_property
    def table(self) -> pd.DataFrame:
        """Cost by criterion, compensation and number of heads, best curve first; intervals are over n inputs."""
        rows = []
        for c in sorted(self.on(), key=lambda c: (c.compensation, c.area.value)):
            costs = {f"{self.share(n)} removed": _percent(c.cost(i)) for i, n in enumerate(c.n)}
            facts = {"criterion": c.criterion, "compensation": c.compensation}
            rows.append({**facts, **costs, "mean": _percent(c.area), "n": c.area.n})
        return pd.DataFrame(rows)

    @cached_property
    def evidence(self) -> pd.DataFrame:
        """The proposal beside as many heads by other criteria, under the same compensation; intervals over n inputs."""
        own = self.curve("proposal", proposal=True)
        rows = []
        others = self.on(proposal=True) if own is not None else []
        for c in others if len(others) > 1 else ():
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
                found[name] = jackknife(with_loss, rises.shape[1]).within(-1, 1)
        return found

    def headline(self) -> str:
        """What the proposal costs, and the heads it removes by name."""
        names = few([f"{head.layer}.{head.head}" for head in self.proposal])
        return super().headline() + (f" ({names})" if names else "")
