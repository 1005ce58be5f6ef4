"""What the prune study found: curves, the choice, the proposal and its rivals, and how they are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError
from scipy.stats import rankdata

from headscape.attention.loss import Loss
from headscape.errors import HeadscapeError
from headscape.pruning.criteria import find_criterion
from headscape.pruning.judges import unit_of
from headscape.results import FigureSpec, Finding, Interval, Result, bootstrap
from headscape.storage import replacing, write_json
from headscape.studies.work.old import read_arrays, write_arrays
from headscape.tensor import HeadId
from headscape.tree import PartitionTree

__all__ = ["CONTROLS", "Curve", "PruneResult"]

FloatArray = npt.NDArray[np.float64]
CONTROLS = ("random", "l1_all_random", "l1_all_natural", "leave_one_out")


@dataclass(frozen=True, eq=False)
class Curve:
    """Costs of removing more and more heads by one criterion, on the judging inputs.

    `n` is how many heads went; `losses` and `costs` are (n_draw, len(n), n_sequence): several draws for a random order,
    else one. `proposal`: it belongs to the comparison with the proposal, at the proposal's number of heads.
    """

    criterion: str
    compensation: str
    n: tuple[int, ...]
    losses: FloatArray
    costs: FloatArray
    proposal: bool = False

    def cost(self, i: int) -> Interval:
        """Cost with n[i] heads gone, mean over draws, and its interval over sequences."""
        return bootstrap(self.costs[:, i].mean(axis=0))

    def band(self, i: int) -> tuple[float, float]:
        """Least and largest cost of the draws."""
        means = self.costs[:, i].mean(axis=1)
        return float(means.min()), float(means.max())

    @property
    def area(self) -> Interval:
        """Mean cost along the curve."""
        return bootstrap(self.costs.mean(axis=(0, 1)))

    def minus(self, other: Curve, i: int) -> Interval:
        """How much dearer it is than another, sequence by sequence."""
        return bootstrap(self.costs[:, i].mean(axis=0) - other.costs[:, i].mean(axis=0))


@dataclass(frozen=True, eq=False)
class PruneResult(Result):
    """Which heads can go.

    `heads` has one row a head: its score by every criterion, its place in the chosen ranking, and whether the proposal
    removes it. `choice` compares criteria and compensations on the inputs to choose on; `curves` are on the judging
    inputs, which nothing was chosen by. `leave_one_out` is (n_head, n_sample) on ranking inputs.
    """

    study: ClassVar[str] = "prune"
    title: ClassVar[str] = "Which heads can go?"

    block: str
    heads: pd.DataFrame
    criterion: str
    compensation: str
    budget: float | None
    choice: pd.DataFrame
    intact: Loss
    curves: Sequence[Curve]
    trials: Sequence[tuple[int, float]]
    proposal: Sequence[HeadId]
    leave_one_out: FloatArray | None
    tree: PartitionTree | None
    skipped: Mapping[str, str]
    settings: Mapping[str, Any]

    # --- tables ------------------------------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row a head."""
        return self.heads

    @property
    def unit(self) -> str:
        """What a cost counts."""
        return unit_of(self.intact)

    @property
    def criteria(self) -> list[str]:
        """The criteria that were compared, by their columns."""
        return [name for name in self.heads.columns if name not in ("block", "layer", "head", "place", "goes")]

    def curve(self, criterion: str, compensation: str | None = None, proposal: bool = False) -> Curve | None:
        """The curve of a criterion, under the chosen compensation unless another is named."""
        wanted = (criterion, compensation or self.compensation, proposal)
        return next((c for c in self.curves if (c.criterion, c.compensation, c.proposal) == wanted), None)

    @cached_property
    def table(self) -> pd.DataFrame:
        """Cost by criterion, compensation and number of heads; with intervals, best curve first."""
        rows = []
        for c in sorted((c for c in self.curves if not c.proposal), key=lambda c: (c.compensation, c.area.value)):
            row: dict[str, Any] = {"criterion": c.criterion, "compensation": c.compensation}
            row |= {f"{self._share(n)} gone": self.percent(c.cost(i)) for i, n in enumerate(c.n)}
            rows.append(row | {"mean": f"{c.area.value:+.2%}"})
        return pd.DataFrame(rows)

    @cached_property
    def evidence(self) -> pd.DataFrame:
        """The proposal beside as many heads by other criteria, under the same compensation."""
        own = self.curve("proposal", proposal=True)
        rows = []
        for c in self.curves:
            if not c.proposal or own is None:
                continue
            row: dict[str, Any] = {"removed by": c.criterion, "heads": c.n[0], "cost": self.percent(c.cost(0))}
            row["loss"] = f"{c.losses.mean():.4g}"
            row["dearer than the proposal by"] = "" if c is own else self.percent(c.minus(own, 0))
            rows.append(row)
        return pd.DataFrame(rows)

    @cached_property
    def correlations(self) -> dict[str, Interval]:
        """Spearman correlation of each criterion with leave-one-out; the interval is over sequences."""
        if self.leave_one_out is None:
            return {}
        rng = np.random.default_rng(int(self.settings["seed"]))
        n = self.leave_one_out.shape[1]
        draws = [self.leave_one_out[:, rng.integers(n, size=n)].mean(axis=1) for _ in range(200)] if n > 1 else []
        ranks = [rankdata(draw) for draw in draws]
        own = rankdata(self.leave_one_out.mean(axis=1))
        found = {}
        for name in self.criteria:
            if name == "leave_one_out":
                continue
            rank = rankdata(self.heads[name])
            values = [_correlation(rank, other) for other in ranks]
            low, high = np.quantile(values, [0.025, 0.975]) if values else (np.nan, np.nan)
            found[name] = Interval(_correlation(rank, own), float(low), float(high))
        return found

    @staticmethod
    def percent(interval: Interval) -> str:
        """An interval in percent.

        >>> PruneResult.percent(Interval(0.01234, -0.001, 0.03))
        '+1.23% [-0.10, +3.00]'
        """
        return f"{interval.value:+.2%} [{100 * interval.low:+.2f}, {100 * interval.high:+.2f}]"

    def _share(self, n: int) -> str:
        return f"{n / len(self.heads):.0%}"

    # --- sentences ---------------------------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """The proposal first, then what it is compared with."""
        found = [*self._proposed(), *self._against_gradients(), *self._free(), *self._paper(), *self._organised()]
        return [*found, *self._compensated(), *self._correlated()]

    def _proposed(self) -> list[Finding]:
        own = self.curve("proposal", proposal=True)
        if own is None:
            if self.budget is None:
                return []
            return [Finding(f"No head can go within {self.budget:.2%} ({self.unit}).", "choice")]
        price = own.cost(0)
        text = (
            f"{len(self.proposal)} of {len(self.heads)} heads ({self._share(len(self.proposal))}) can go at "
            f"{self.percent(price)} ({self.unit}), by {self.criterion} with compensation {self.compensation}"
        )
        if self.budget is None:
            return [Finding(f"{text}.", "proposal")]
        inside = price.high <= self.budget
        outside = price.low > self.budget
        verdict = "within" if inside else "beyond" if outside else "not surely within"
        text += (
            f": {verdict} the budget of {self.budget:.2%}, found on other inputs "
            f"({self.settings['chosen_on']} of them) than those it is judged on ({self.settings['judged_on']})."
        )
        return [Finding(text, "proposal", True if inside else False if outside else None)]

    def _differences(self, name: str, rival: str) -> list[tuple[int, Interval]] | None:
        one, other = self.curve(name), self.curve(rival)
        return None if one is None or other is None else [(n, one.minus(other, i)) for i, n in enumerate(one.n)]

    def _listed(self, differences: Sequence[tuple[int, Interval]]) -> str:
        return ", ".join(f"{self.percent(d)} at {self._share(n)}" for n, d in differences)

    def _against_gradients(self) -> list[Finding]:
        if self.criterion == "gradient":
            return [Finding("Gradient importance was the best criterion.", "curves")]
        found = self._differences(self.criterion, "gradient")
        if found is None:
            return []
        beats = all(d.high < 0 for _, d in found)
        return [
            Finding(
                f"{self.criterion} {'beats' if beats else 'does not beat'} gradient importance at every share under "
                f"the same compensation: difference of costs {self._listed(found)} (below 0 is better, paired by "
                "sequence).",
                "curves",
                beats,
            )
        ]

    def _free(self) -> list[Finding]:
        """The best criterion without gradients."""
        free = [n for n in self.criteria if n not in CONTROLS and not find_criterion(n).gradients]
        known = [(curve.area.value, n) for n in free if (curve := self.curve(n)) is not None]
        if not known or self.curve("gradient") is None:
            return []
        name = min(known)[1]
        found = self._differences(name, "gradient") or []
        better = [self._share(n) for n, d in found if d.high < 0]
        return [
            Finding(
                f"The best criterion without gradients is {name}: against gradient importance {self._listed(found)}; "
                f"better beyond its interval at {', '.join(better) or 'no share'}.",
                "curves",
                bool(better),
            )
        ]

    def _paper(self) -> list[Finding]:
        found = []
        for compensation in dict.fromkeys(("none", self.compensation)):
            own, chance = self.curve("l1_top", compensation), self.curve("random", compensation)
            if own is None or chance is None:
                continue
            worse = [self._share(n) for i, n in enumerate(own.n) if own.cost(i).value > chance.band(i)[1]]
            better = [self._share(n) for i, n in enumerate(own.n) if own.cost(i).value < chance.band(i)[0]]
            where = f"worse than every random draw at {', '.join(worse)}" if worse else "not worse than random draws"
            also = f", better than every draw at {', '.join(better)}" if better else ""
            found.append(
                Finding(
                    f"The paper's criterion, l1 over the 400 largest supports, costs {_along(own)} with compensation "
                    f"{compensation}, random choice {_along(chance)}: {where}{also}.",
                    "curves",
                    bool(better) and not worse,
                )
            )
        return found

    def _organised(self) -> list[Finding]:
        own = self.curve("l1_all", "none")
        controls = [self.curve(name, "none") for name in ("l1_all_random", "l1_all_natural")]
        if own is None or any(c is None for c in controls):
            return []
        areas = [f"{c.area.value:+.1%}" for c in (own, *controls) if c is not None]
        best = min(c.area.value for c in controls if c is not None)
        return [
            Finding(
                f"l1 of all coefficients costs {areas[0]} on organised trees (mean along the curve, uncompensated), "
                f"{areas[1]} on trees with permuted leaves, {areas[2]} in the natural order: organisation "
                f"{'helps' if own.area.value < best else 'does not help'} this criterion.",
                "curves-none",
                own.area.value < best,
            )
        ]

    def _compensated(self) -> list[Finding]:
        known = [c for c in self.curves if c.criterion == self.criterion and not c.proposal]
        if len(known) < 2:
            return []
        parts = ", ".join(f"{c.compensation} {c.area.value:+.2%}" for c in sorted(known, key=lambda c: c.area.value))
        return [Finding(f"Compensation, for {self.criterion} (mean along the curve): {parts}.", "compensation")]

    def _correlated(self) -> list[Finding]:
        if not self.correlations:
            return []
        order = sorted(self.correlations.items(), key=lambda item: -item[1].value)
        named = [(n, r) for n, r in order if n not in CONTROLS]
        best, paper = named[0], self.correlations.get("l1_top")
        text = f"Nearest to leave-one-out by rank is {best[0]} (Spearman {best[1]})"
        return [Finding(f"{text}{f'; l1_top has {paper}' if paper else ''}.", "correlations")]

    def figures(self) -> list[FigureSpec]:
        from headscape.studies.prune.figures import figures

        return figures(self)

    # --- on disk -----------------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write result.safetensors, heads.csv, choice.csv, curves.csv and result.json, the last of them last."""
        arrays: dict[str, npt.NDArray[Any]] = {"intact": self.intact.values}
        if self.intact.correct is not None:
            arrays["intact_correct"] = self.intact.correct.astype(np.uint8)
        if self.leave_one_out is not None:
            arrays["leave_one_out"] = self.leave_one_out
        if self.tree is not None:
            arrays |= {"tree_labels": self.tree.labels.astype(np.int32), "tree_order": self.tree.order.astype(np.int32)}
        for i, curve in enumerate(self.curves):
            arrays |= {f"losses/{i}": curve.losses, f"costs/{i}": curve.costs}
        for name, frame in (("heads", self.heads), ("choice", self.choice), ("curves", self.table)):
            with replacing(folder / f"{name}.csv") as partial:
                frame.to_csv(partial, index=False, float_format="%.9g")
        write_arrays(folder / "result.safetensors", arrays)
        facts = {name: getattr(self, name) for name in ("study", "block", "criterion", "compensation", "budget")}
        curves = [[c.criterion, c.compensation, list(c.n), c.proposal] for c in self.curves]
        write_json(
            folder / "result.json",
            {
                **facts,
                "kind": self.intact.kind,
                "curves": curves,
                "trials": [list(trial) for trial in self.trials],
                "proposal": [str(head) for head in self.proposal],
                "skipped": dict(self.skipped),
                "settings": dict(self.settings),
            },
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read back what `save` wrote."""
        try:
            facts = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            arrays, _ = read_arrays(folder / "result.safetensors")
            right = arrays.get("intact_correct")
            tree = arrays.get("tree_labels")
            return cls(
                **{name: facts[name] for name in ("block", "criterion", "compensation", "budget")},
                heads=pd.read_csv(folder / "heads.csv", dtype={"block": str}),
                choice=pd.read_csv(folder / "choice.csv"),
                intact=Loss(arrays["intact"], facts["kind"], None if right is None else right.astype(bool)),
                curves=[
                    Curve(name, how, tuple(n), arrays[f"losses/{i}"], arrays[f"costs/{i}"], proposal)
                    for i, (name, how, n, proposal) in enumerate(facts["curves"])
                ],
                trials=[(int(n), float(price)) for n, price in facts["trials"]],
                proposal=[HeadId.parse(head) for head in facts["proposal"]],
                leave_one_out=arrays.get("leave_one_out"),
                tree=None if tree is None else PartitionTree.from_labels(tree, arrays["tree_order"]),
                skipped=facts["skipped"],
                settings=facts["settings"],
            )
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise HeadscapeError(f"the prune study in {folder} cannot be read ({error}); run it again") from None


def _along(curve: Curve) -> str:
    return ", ".join(f"{curve.cost(i).value:+.1%}" for i in range(len(curve.n)))


def _correlation(a: FloatArray, b: FloatArray) -> float:
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
