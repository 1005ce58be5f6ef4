"""What the training comparison found: a table of runs, loss curves, token similarity by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.intervals import Interval, mean_interval, student_interval
from headscape.studies.work.result import StudyResult

__all__ = ["TrainResult", "diverged"]

Array = npt.NDArray[Any]
MEASURES = ("similarity", "aligned", "residual", "rank")
LOSSES = ("valid_loss", "test_loss", "score", "uniform", "removed")


@dataclass(frozen=True, eq=False)
class TrainResult(StudyResult):
    """The comparison of arms (kinds of attention).

    `trials` has one row per run: arm, rate, seed, kept (False: it only served to choose a rate), chosen (at the rate
    taken for its arm), valid_loss, test_loss (nats per token or image), score (bits per byte, or accuracy in percent,
    on the test part), uniform and removed (the score without the choices of attention, and without its output), steps,
    stopped_early, diverged. `curves`: arm, rate, seed, step, train, valid, of runs kept. Of chosen runs, at every
    evaluation: `layers` with arm, seed, step, layer (0 is before layer 1), residual, rank, similarity, aligned (share of
    pairs with a cosine of .99 or more; on text pairs of different tokens); `heads` with arm, seed, step, layer, head,
    entropy, and alpha (learned a', NaN elsewhere). `counts` (n, n_bin): histograms of cosines at the last evaluation,
    for the rows of `last`. `baselines`: scores of the n-grams, or of a linear classifier. `failed`: arms that diverged and
    are not compared, with the reason.
    """

    study: ClassVar[str] = "train"
    title: ClassVar[str] = "Training with and without Hopfield attention"

    trials: pd.DataFrame
    curves: pd.DataFrame
    layers: pd.DataFrame
    heads: pd.DataFrame
    counts: Array
    baselines: Mapping[str, float]
    settings: Mapping[str, Any]
    data: Mapping[str, Any]
    failed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_logs(
        cls,
        logs: Sequence[Mapping[str, Any]],
        best: Mapping[str, float],
        baselines: Mapping[str, float],
        settings: Mapping[str, Any],
        data: Mapping[str, Any],
    ) -> Self:
        """Combine the logs of the runs; `baselines` in nats per token, or as a share of images."""
        images = settings["network"]["kind"] == "vit"
        scale = 100.0 if images else 1 / math.log(2) / float(data.get("bytes_a_token", 1.0))
        runs = pd.json_normalize([dict(log) for log in logs], sep="_").rename(
            columns=lambda c: c.removeprefix("trial_")
        )
        runs["chosen"] = runs["kept"] & (runs["rate"] == runs["arm"].map(best))
        for name, part in {"score": "test", "uniform": "uniform", "removed": "removed"}.items():
            column = f"{part}_{'accuracy' if images else 'loss'}"
            runs[name] = scale * runs.get(column, math.nan)
        found = [log for log, chosen in zip(logs, runs["chosen"], strict=True) if chosen and not log["diverged"]]
        curves = [log["trial"] | point for log in logs if log["trial"]["kept"] for point in log["curve"]]
        return cls(
            trials=runs[["arm", "rate", "seed", "kept", "chosen", *LOSSES, "steps", "stopped_early", "diverged"]],
            curves=pd.DataFrame(curves).rename(columns={"loss": "valid"}).drop(columns=["accuracy", "kept"]),
            layers=pd.DataFrame([row for log in found for row in _layer_rows(log)]),
            heads=pd.DataFrame([row for log in found for row in _head_rows(log)]),
            counts=np.concatenate([log["layers"][-1]["counts"] for log in found]),
            baselines={name: scale * value for name, value in baselines.items()},
            settings=dict(settings),
            data=dict(data),
            failed={arm: diverged(logs, arm) for arm in dict.fromkeys(runs["arm"]) if arm not in best},
        )

    @property
    def last(self) -> pd.DataFrame:
        """The rows of `layers` at the last evaluation of each run."""
        return self.layers[self.layers["step"] == self.layers.groupby(["arm", "seed"])["step"].transform("max")]

    @property
    def arms(self) -> list[str]:
        """Those compared, in the order they were run."""
        return [arm for arm in dict.fromkeys(self.trials["arm"]) if arm not in self.failed]

    def kinds(self, *names: str) -> list[str]:
        """The arms of these kinds, whatever alphas they are run with."""
        return [arm for name in names for arm in self.arms if arm.partition(" ")[0] == name]

    @property
    def pair(self) -> list[str]:
        """Standard attention and the arm to show beside it: the paper's, or the hidden state alone; none without both."""
        beside = self.kinds("both", "rescaled", "hidden")
        return ["standard", beside[0]] if "standard" in self.arms and beside else []

    def entropies(self, arm: str) -> pd.DataFrame:
        """Entropy at the end of training, mean over heads: one row per seed, one column per layer."""
        rows = self.heads[self.heads["arm"] == arm]
        rows = rows[rows["step"] == rows.groupby("seed")["step"].transform("max")]
        return rows.pivot_table(index="seed", columns="layer", values="entropy")

    @property
    def images(self) -> bool:
        """Whether the score is an accuracy, higher being better."""
        return bool(self.settings["network"]["kind"] == "vit")

    @property
    def unit(self) -> str:
        """Of the score."""
        return "% of test images" if self.images else "bits per byte"

    @property
    def pairs(self) -> str:
        """Which pairs of tokens are compared."""
        return "pairs of tokens" if self.images else "pairs of different tokens"

    def rate(self, arm: str) -> float:
        """The learning rate taken for an arm."""
        return float(self.trials.loc[(self.trials["arm"] == arm) & self.trials["chosen"], "rate"].iloc[0])

    @property
    def strongest(self) -> str:
        """The baseline that a network must beat."""
        return list(self.baselines)[-1]

    @property
    def rival(self) -> str:
        """The same, as a sentence names it."""
        return f"{self.strongest} classifier" if self.images else self.strongest

    def scores(self, arm: str, column: str = "score") -> pd.Series[float]:
        """Test score by seed, at the arm's learning rate; or the score without attention (uniform, removed)."""
        rows = self.trials[(self.trials["arm"] == arm) & self.trials["chosen"] & ~self.trials["diverged"]]
        return rows.set_index("seed")[column]

    def score(self, arm: str) -> Interval:
        """Mean test score over seeds, with what of its interval a score can be."""
        return mean_interval(self.scores(arm)).within(0.0, 100.0 if self.images else math.inf)

    def difference(self, arm: str, base: str = "standard") -> Interval:
        """Mean over seeds of score(arm) - score(base), same seed, with its interval."""
        return student_interval(self.scores(arm) - self.scores(base))

    def to_frame(self) -> pd.DataFrame:
        """One row per arm: learning rate, seeds, test score and difference from standard attention, with intervals.

        uniform and removed are what a network's score changes by when its attention is made uniform, or its output 0;
        the rest is measured after the last layer.
        """
        rows = []
        for arm in self.arms:
            score = self.score(arm)
            row: dict[str, Any] = {"arm": arm, "rate": self.rate(arm), "seeds": score.n}
            row |= {"score": score.value, "score_low": score.low, "score_high": score.high}
            if "standard" in self.arms:
                change = self.difference(arm)
                row |= change.columns("change")
            for lesion in ("uniform", "removed"):
                row[lesion] = float((self.scores(arm, lesion) - self.scores(arm)).mean())
            last = self.last[self.last["arm"] == arm]
            final = last[last["layer"] == last["layer"].max()]
            rows.append(row | {name: float(final[name].mean()) for name in MEASURES})
        return pd.DataFrame(rows)

    def tables(self) -> dict[str, pd.DataFrame]:
        """The arms, all runs, and what they must beat."""
        beaten = pd.DataFrame([{"baseline": name, "score": value} for name, value in self.baselines.items()])
        return {"arms": self.to_frame(), "trials": self.trials, "baselines": beaten}

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """Scores of the arms and what they must beat; then what attention does in each, and its tokens."""
        from headscape.studies.train.figures import TITLE, shown_table

        whole = shown_table(self)
        scores = ["arm", "learning rate", self.unit, *(["change"] if "change" in whole else [])]
        rest = ["arm", *(name for name in whole if name not in scores)]
        return [
            (TITLE, whole[scores]),
            ("The same networks without their attention", whole[rest][whole["seeds"] != ""]),
        ]


def diverged(logs: Sequence[Mapping[str, Any]], arm: str) -> str:
    """Why runs of an arm diverged, and at which learning rates and seeds."""
    found: dict[str, list[str]] = {}
    for log in logs:
        if log["trial"]["arm"] == arm and log["diverged"]:
            at = f"{log['trial']['rate']:g} with seed {log['trial']['seed']}"
            found.setdefault(log.get("reason", "the loss did not stay finite"), []).append(at)
    return "; ".join(f"{reason} (learning rate {', '.join(at)})" for reason, at in found.items())


def _layer_rows(log: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of `layers` of one run."""
    named = {name: log["trial"][name] for name in ("arm", "seed")}
    return [
        named | {"step": at["step"], "layer": layer} | {name: at[name][layer] for name in MEASURES}
        for at in log["layers"]
        for layer in range(len(at["residual"]))
    ]


def _head_rows(log: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of `heads` of one run."""
    named = {name: log["trial"][name] for name in ("arm", "seed")}
    rows = []
    for at in log["layers"]:
        for layer, entropies in enumerate(at["entropy"]):
            alphas = at["alphas"][layer] if "alphas" in at else [math.nan] * len(entropies)
            for head, (entropy, alpha) in enumerate(zip(entropies, alphas, strict=True)):
                place = {"step": at["step"], "layer": layer, "head": head}
                rows.append(named | place | {"entropy": entropy, "alpha": alpha})
    return rows
