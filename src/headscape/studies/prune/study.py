"""Which heads can be removed, and at what cost? Criteria, curves, a search within a budget, each beside its control."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pandas as pd

from headscape.attention.samples import replayed
from headscape.attention.threads import torch_threads
from headscape.attention.weights import check_changeable
from headscape.captures import Capture, open_capture
from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.compiled import free_threads
from headscape.errors import InputError
from headscape.fingerprints import digest
from headscape.pruning.compensation import COMPENSATIONS
from headscape.pruning.criteria import CRITERIA, find_criterion, scores
from headscape.pruning.evidence import Evidence
from headscape.pruning.export import check_target, check_writable
from headscape.pruning.forms import uniform_sets
from headscape.pruning.units import UNITS as HEAD_UNITS
from headscape.pruning.units import group_sizes
from headscape.runs import Run
from headscape.studies.prune.choosing import bounds_of, choose, search
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.evidence import add_organized, roles_of
from headscape.studies.prune.inputs import REPEATS, Prepared
from headscape.studies.prune.judging import curves, healed, rivals
from headscape.studies.prune.pruning import Pruning
from headscape.studies.prune.ranking import FloatArray, Ranking, rank
from headscape.studies.prune.result import CONTROLS, PruneResult
from headscape.studies.work.folder import UNITS, Folder, study_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import Loader
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["DEFAULT_CRITERIA", "prune", "rank_heads"]

Criterion = str | Callable[[Evidence], FloatArray]
DEFAULT_CRITERIA = ("novelty",)
STUDY_CRITERIA = (
    *("novelty", "gradient", "gradient_again", "l1_all", "l1_rel", "l1_top", "attention_entropy", "redundancy"),
    *("output_norm", "coupling", "depth", "leave_one_out", "gradient+l1_all", "gradient+novelty"),
    *("l1_all_random", "l1_all_natural"),
)
"""What `study=True` compares: all criteria, the papers' controls, and removing one head at a time."""


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

    >>> ranking = hs.rank_heads(run, "novelty", model)  # what the other heads of the layer cannot predict
    >>> list(ranking), len(ranking)
    (['block', 'layer', 'head', 'score'], 8)
    >>> with hs.ablate(model, ranking[["layer", "head"]].head(2).to_numpy().tolist()):
    ...     without = hs.loss(model, ["the cat sat"])
    """
    check_seed(random_state)
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
    model: Model | bool | None = True,
    inputs: Any = None,
    *,
    calibrate: Any = None,
    task: Any = None,
    task_by: str = "loss",
    repeats: float = REPEATS,
    criterion: Criterion = "auto",
    compensation: str = "auto",
    criteria: Sequence[str] | None = None,
    budget: float | Mapping[str, float] | None = 0.01,
    n_heads: int | None = None,
    unit: str = "auto",
    heal: int = 0,
    study: bool = False,
    fractions: Sequence[float] = (0.1, 0.2, 0.3),
    windows: int = 16,
    block: str | None = None,
    evaluations: int = 8,
    judge: bool = True,
    out: str | Path | None = None,
    kind: str = "auto",
    loader: Loader | None = None,
    random_state: int = 0,
    **how: Unpack[How],
) -> PruneResult:
    """Find heads to remove within a budget of every ability, and judge them on held-out inputs.

    Three sets of inputs are kept apart: criteria and compensation see those of the run and the calibration inputs; the
    search within the budget sees a third of the other `inputs`; every reported cost is measured on the rest.

    Parameters
    ----------
    source
        A run. Every evaluation is stored in it, so a killed study resumes.
    model, inputs
        The model of the run, loaded unless given; and the text or labelled images to choose and judge on, by default
        those that ship with headscape.
    calibrate
        More text or images like those of the run, for novelty and compensation: 112 windows with those of the run. By
        default a quarter of `inputs` that is not judged on; "sample" is the prose that ships with headscape.
    repeats
        Share of the calibration windows that repeat their first half (random tokens, text): they preserve copying.
    task, task_by
        Prompts and completions of your own, as a file of JSON lines or a list of pairs; a part is used for calibration,
        and the cost is measured by "loss" or "accuracy".
    criterion, compensation, criteria
        Names, a function of your own, or "auto": the pair that does best on the selection part of `inputs`; and the
        criteria that are compared (only `novelty` with linear compensation, unless it is a `study`).
    budget, n_heads, evaluations
        Largest cost of the proposal (0.01 is 1 %), for every ability alike or by name: {"text": 0.01, "copy": 0.02}. Of
        text: rise of the loss over the intact loss; of copying, retrieval and a task: share of the advantage over
        chance that is lost; or drop of accuracy, or one minus the rank correlation of similarities. While searching,
        abilities count by the mean less its standard error: few items test them. None makes no proposal. Or how many
        heads to remove. And how many sets of heads the search may try.
    unit
        What is removed at a time: "head", "group" (a key/value head with its queries: the cache shrinks), "layer", or
        "auto": groups where the model is to be written (`out`) and layers have several of them, else heads.
    heal
        Steps of distillation of the output projections, after the heads are chosen; judged separately, and exported.
    study
        Also compare all criteria and compensations along curves, with the papers' controls and leave-one-out: hours.
    fractions, windows
        Shares of the heads removed along the curves of a study; windows of text to judge on (half as many more are used
        to choose).
    judge
        False leaves out the curves and the proposal: only the choice is made, and no result is kept in the run.
    out, kind
        Where `result.export(out, kind)` is going to write: a place it cannot use is refused before anything is computed.
        With kind "uniform" only choices are searched that a stock configuration describes: equally many heads per layer.
    loader
        How the run's model is loaded (device, number type, online).
    how
        jobs (evaluations at a time, each with a model of its own), threads, engine, resume, progress, say: see
        `headscape.studies.work.how.How`. Scores of criteria and the search always run one after the other. With the
        same number of threads none of this changes a byte.

    Raises a `HeadscapeError` in the end if evaluations failed; finished ones are kept.

    >>> result = hs.prune(run, model, [hs.sample_text("judge")[:2000]], n_heads=2, windows=4)
    >>> result.headline()
    'Removing 2 of 8 heads (25%) costs ... (rise of the loss, n = 4) on held-out inputs (...)'
    >>> print(result.export("smaller"))
    tiny without 2 of 8 heads, ...
    """
    check_seed(random_state)
    integer("windows", windows)
    work = Work.of(**how)
    compared = list(criteria if criteria is not None else STUDY_CRITERIA if study else DEFAULT_CRITERIA)
    ranking = (criterion, compensation, compared, _plain(budget), n_heads, [float(f) for f in fractions], evaluations)
    request = _Request(*ranking, judge=judge, study=study, unit=unit, kind=kind, task_by=task_by, heal=heal)
    captured = _opened(source, work)
    own = _model(captured, model, loader or Loader(say=work.say), block)
    request = replace(request, unit=_unit(request, own, out))
    data = {"windows": windows, "seed": random_state, "repeats": repeats, "task_by": task_by, "unit": request.unit}
    given_data = {"inputs": inputs, "calibrate": calibrate, "task": task, "heal": heal}
    pruning = Pruning.of(captured, own, captured.block(block), **given_data, **data)
    with torch_threads(work.asked_threads or free_threads()):
        live = pruning.prepare(own, captured)
        organized = add_organized(live.evidence, captured, controls=study)
        _say_unseen(live, work)
        request.check(live.evidence, list(live.judging.parts))
        if organized is None and captured.run is not None and study:
            work.say(f"no criteria of the organized heads; for them run: headscape organize {captured.run.path}")
        given = {request.name: scores(criterion, live.evidence)} if callable(criterion) else {}
        pruning = replace(pruning, data=live.data | ({} if organized is None else {"organize": organized}))
        settings = vars(request) | {"criterion": request.name, "block": pruning.block, **data}
        contents = _contents(captured, pruning, given)
        pruning = replace(pruning, study=digest(settings, contents))
        if out is not None:
            check_target(Path(out), {"asked": kind, "study": pruning.study})
        with _folder(captured.run, judge, settings, contents, work) as folder:
            result = _run(Evaluations(pruning, live, folder, work), request, given)
            if judge:
                folder.save(result)
    vars(result)["model"] = own  # at hand for `export`
    return result


def _opened(source: Capture | Run | str | Path, work: Work) -> Capture:
    """The capture; `InputError` where other processes are to read one that is only in memory."""
    captured = open_capture(source)
    if captured.run is None and work.engine.apart:
        raise InputError("evaluations in other processes need a run directory; use one job, or give a directory")
    return captured


@contextmanager
def _folder(
    run: Run | None, judge: bool, settings: Mapping[str, Any], contents: Mapping[str, Any], work: Work
) -> Iterator[Folder]:
    """Where evaluations are kept: in the run, even if no result is."""
    with (
        work.started(None if run is None else run.path),
        study_folder(run if judge else None, PruneResult.study, settings, contents, work) as folder,
    ):
        yield folder if run is None else replace(folder, units=run.path.resolve() / PruneResult.study / UNITS)


def _contents(captured: Capture, pruning: Pruning, given: Mapping[str, Any]) -> dict[str, str]:
    """What a study read: batches, data, the model, and the scores of the caller's own criterion."""
    weights = {"model": pruning.fingerprint, "dtype": pruning.dtype}
    scores = {f"scores of {name}": digest(score.tolist()) for name, score in given.items()}
    return captured.content() | dict(pruning.data) | weights | scores


