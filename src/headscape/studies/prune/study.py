"""Which heads can go, and at what cost? Criteria, curves, a search within a budget, each beside its control."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from headscape.captures import Capture, open_capture
from headscape.errors import InputError
from headscape.pruning.compensation import COMPENSATIONS
from headscape.pruning.criteria import find_criterion, scores
from headscape.pruning.evidence import Evidence
from headscape.pruning.search import within_budget
from headscape.runs import Run
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.evidence import evidence_of, organised_of
from headscape.studies.prune.inputs import Inputs, inputs_of
from headscape.studies.prune.result import Curve, PruneResult
from headscape.studies.prune.units import Bench, Benches, Plan, Recipe, work_off
from headscape.studies.work.engines import Engine, engine_of
from headscape.studies.work.old import Progress, Say, Steps, block_of, cores, read_arrays, study_folder, write_arrays
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headscape.attention.models import Model

__all__ = ["DEFAULT_CRITERIA", "prune", "rank_heads"]

FloatArray = npt.NDArray[np.float64]
DEFAULT_CRITERIA = (
    *("novelty", "gradient", "gradient_again", "l1_all", "l1_rel", "l1_top", "attention_entropy", "redundancy"),
    *("output_norm", "coupling", "depth", "leave_one_out", "gradient+l1_all", "gradient+novelty"),
    *("l1_all_random", "l1_all_natural"),
)
NOT_CHOSEN = ("leave_one_out", "random", "l1_all_random", "l1_all_natural")
"""Never chosen by "auto": the oracle of one step, and the controls."""
FINALISTS = 4
RANDOM_DRAWS = 3
MIDDLE = 0.2
"""Share of heads removed when criteria are compared for the first time."""


def rank_heads(
    source: Capture | Run | str | Path,
    criterion: str | Callable[[Evidence], FloatArray] = "auto",
    model: Model | None = None,
    inputs: Any = None,
    *,
    block: str | None = None,
    random_state: int = 0,
) -> pd.DataFrame:
    """The heads of a run with their scores, first to go first.

    Parameters
    ----------
    criterion
        A name of `headscape.pruning.criteria.CRITERIA`, "a+b" for the average of two ranks, a function of one's own, or
        "auto": the one that does best on a part of `inputs`, as in `prune`.
    model
        Loaded from the run's own record when not given.
    inputs
        What "auto" chooses on; by default the prose or images that ship with headscape.
    """
    captured = open_capture(source)
    if criterion == "auto":
        result = prune(captured, model=model, inputs=inputs, block=block, random_state=random_state, judge=False)
        return result.to_frame().sort_values("place", kind="stable", ignore_index=True)
    evidence = evidence_of(captured, model, block_of(captured, block), random_state, None)
    frame = pd.DataFrame(evidence.heads, columns=["block", "layer", "head"])
    frame["score"] = scores(criterion, evidence)
    return frame.sort_values("score", kind="stable", ignore_index=True)


def prune(
    source: Capture | Run | str | Path,
    *,
    model: Model | None = None,
    inputs: Any = None,
    calibrate: Any = None,
    criterion: str | Callable[[Evidence], FloatArray] = "auto",
    compensation: str = "auto",
    criteria: Sequence[str] = DEFAULT_CRITERIA,
    budget: float | None = 0.02,
    n_heads: int | None = None,
    fractions: Sequence[float] = (0.1, 0.2, 0.3),
    windows: int = 8,
    block: str | None = None,
    evaluations: int = 40,
    judge: bool = True,
    jobs: int = 1,
    threads: int | None = None,
    engine: Engine | str = "local",
    resume: bool = False,
    random_state: int = 0,
    progress: Progress = lambda done, total: None,
    say: Say = lambda _: None,
) -> PruneResult:
    """Rank heads by many criteria, judge each by removal on other inputs, and propose what can go within a budget.

    Three sets of inputs are kept apart: criteria see those of the run; "auto" and the search within the budget see a
    third of `inputs`; everything reported as a cost is measured on the rest.

    Parameters
    ----------
    source
        A run with its organize study. Every evaluation is stored in it, so a killed study goes on.
    model, inputs
        The model of the run; and the text or labelled images to choose and judge on, by default those of headscape.
    calibrate
        More text or images of the kind the run was captured on, for what gains from much of it: novelty and
        compensation. 64 windows at most.
    criterion, compensation
        Names, a function of one's own, or "auto": the pair that does best on the part of `inputs` to choose on.
    criteria
        Which criteria are compared.
    budget
        Largest cost of the proposal (0.02 is 2 %): rise of the loss over the intact loss, drop of accuracy, or one
        minus the rank correlation of similarities. None makes no proposal unless `n_heads` says how many are to go.
    fractions
        Shares of the heads removed along the curves.
    windows
        How many windows of text to judge on; half as many again are chosen on.
    evaluations
        How many sets of heads the search may try.
    judge
        False leaves out the curves and the proposal: only the choice is made.
    jobs, threads, engine
        Evaluations at a time, threads of the model (all cores, shared by the jobs), and who makes them: "local", "dask"
        or an engine of `headscape.studies.work.engines`. Other processes load the model for themselves. With the same number
        of threads none of it changes a byte; scores of criteria and the search are one after the other in any case.
    resume
        Raise instead of starting anew where the study was made with other settings.

    Raises
    ------
    HeadscapeError
        When all is tried, if evaluations failed; those made are kept.
    """
    worker = engine_of(engine, jobs)
    _check(criterion, compensation, criteria, fractions, budget, n_heads)
    captured = open_capture(source)
    chosen_block = block_of(captured, block)
    organised = organised_of(captured)
    where = None if captured.run is None else captured.run.path
    with worker.started([where], say), _threads(threads):
        evidence = evidence_of(captured, model, chosen_block, random_state, organised)
        if n_heads is not None and not 0 < n_heads < len(evidence.heads):
            raise InputError(
                f"{n_heads} heads are to go and {evidence.network.source} has {len(evidence.heads)} in {chosen_block}; "
                "at least one must stay"
            )
        split = inputs_of(evidence.network, captured, inputs, windows, random_state, calibrate)
        evidence.texts, evidence.fit = split.texts, split.fit
        facts = {
            "block": chosen_block,
            "seed": random_state,
            "inputs": split.facts,
            "model": evidence.network.fingerprint,
        }
        recipe = None
        if worker.apart:
            made = (windows, random_state, worker.threads(threads))
            recipe = Recipe.of(captured, evidence.network, chosen_block, (inputs, calibrate), *made)
        with study_folder(captured.run, PruneResult.study, facts, say, resume) as folder:
            benches = Benches(evidence, split, Evaluations(folder / "evaluations.jsonl"))
            study = _Study(evidence, split, folder, list(fractions), say, benches, worker, recipe)
            result = study.run(criterion, compensation, criteria, budget, n_heads, evaluations, judge, progress)
    if captured.run is not None and judge:
        result.save(captured.run.path / result.study)
    return result


def _check(
    criterion: Any,
    compensation: str,
    criteria: Sequence[str],
    fractions: Sequence[float],
    budget: float | None,
    n_heads: int | None,
) -> None:
    for name in (*criteria, *([] if criterion == "auto" else [criterion])):
        find_criterion(name)
    if compensation != "auto" and compensation not in COMPENSATIONS:
        raise InputError(f"no compensation '{compensation}'; there are auto, {', '.join(COMPENSATIONS)}")
    if not fractions or not all(0 < f < 1 for f in fractions):
        raise InputError(f"fractions of heads lie between 0 and 1, not {', '.join(f'{f:g}' for f in fractions)}")
    if budget is not None and not budget > 0:
        raise InputError(f"the budget must be above 0 %, not {budget:.3%}: removing anything costs something")
    if n_heads is not None and n_heads < 1:
        raise InputError(f"at least one head must go, not {n_heads}")


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads or cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass
class _Study:
    evidence: Evidence
    inputs: Inputs
    folder: Path
    fractions: list[float]
    say: Say
    benches: Benches
    engine: Engine
    recipe: Recipe | None

    def __post_init__(self) -> None:
        self.choose, self.judge = self.benches["choose"], self.benches["judge"]
        self.skipped: dict[str, str] = {}

    def evaluate(self, bench: Bench, plan: Plan, progress: Progress) -> None:
        """Make the evaluations of a plan, many at a time; what asks for them later finds them."""
        work_off(bench, plan, self.engine, self.recipe, progress, self.say)

    @property
    def heads(self) -> Sequence[HeadId]:
        return self.evidence.heads

    def run(
        self,
        criterion: str | Callable[[Evidence], FloatArray],
        compensation: str,
        criteria: Sequence[str],
        budget: float | None,
        n_heads: int | None,
        evaluations: int,
        judge: bool,
        progress: Progress,
    ) -> PruneResult:
        own = criterion if callable(criterion) else None
        name = find_criterion(criterion).name if criterion != "auto" else "auto"
        wanted = list(dict.fromkeys([*criteria, *([name] if name not in ("auto", *criteria) and own is None else [])]))
        ranked = self.rank(wanted, progress)
        if own is not None:
            ranked[name] = scores(own, self.evidence)
        candidates = [n for n in ranked if n not in NOT_CHOSEN] if name == "auto" else [name]
        comps = list(COMPENSATIONS) if compensation == "auto" else [compensation]
        table = self.compare(ranked, candidates, comps, progress)
        best = table.iloc[0]
        name, compensation = str(best["criterion"]), str(best["compensation"])
        order = np.argsort(ranked[name], kind="stable")
        proposal: tuple[int, ...] = ()
        trials: tuple[tuple[int, float], ...] = ()
        if judge and n_heads is not None:
            proposal = tuple(int(i) for i in order[:n_heads])
        elif judge and budget is not None:
            proposal, trials = self.search(order, compensation, budget, evaluations, progress)
        curves = self.curves(ranked, name, compensation, progress) if judge else []
        if proposal:
            curves += self.rivals(ranked, name, compensation, proposal, progress)
        return PruneResult(
            block=self.heads[0].block,
            heads=self.frame(ranked, order, proposal),
            criterion=name,
            compensation=compensation,
            budget=budget if n_heads is None else None,
            choice=table,
            intact=self.judge.intact if judge else self.choose.intact,
            curves=curves,
            trials=trials,
            proposal=tuple(self.heads[i] for i in proposal),
            leave_one_out=self._loo,
            tree=self.evidence.tree,
            skipped=self.skipped,
            settings={"fractions": self.fractions, **self.inputs.facts, "seed": self.evidence.seed},
        )

    _loo: FloatArray | None = None

    def rank(self, criteria: Sequence[str], progress: Progress) -> dict[str, FloatArray]:
        """Scores by criterion; those that cannot be had are left out with the reason."""
        found: dict[str, FloatArray] = {}
        parts = list(dict.fromkeys(part for name in criteria for part in name.split("+")))
        steps = Steps(progress, len(parts))
        for part in parts:
            try:
                found[part] = self._score(part, progress)
            except InputError as error:
                self.skipped[part] = str(error)
            steps.one()
        for name in criteria:
            if "+" in name and all(part in found for part in name.split("+")):
                from headscape.pruning.criteria import rank_average

                found[name] = rank_average([found[part] for part in name.split("+")])
        for name in self.skipped:
            self.say(f"without {name}: {self.skipped[name]}")
        kept = {name: found[name] for name in criteria if name in found}
        if not kept:
            raise InputError(f"no criterion could be measured: {'; '.join(self.skipped.values())}")
        return kept

    def _score(self, name: str, progress: Progress) -> FloatArray:
        if name == "leave_one_out":
            self._loo = self._leave_one_out(progress)
            return np.asarray(self._loo.mean(axis=1))
        path = self.folder / f"score-{name}.safetensors"
        if not path.is_file():
            write_arrays(path, {"score": scores(name, self.evidence)})
        return np.asarray(read_arrays(path)[0]["score"], dtype=np.float64)

    def _leave_one_out(self, progress: Progress) -> FloatArray:
        """Rise of the loss without each head alone, (n_head, n_sample), on some of the ranking samples."""
        bench = self.benches["rank"]
        self.evaluate(bench, [([head], "none") for head in self.heads], progress)
        return np.array([bench.loss([head]).values - bench.intact.values for head in self.heads])

    def compare(
        self, ranked: Mapping[str, FloatArray], names: Sequence[str], compensations: Sequence[str], progress: Progress
    ) -> pd.DataFrame:
        """Mean cost of each criterion with each compensation on the inputs to choose on, best first.

        All pairs are tried with a fifth of the heads gone, the best four at every share.
        """
        pairs = [(n, c) for n in names for c in compensations]
        self.evaluate(self.choose, [(self._first(ranked[n], MIDDLE), c) for n, c in pairs], progress)
        rows = [self._row(ranked[n], n, c, [MIDDLE]) for n, c in pairs]
        rows.sort(key=lambda row: row["cost"])
        best = [(row["criterion"], row["compensation"]) for row in rows[:FINALISTS]]
        plan = [(self._first(ranked[n], fraction), c) for n, c in best for fraction in self.fractions]
        self.evaluate(self.choose, plan, progress)
        final = [self._row(ranked[n], n, c, self.fractions) for n, c in best]
        final.sort(key=lambda row: row["cost"])
        return pd.DataFrame([*final, *rows[FINALISTS:]])

    def _row(self, score: FloatArray, name: str, compensation: str, fractions: Sequence[float]) -> dict[str, Any]:
        """Mean over fractions of the rise of the loss (finer than a count of right answers)."""
        found = [self.choose.loss(self._first(score, fraction), compensation) for fraction in fractions]
        rises = [loss.mean - self.choose.intact.mean for loss in found]
        compared = "all shares" if len(fractions) > 1 or fractions[0] != MIDDLE else f"{MIDDLE:.0%} gone"
        return {"criterion": name, "compensation": compensation, "cost": float(np.mean(rises)), "compared": compared}

    def _first(self, score: FloatArray, fraction: float) -> list[HeadId]:
        n = max(1, round(fraction * len(self.heads)))
        return [self.heads[i] for i in np.argsort(score, kind="stable")[:n]]

    def search(
        self, order: npt.NDArray[np.intp], compensation: str, budget: float, evaluations: int, progress: Progress
    ) -> tuple[tuple[int, ...], tuple[tuple[int, float], ...]]:
        steps = Steps(progress, evaluations)

        def price(heads: Sequence[int]) -> float:
            steps.one()
            return float(self.choose.cost([self.heads[i] for i in heads], compensation).mean())

        found = within_budget([int(i) for i in order], price, budget, tree=self.evidence.tree, evaluations=evaluations)
        if not found.heads:
            self.say(f"no head can go within {budget:.2%}")
        return found.heads, found.trials

    def curves(self, ranked: Mapping[str, FloatArray], name: str, compensation: str, progress: Progress) -> list[Curve]:
        """Every criterion without and with the chosen compensation; the chosen one and gradients with each."""
        both = list(dict.fromkeys(["none", compensation]))
        wanted = [(n, c) for n in ranked for c in both]
        wanted += [(n, c) for n in (name, "gradient", "l1_all") if n in ranked for c in COMPENSATIONS]
        wanted = list(dict.fromkeys(wanted))
        rng = np.random.default_rng(self.evidence.seed)
        draws = [rng.permutation(len(self.heads)).astype(float) for _ in range(RANDOM_DRAWS)]
        orders = [(n, c, [ranked[n]]) for n, c in wanted] + [("random", c, draws) for c in both]
        plan = [(self._first(o, f), c) for _, c, several in orders for o in several for f in self.fractions]
        self.evaluate(self.judge, plan, progress)
        return [self._curve(n, c, several) for n, c, several in orders]

    def _curve(self, name: str, compensation: str, orders: Iterable[FloatArray]) -> Curve:
        losses, costs = [], []
        for order in orders:
            for fraction in self.fractions:
                heads = self._first(order, fraction)
                losses.append(self.judge.loss(heads, compensation).values)
                costs.append(self.judge.cost(heads, compensation))
        shape = (-1, len(self.fractions), len(losses[0]))
        n = tuple(max(1, round(f * len(self.heads))) for f in self.fractions)
        return Curve(name, compensation, n, np.array(losses).reshape(shape), np.array(costs).reshape(shape))

    def rivals(
        self,
        ranked: Mapping[str, FloatArray],
        name: str,
        compensation: str,
        proposal: Sequence[int],
        progress: Progress,
    ) -> list[Curve]:
        """The proposal, and as many heads by the criteria it is compared with, under the same compensation."""
        n = len(proposal)
        rng = np.random.default_rng(self.evidence.seed)
        orders: dict[str, list[FloatArray]] = {
            rival: [ranked[rival]] for rival in ("gradient", "l1_top", "l1_all") if rival in ranked and rival != name
        }
        orders["random"] = [rng.permutation(len(self.heads)).astype(float) for _ in range(RANDOM_DRAWS)]
        sets = {"proposal": [[self.heads[i] for i in proposal]]}
        for rival, several in orders.items():
            sets[rival] = [[self.heads[i] for i in np.argsort(order, kind="stable")[:n]] for order in several]
        self.evaluate(self.judge, [(heads, compensation) for found in sets.values() for heads in found], progress)

        def one(name: str, several: Sequence[Sequence[HeadId]]) -> Curve:
            losses = [[self.judge.loss(heads, compensation).values] for heads in several]
            costs = [[self.judge.cost(heads, compensation)] for heads in several]
            return Curve(name, compensation, (n,), np.array(losses), np.array(costs), proposal=True)

        return [one(rival, found) for rival, found in sets.items()]

    def frame(
        self, ranked: Mapping[str, FloatArray], order: npt.NDArray[np.intp], proposal: Sequence[int]
    ) -> pd.DataFrame:
        """One row a head: its scores, its place in the chosen ranking, and whether it goes."""
        frame = pd.DataFrame(self.heads, columns=["block", "layer", "head"])
        place = np.empty(len(order), dtype=int)
        place[order] = np.arange(len(order))
        frame["place"] = place
        frame["goes"] = np.where(np.isin(np.arange(len(order)), proposal), "yes", "no")
        for name, score in ranked.items():
            frame[name] = score
        return frame
