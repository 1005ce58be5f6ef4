"""The prune study: what it chooses and proposes, what it refuses, and what it keeps.

Also tests studies.prune.choosing, studies.prune.judging, studies.prune.ranking.
"""

import shutil

import numpy as np
import pytest
import transformers as T

import headscape as hs
from headscape.pruning.compensation import fit_compensation, moments_on, without_heads
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.pruning import Pruning
from headscape.studies.prune.result import PruneResult
from headscape.studies.prune.study import prune, rank_heads
from headscape.studies.work.folder import kept_studies
from prunable import JUDGE, QUICK, RANK, SILENT, contents
from tiny import Letters
from zoo import GPT


def heads_of(frame):
    return [hs.HeadId(*row) for row in frame[["block", "layer", "head"]].to_numpy()]


def test_planted_heads_are_proposed_first(run, model):
    assert set(heads_of(rank_heads(run, "output_norm", model))[:2]) == SILENT
    for criterion in ("output_norm", "novelty"):
        found = prune(run, model=model, inputs=JUDGE, criterion=criterion, n_heads=2, **QUICK)
        assert set(found.proposal) == SILENT
        assert abs(found.curve("proposal", proposal=True).cost(0).value) < 1e-6
    first = heads_of(rank_heads(run, "redundancy", model))[0]
    assert first in (hs.HeadId("decoder", 1, 2), hs.HeadId("decoder", 1, 3))


def test_costs_are_those_of_removing_the_heads_on_the_judging_text(result, run, model):
    captured = hs.open_capture(run)
    live = Pruning.of(captured, model, "decoder", inputs=JUDGE, windows=4).prepare(model, captured)

    def whole():
        keys = live.judging.parts["text"]
        parts = [
            live.judging.join([live.judging.run(t) for t in tasks]) for k, tasks in live.judging.pieces if k in keys
        ]
        return np.concatenate([part.values for part in parts])

    intact = whole()
    np.testing.assert_allclose(result.intact["text"].values, intact, atol=1e-6)
    curve = result.curve("l1_all", "mean")
    order = np.argsort(result.heads["l1_all"].to_numpy(), kind="stable")
    moments = moments_on(model, live.evidence.fit)
    for i, n in enumerate(curve.n):
        by_module = {}
        for layer, head in result.heads[["layer", "head"]].to_numpy()[order[:n]].tolist():
            by_module.setdefault(next(s.name for s in model.sites if s.layer == layer), []).append(head)
        with without_heads(model, fit_compensation(model, by_module, moments, "mean")):
            rise = (whole() - intact) / intact.mean()
        np.testing.assert_allclose(curve.costs[0, i], rise, atol=1e-5)


def test_shares_that_come_to_the_same_number_of_heads_are_one(result):
    assert result.curve("gradient").n == (1, 2)  # 10, 20 and 30 % of 8 heads
    assert [column for column in result.table if "removed" in column] == ["12% removed", "25% removed"]