def _say_unseen(live: Prepared, work: Work) -> None:
    """Say where an ability of language models cannot be shown by these windows."""
    if live.evidence.network.task == "causal-lm" and "retrieval" not in live.judging.parts:
        work.say("retrieval from afar is not judged: the windows of this run are too few or too short for it")


def _plain(budget: float | Mapping[str, float] | None) -> dict[str, float] | float | None:
    """A budget for every ability, or by ability."""
    if budget is None:
        return None
    return {str(name): float(b) for name, b in budget.items()} if isinstance(budget, Mapping) else float(budget)


def _unit(request: _Request, model: Model, out: Any) -> str:
    """What is removed at a time; `InputError` where a smaller model is asked for and this one is not whole."""
    if request.heal and model.task != "causal-lm":
        raise InputError(f"healing distils the next token; {model.source} ({model.task}) predicts none")
    if request.heal:
        check_changeable(model.module, "healing a smaller model copies it")
    if out is not None or request.kind == "uniform":
        check_writable(model, "gguf" if out is not None and Path(out).suffix == ".gguf" else request.kind)
    if request.unit != "auto":
        return request.unit
    if out is None and request.kind != "uniform":
        return "head"
    sizes = group_sizes(model)
    several = all(site.n_heads // sizes[site.name] > 1 for site in model.sites)
    return "group" if several and max(sizes.values()) > 1 else "head"


def _model(captured: Capture, model: Model | bool | None, loader: Loader, block: str | None) -> Model:
    """The model given, or that of the run; `InputError` where it lacks heads that were captured."""
    heads = set(captured.heads(block))
    if isinstance(model, bool) or model is None:
        if captured.run is None:
            raise InputError("pruning needs the model, not only its attention; capture a model, or give model=")
        model = loader.model(captured.run)
    missing = heads - {head for site in model.sites for head in site.heads}
    if missing:
        raise InputError(f"the run has head {min(missing)}, but {model.source} does not: is this its model?")
    return model


@dataclass(frozen=True)
class _Request:
    """What is asked: how to rank and compensate, and how many heads to remove; checked when it is made."""

    criterion: Criterion
    compensation: str
    criteria: Sequence[str]
    budget: dict[str, float] | float | None
    n_heads: int | None
    fractions: Sequence[float]
    evaluations: int
    judge: bool = True
    study: bool = False
    unit: str = "head"
    kind: str = "auto"
    task_by: str = "loss"
    heal: int = 0

    def __post_init__(self) -> None:
        for name in (*self.criteria, *([] if self.criterion == "auto" else [self.criterion])):
            find_criterion(name)
        if self.compensation not in ("auto", *COMPENSATIONS):
            raise InputError(f"no compensation '{self.compensation}'; there are auto, {', '.join(COMPENSATIONS)}")
        if not self.fractions or not all(0 < f < 1 for f in self.fractions):
            raise InputError(
                f"fractions of heads lie between 0 and 1, not {', '.join(f'{f:g}' for f in self.fractions)}"
            )
        for bound in self.budget.values() if isinstance(self.budget, dict) else [self.budget]:
            if bound is not None and not 0 < bound <= 1:
                raise InputError(f"the budget must be above 0 % and at most 100 %, not {bound:.3%}")
        if self.heal < 0:
            raise InputError(f"steps of healing are 0 or more, not {self.heal}")
        if self.evaluations < 1:
            raise InputError(f"the search needs at least 1 evaluation, not {self.evaluations}")
        if self.criterion == "auto" and set(self.criteria) <= set(CONTROLS):
            raise InputError(f"there is no criterion to choose from; {', '.join(CONTROLS)} are controls")
        if self.unit not in ("auto", *HEAD_UNITS):
            raise InputError(f"the unit is one of auto, {', '.join(HEAD_UNITS)}, not {self.unit!r}")
        if self.task_by not in ("loss", "accuracy"):
            raise InputError(f"a task is judged by loss or accuracy, not by {self.task_by!r}")

    def check(self, evidence: Evidence, abilities: Sequence[str]) -> None:
        """Raise where the heads cannot be ranked as asked, none would be left, or an unknown ability has a budget."""
        for name in self.budget if isinstance(self.budget, dict) else ():
            if not any(name in (one, one.partition(".")[0]) for one in abilities):
                raise InputError(f"no ability '{name}' to budget; here there are {', '.join(abilities)}")
        n, source = len(evidence.heads), evidence.network.source
        if self.n_heads is not None and not 0 < self.n_heads < n:
            raise InputError(
                f"{self.n_heads} heads are to be removed and {source} has {n}; at least one must be removed and one must stay"
            )
        candidates = [self.name] if self.name != "auto" else [one for one in self.criteria if one not in CONTROLS]
        lacking = [_lacking(one, evidence) for one in candidates]
        if all(lacking):
            raise InputError("; ".join(dict.fromkeys(why for why in lacking if why)))

    @property
    def name(self) -> str:
        """The criterion by name."""
        return find_criterion(self.criterion).name if self.criterion != "auto" else "auto"


def _lacking(name: str, evidence: Evidence) -> str | None:
    """Why a criterion of the organized heads cannot be measured; None where it can, and for all others."""
    try:
        for part in name.split("+"):
            if part in CRITERIA and CRITERIA[part].organized:
                scores(part, evidence)
    except InputError as error:
        return str(error)
    return None


def _run(evaluations: Evaluations, request: _Request, given: Mapping[str, FloatArray]) -> PruneResult:
    """Rank, choose, search and judge; `given` are the scores of the user's own function."""
    live, auto = evaluations.live, request.compensation == "auto"
    compensations = list(COMPENSATIONS) if auto and request.study else ["linear" if auto else request.compensation]
    named = [request.criterion] if isinstance(request.criterion, str) and request.criterion != "auto" else []
    evaluations.make("measuring the intact model", "choose", [])
    evaluations.calibrate()
    wanted = [*request.criteria, *named] if request.study or not (named or given) else named
    ranking = rank(evaluations, list(dict.fromkeys(wanted)), given)
    candidates = [n for n in ranking.scores if n not in CONTROLS] if request.name == "auto" else [request.name]
    bounds = bounds_of(evaluations, request.budget) if request.budget is not None else {}
    table = choose(ranking, candidates, compensations)
    name, compensation = str(table["criterion"][0]), str(table["compensation"][0])
    score = ranking.scores[name]
    proposal, trials = _proposal(ranking, request, score, compensation, bounds) if request.judge else ((), ())
    judged = curves(ranking, name, compensation, request.fractions) if request.judge and request.study else []
    if proposal:
        judged += rivals(ranking, name, compensation, proposal, request.study)
    steps = request.heal if proposal else 0
    pruning = replace(evaluations.pruning, heads=proposal, compensation=compensation, heal=steps)
    healing = (steps, evaluations.work.stage("healing", steps).one) if steps else ()
    fitted = live.fit(proposal, compensation, *healing)
    judged += healed(evaluations, proposal, compensation, fitted) if steps else []
    on = "judge" if judged else "choose"
    return PruneResult(
        block=pruning.block,
        heads=_frame(ranking, score, proposal),
        criterion=name,
        compensation=compensation,
        unit=request.unit,
        budget=bounds if request.n_heads is None else {},
        choice=table,
        abilities=evaluations.abilities,
        intact=evaluations.losses(on),
        classes=_classes(evaluations, proposal, compensation) if proposal else pd.DataFrame(),
        curves=judged,
        trials=trials,
        proposal=proposal,
        leave_one_out=ranking.leave_one_out,
        tree=live.evidence.tree,
        skipped=dict(ranking.skipped),
        settings={"fractions": request.fractions, **live.facts, "seed": pruning.seed, "study": request.study},
        fitted=fitted,
        recipe=pruning.recipe(fitted),
    )


def _proposal(
    ranking: Ranking, request: _Request, score: FloatArray, compensation: str, bounds: Mapping[str, float]
) -> tuple[tuple[HeadId, ...], Sequence[tuple[int, float]]]:
    """The heads to remove, and the trials of the search for them as (number of heads, cost over budget)."""
    evidence = ranking.evaluations.live.evidence
    sets = uniform_sets(evidence, score) if request.kind == "uniform" else ranking.growing(score)
    if request.n_heads is not None:
        wanted = request.n_heads
        nearest: list[HeadId] = min(sets, key=lambda heads: abs(len(heads) - wanted))
        return tuple(nearest), ()
    if not bounds:
        return (), ()
    found = search(ranking, sets, compensation, bounds, request.evaluations)
    n = found.n or (1 if request.kind == "uniform" else 0)  # the nearest choice there is, with its own judged cost
    if not n:
        ranking.evaluations.work.say("nothing can be removed within the budget")
    return tuple(sets[n - 1]) if n else (), [(len(sets[k - 1]), ratio) for k, ratio in found.trials]


def _classes(evaluations: Evaluations, proposal: Sequence[HeadId], compensation: str) -> pd.DataFrame:
    """Of a classifier: accuracy by class on the judging images, intact and pruned."""
    intact, now = (evaluations.losses("judge", *removal) for removal in ((), (proposal, compensation)))
    if "accuracy" not in now:
        return pd.DataFrame()
    before, after = intact["accuracy"].correct, now["accuracy"].correct
    label = np.concatenate([task.wanted.numpy() for task in evaluations.live.judging.tasks])
    frame = pd.DataFrame({"class": label, "images": 1, "intact": before, "pruned": after})
    return frame.groupby("class", as_index=False).agg({"images": "sum", "intact": "mean", "pruned": "mean"})


def _frame(ranking: Ranking, score: FloatArray, proposal: Sequence[HeadId]) -> pd.DataFrame:
    """One row per head: its place in the chosen ranking, whether it is removed, its role if known, and its scores."""
    frame = pd.DataFrame(ranking.heads, columns=["block", "layer", "head"])
    frame["place"] = np.argsort(np.argsort(score, kind="stable"))
    frame["removed"] = ["yes" if head in proposal else "no" for head in ranking.heads]
    roles = roles_of(ranking.evaluations.live.evidence)
    if roles is not None:
        frame["role"] = roles
    elif proposal:
        ranking.evaluations.work.say("the roles of the removed heads are not known; for them: headscape organize RUN")
    return frame.assign(**ranking.scores)
