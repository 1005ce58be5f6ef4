"""Which heads can be removed, and at what cost? Criteria, curves, a search within a budget, each beside its control."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pandas as pd

from headscape.attention.samples import replayed
from headscape.attention.threads import torch_threads
from headscape.captures import Capture, open_capture
from headscape.errors import InputError
from headscape.fingerprints import digest
from headscape.pruning.compensation import COMPENSATIONS
from headscape.pruning.criteria import CRITERIA, find_criterion, scores
from headscape.pruning.evidence import Evidence
from headscape.pruning.export import check_target
from headscape.runs import Run
from headscape.studies.prune.choosing import choose, search
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.evidence import add_organized
from headscape.studies.prune.judging import curves, rivals
from headscape.studies.prune.pruning import Pruning
from headscape.studies.prune.ranking import FloatArray, Ranking, rank
from headscape.studies.prune.result import CONTROLS, PruneResult
from headscape.studies.work.engines import cores
from headscape.studies.work.folder import UNITS, study_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import Loader
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["DEFAULT_CRITERIA", "prune", "rank_heads"]

Criterion = str | Callable[[Evidence], FloatArray]
DEFAULT_CRITERIA = (
    *("novelty", "gradient", "gradient_again", "l1_all", "l1_rel", "l1_top", "attention_entropy", "redundancy"),
    *("output_norm", "coupling", "depth", "leave_one_out", "gradient+l1_all", "gradient+novelty"),
    *("l1_all_random", "l1_all_natural"),
)


def rank_heads(
    source: Capture | Run | str | Path,
    criterion: Criterion = "auto",
    model: Model | bool | None = True,
    inputs: Any = None,
    *,
    block: str | None = None,
    random_state: int = 0,
) -> pd.DataFrame:
    """The heads of a run with their scores, least important first.

    `criterion` is a name of `headscape.pruning.criteria.CRITERIA`, "a+b" for the average of two ranks, a function of
    your own, or "auto": the one that does best on a part of `inputs`, as in `prune`.
    """
    captured = open_capture(source)
    if criterion == "auto":
        result = prune(captured, model=model, inputs=inputs, block=block, random_state=random_state, judge=False)
        return result.to_frame().sort_values("place", kind="stable", ignore_index=True)
    find_criterion(criterion)
    own = _model(captured, model, Loader(), block)
    heads = captured.heads(block)
    evidence = Evidence(heads, model=own, samples=replayed(own, captured), seed=random_state)
    add_organized(evidence, captured)
    frame = pd.DataFrame(heads, columns=["block", "layer", "head"])
    frame["score"] = scores(criterion, evidence)
    return frame.sort_values("score", kind="stable", ignore_index=True)


def prune(
    source: Capture | Run | str | Path,
    *,
    model: Model | bool | None = True,
    inputs: Any = None,
    calibrate: Any = None,
    criterion: Criterion = "auto",
    compensation: str = "auto",
    criteria: Sequence[str] = DEFAULT_CRITERIA,
    budget: float | None = 0.02,
    n_heads: int | None = None,
    fractions: Sequence[float] = (0.1, 0.2, 0.3),
    windows: int = 8,
    block: str | None = None,
    evaluations: int = 40,
    judge: bool = True,
    out: str | Path | None = None,
    kind: str = "masked",
    loader: Loader | None = None,
    random_state: int = 0,
    **how: Unpack[How],
) -> PruneResult:
    """Rank heads by many criteria, validate each by ablation on held-out inputs, and propose heads to remove.

    Three sets of inputs are kept apart: criteria see those of the run; "auto" and the search within the budget see a
    third of `inputs`; every reported cost is measured on the rest.

    Parameters
    ----------
    source
        A run with its organize study. Every evaluation is stored in it, so a killed study resumes.
    model, inputs
        The model of the run, loaded unless given; and the text or labelled images to choose and judge on, by default
        those that ship with headscape.
    calibrate
        More text or images like those of the run, for what gains from more: novelty and compensation. 64 windows at
        most. "sample" is the prose that ships with headscape.
    criterion, compensation, criteria
        Names, a function of your own, or "auto": the pair that does best on the part of `inputs` to choose on; and the
        criteria that are compared.
    budget, n_heads, evaluations
        Largest cost of the proposal (0.02 is 2 %): rise of the loss over the intact loss, drop of accuracy, or one minus
        the rank correlation of similarities; None makes no proposal. Or how many heads to remove. And how many sets of
        heads the search may try.
    fractions, windows
        Shares of the heads removed along the curves; windows of text to judge on (half as many more are used to choose).
    judge
        False leaves out the curves and the proposal: only the choice is made, and no result is kept in the run.
    out, kind
        Where `result.export(out, kind)` is going to write: a folder it cannot use is refused before anything is computed.
    loader
        How the run's model is loaded (device, number type, online).
    how
        jobs (evaluations at a time, each with a model of its own), threads, engine, resume, progress, say: see
        `headscape.studies.work.how.How`. Scores of criteria and the search run one after the other in any case. With
        the same number of threads none of it changes a byte.

    Raises a `HeadscapeError` when all is tried, if evaluations failed; those made are kept.
    """
    work = Work.of(**how)
    shares = [float(fraction) for fraction in fractions]
    request = _Request(criterion, compensation, list(criteria), budget, n_heads, shares, evaluations, judge)
    captured = open_capture(source)
    if captured.run is None and work.engine.apart:
        raise InputError("evaluations in other processes need a run directory; use one job, or give a directory")
    own = _model(captured, model, loader or Loader(say=work.say), block)
    data = {"windows": windows, "seed": random_state}
    pruning = Pruning.of(captured, own, captured.block(block), inputs=inputs, calibrate=calibrate, **data)
    with torch_threads(work.asked_threads or cores()):
        live = pruning.prepare(own, captured)
        organized = add_organized(live.evidence, captured)
        request.check(live.evidence)
        if organized is None and captured.run is not None:
            work.say(f"no criteria of the organized heads; for them run: headscape organize {captured.run.path}")
        given = {request.name: scores(criterion, live.evidence)} if callable(criterion) else {}
        hashes = live.data | ({} if organized is None else {"organize": organized})
        settings = vars(request) | {"criterion": request.name, "block": pruning.block, **data}
        contents = captured.content() | hashes | {"model": pruning.fingerprint, "dtype": pruning.dtype}
        contents |= {f"scores of {name}": digest(score.tolist()) for name, score in given.items()}
        pruning = replace(pruning, data=hashes, study=digest(settings, contents))
        if out is not None:
            check_target(Path(out), {"kind": kind, "study": pruning.study})
        with (
            work.started(None if captured.run is None else captured.run.path),
            study_folder(captured.run if judge else None, PruneResult.study, settings, contents, work) as folder,
        ):
            if captured.run is not None:  # also where no result is kept
                folder = replace(folder, units=captured.run.path.resolve() / PruneResult.study / UNITS)
            result = _run(Evaluations(pruning, live, folder, work), request, given)
            if judge:
                folder.save(result)
    vars(result)["model"] = own  # at hand for `export`
    return result


def _model(captured: Capture, model: Model | bool | None, loader: Loader, block: str | None) -> Model:
    """The model given, or that of the run; `InputError` where it has not the heads that were captured."""
    heads = set(captured.heads(block))
    if isinstance(model, bool) or model is None:
        if captured.run is None:
            raise InputError("pruning needs the model, not only its attention; capture a model, or give model=")
        model = loader.model(captured.run)
    missing = heads - {head for site in model.sites for head in site.heads}
    if missing:
        raise InputError(f"the run has head {min(missing)}, {model.source} has not: is this its model?")
    return model


@dataclass(frozen=True)
class _Request:
    """What is asked: how to rank and compensate, and how many heads to remove; checked when it is made."""

    criterion: Criterion
    compensation: str
    criteria: Sequence[str]
    budget: float | None
    n_heads: int | None
    fractions: Sequence[float]
    evaluations: int
    judge: bool

    def __post_init__(self) -> None:
        for name in (*self.criteria, *([] if self.criterion == "auto" else [self.criterion])):
            find_criterion(name)
        if self.compensation not in ("auto", *COMPENSATIONS):
            raise InputError(f"no compensation '{self.compensation}'; there are auto, {', '.join(COMPENSATIONS)}")
        if not self.fractions or not all(0 < f < 1 for f in self.fractions):
            raise InputError(
                f"fractions of heads lie between 0 and 1, not {', '.join(f'{f:g}' for f in self.fractions)}"
            )
        if self.budget is not None and not 0 < self.budget <= 1:
            raise InputError(f"the budget must be above 0 % and at most 100 %, not {self.budget:.3%}")
        if self.evaluations < 1:
            raise InputError(f"the search needs at least 1 evaluation, not {self.evaluations}")
        if self.criterion == "auto" and set(self.criteria) <= set(CONTROLS):
            raise InputError(f"there is no criterion to choose; {', '.join(CONTROLS)} are controls")

    def check(self, evidence: Evidence) -> None:
        """Raise where the heads cannot be ranked as asked, or none of them would be left."""
        n, source = len(evidence.heads), evidence.network.source
        if self.n_heads is not None and not 0 < self.n_heads < n:
            raise InputError(
                f"{self.n_heads} heads are to be removed and {source} has {n}; at least one must go and one must stay"
            )
        for part in self.name.split("+"):
            if part in CRITERIA and CRITERIA[part].organized:
                scores(part, evidence)

    @property
    def name(self) -> str:
        """The criterion by name."""
        return find_criterion(self.criterion).name if self.criterion != "auto" else "auto"


def _run(evaluations: Evaluations, request: _Request, given: Mapping[str, FloatArray]) -> PruneResult:
    """Rank, choose, search and judge; `given` are the scores of a function of the user's own."""
    named = [request.criterion] if isinstance(request.criterion, str) and request.criterion != "auto" else []
    ranking = rank(evaluations, list(dict.fromkeys([*request.criteria, *named])), given)
    candidates = [n for n in ranking.scores if n not in CONTROLS] if request.name == "auto" else [request.name]
    compensations = list(COMPENSATIONS) if request.compensation == "auto" else [request.compensation]
    table = choose(ranking, candidates, compensations, request.fractions)
    name, compensation = str(table["criterion"][0]), str(table["compensation"][0])
    score = ranking.scores[name]
    proposal: tuple[HeadId, ...] = ()
    trials: Sequence[tuple[int, float]] = ()
    if request.judge and request.n_heads is not None:
        proposal = tuple(ranking.lowest(score, request.n_heads))
    elif request.judge and request.budget is not None:
        found = search(ranking, name, compensation, request.budget, request.evaluations)
        proposal, trials = tuple(ranking.heads[i] for i in found.heads), found.trials
    judged = curves(ranking, name, compensation, request.fractions) if request.judge else []
    if proposal:
        judged += rivals(ranking, name, compensation, proposal)
    pruning = replace(evaluations.pruning, heads=proposal, compensation=compensation)
    fitted = evaluations.live.fit(proposal, compensation)
    return PruneResult(
        block=pruning.block,
        heads=_frame(ranking, score, proposal),
        criterion=name,
        compensation=compensation,
        budget=request.budget if request.n_heads is None else None,
        choice=table,
        intact=evaluations.loss("judge" if request.judge else "choose"),
        curves=judged,
        trials=trials,
        proposal=proposal,
        leave_one_out=ranking.leave_one_out,
        tree=evaluations.live.evidence.tree,
        skipped=dict(ranking.skipped),
        settings={"fractions": request.fractions, **evaluations.live.facts, "seed": pruning.seed},
        fitted=fitted,
        recipe=pruning.recipe(fitted),
    )


def _frame(ranking: Ranking, score: FloatArray, proposal: Sequence[HeadId]) -> pd.DataFrame:
    """One row per head: its place in the chosen ranking, whether it is removed, and its scores."""
    frame = pd.DataFrame(ranking.heads, columns=["block", "layer", "head"])
    frame["place"] = np.argsort(np.argsort(score, kind="stable"))
    frame["removed"] = ["yes" if head in proposal else "no" for head in ranking.heads]
    return frame.assign(**ranking.scores)