def test_another_text_is_another_study_and_both_are_kept(result, run, model, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    before = contents(folder / "prune")
    with pytest.raises(hs.InputError, match="cannot be resumed: budget was"):
        prune(folder, model=model, inputs=[JUDGE[0][7:]], budget=0.31, resume=True, **QUICK)
    assert contents(folder / "prune") == before
    other = prune(folder, model=model, inputs=[JUDGE[0][7:]], budget=None, **QUICK)
    after = contents(folder / "prune")
    assert {name: after[name] for name in before} == before
    newest = hs.open_result(folder, "prune")
    assert newest.recipe == other.recipe and newest.recipe["data"]["judged"] != result.recipe["data"]["judged"]
    finished = [kept.path for kept in kept_studies(hs.Run.open(folder), "prune")]
    assert {PruneResult.load(path).recipe["study"] for path in finished} >= {
        other.recipe["study"],
        result.recipe["study"],
    }


def test_auto_takes_the_best_on_the_choosing_text(result, run, model):
    best = result.choice.iloc[0]
    assert (result.criterion, result.compensation) == (best["criterion"], best["compensation"])
    assert best["compared on"] == "all inputs" and best["cost"] == result.choice["cost"].min()
    assert not set(result.choice["criterion"]) & {"leave_one_out", "l1_all_random", "l1_all_natural", "random"}
    kept = kept_studies(hs.Run.open(run), "prune")
    ranked = rank_heads(run, "auto", model, JUDGE)
    assert ranked["place"].tolist() == list(range(8))
    assert kept_studies(hs.Run.open(run), "prune") == kept  # a ranking is no result to show


def test_a_function_of_ones_own(run, model):
    def last_first(evidence):
        return -np.arange(len(evidence.heads), dtype=float)

    options = {"model": model, "inputs": JUDGE, "n_heads": 1, "compensation": "none", **QUICK}
    found = prune(run, criterion=last_first, **options)
    assert found.criterion == "last_first" and found.proposal == (hs.HeadId("decoder", 1, 3),)
    assert found.findings()[0].text.endswith("removed by last_first with compensation none.")

    def first_first(evidence):
        return np.arange(len(evidence.heads), dtype=float)

    first_first.__name__ = "last_first"  # the same name is not the same study
    assert prune(run, criterion=first_first, **options).proposal == (hs.HeadId("decoder", 0, 0),)


def test_a_capture_in_memory_without_organization(model):
    captured = hs.capture(model, RANK, tokens=12, batches=None, dtype="float32")
    said = []
    found = prune(captured, model=model, inputs=JUDGE, budget=0.2, study=True, say=said.append, **QUICK)
    assert set(found.skipped) == {"l1_all", "l1_top"} and any("without l1_all" in line for line in said)
    assert found.tree is None
    with pytest.raises(hs.InputError, match="evaluations in other processes need a run directory"):
        prune(captured, model=model, inputs=JUDGE, jobs=2, **QUICK)
    with pytest.raises(hs.InputError, match="criterion l1_all needs the organize study"):
        prune(captured, model=model, inputs=JUDGE, criterion="gradient+l1_all", **QUICK)
    with pytest.raises(hs.InputError, match="pruning needs the model"):
        prune(captured, inputs=JUDGE, **QUICK)


def test_criteria_without_the_study_they_need_are_refused_at_once(model, monkeypatch):
    captured = hs.capture(model, RANK, tokens=12, batches=None, dtype="float32")
    options = {"model": model, "inputs": JUDGE, "budget": 0.2, **QUICK}
    ran = []
    monkeypatch.setattr(Evaluations, "make", lambda *_: ran.append(1))
    for criteria in (["l1_all"], ["l1_all", "l1_top"], ["l1_all", "random"], ["novelty+l1_all"]):
        with pytest.raises(hs.InputError, match="^criterion l1_all needs the organize study"):
            prune(captured, **options | {"criteria": criteria})
    assert not ran


def test_every_stage_has_a_total_that_stays_and_is_reached(run, model):
    class Bars:
        def __init__(self):
            self.seen = []

        def stage(self, name):
            self.seen.append((name, []))

        def __call__(self, done, total):
            self.seen[-1][1].append((done, total))

    bars = Bars()
    criteria = ("novelty", "gradient", "leave_one_out")
    prune(run, model=model, inputs=JUDGE, budget=0.2, study=True, progress=bars, **{**QUICK, "criteria": criteria})
    names = [name for name, _ in bars.seen]
    assert names == [
        *("measuring the intact model", "calibrating", "removing one head at a time", "ranking heads", "comparing 8"),
        *("searching", "judging criteria", "judging the proposal"),
    ]
    for _, calls in bars.seen:
        totals = {total for _, total in calls}
        assert len(totals) == 1 and [done for done, _ in calls] == list(range(totals.pop() + 1))


def test_mistakes_are_named_and_change_nothing(run, model, tmp_path):
    options = {"model": model, "inputs": JUDGE, **QUICK}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    before = contents(run)
    for change, message in (
        ({"budget": 0.0}, "budget must be above 0 %"),
        ({"budget": 2.0}, "at most 100 %, not 200"),
        ({"n_heads": 8}, "8 heads are to be removed and .* has 8; at least one must be removed and one must stay"),
        ({"n_heads": 0}, "0 heads are to be removed"),
        ({"criterion": "l1"}, "no criterion 'l1'"),
        ({"compensation": "magic"}, "no compensation 'magic'; there are auto, none"),
        ({"fractions": (0.1, 1.0)}, "fractions of heads lie between 0 and 1"),
        ({"evaluations": 0}, "at least 1 evaluation"),
        ({"budget": {"copying": 0.1}}, "no ability 'copying' to budget; here there are text, copy.random, copy.text"),
        ({"unit": "block"}, "the unit is one of auto, head, group, layer"),
        ({"repeats": 1.0}, "share of repeats lies between 0 and 1"),
        ({"task": [("a", "b")]}, "the task has 1 different rows; at least 8"),
        ({"task_by": "taste"}, "judged by loss or accuracy"),
        ({"windows": 2}, "too few for an interval"),
        ({"inputs": RANK}, "at least 4 others are needed"),
        ({"block": "encoder"}, "no block 'encoder' was captured; there are decoder"),
        ({"criteria": ("random", "l1_all_random")}, "no criterion to choose from; random, .* are controls"),
        ({"out": tmp_path / "mine"}, "exists and is not an empty folder"),
    ):
        with pytest.raises(hs.InputError, match=message):
            prune(run, **{**options, **change})
    assert contents(run) == before


def test_a_model_without_the_heads_of_the_run_is_refused(run):
    other = hs.wrap_module(T.GPT2LMHeadModel(T.GPT2Config(**{**GPT, "n_head": 2})).eval(), tokenizer=Letters())
    for call in (prune, rank_heads):
        with pytest.raises(hs.InputError, match=r"the run has head decoder\.0\.2, .* does not: is this its model"):
            call(run, model=other, inputs=JUDGE)


def test_a_task_by_accuracy_counts_answers_also_after_healing(tmp_path, model):
    """No answer changes where a silent head goes; the interval says how many could have, and has a width."""
    hs.capture(model, RANK, tokens=12, batches=None, dtype="float32", out=tmp_path)
    rows = [
        (f"she sells {word}", "s") for word in ("sea", "shells", "shores", "foxes", "dogs", "more", "measure", "all")
    ]
    found = hs.prune(
        tmp_path, model, JUDGE * 3, task=rows * 2, task_by="accuracy", n_heads=1, heal=1, windows=4, threads=1
    )
    for name in ("proposal", "healed"):
        curve = found.curve(name, proposal=True, ability="task")
        assert curve.answers and set(np.unique(curve.costs)) <= {-1.0, 0.0, 1.0}
        assert not found.curve(name, proposal=True, ability="text").answers
        cost = curve.cost(0)
        assert cost.low < cost.value < cost.high and cost.n == curve.costs.shape[-1]
    right = found.intact["task"].correct.mean()
    shown = found.costs.set_index("ability").loc["task"]
    assert shown["intact"] == shown["now"] == right and found.intact["task"].mean > 1.5
    ability = found.abilities.set_index("ability").loc["task"]
    assert shown["chance"] == ability["right by chance"] <= 1 < ability["chance"]
    again = hs.open_result(tmp_path, "prune")
    assert [c.answers for c in again.curves] == [c.answers for c in found.curves]
