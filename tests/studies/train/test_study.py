"""The comparison: every run it needs, judged on what chose nothing."""

import math

import numpy as np
import pytest

from headscape.errors import HeadscapeError, InputError
from headscape.intervals import mean_interval
from headscape.runs import Run
from headscape.studies.train import TrainResult, train
from headscape.studies.work.folder import kept_studies

SIZES = {"layers": 2, "heads": 2, "dim": 16, "tokens": 16}
QUICK = {"steps": 12, "evaluations": 3, "rates": (3e-3, 3e-2), "seeds": 2, "batch": 4}


@pytest.fixture(scope="module")
def done(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "gpt"
    counts = []
    result = train("gpt", out, text=text, sizes=SIZES, progress=lambda *c: counts.append(c), **QUICK)
    return out, result, counts


def test_the_comparison_has_all_its_runs(done):
    _, result, counts = done
    assert result.arms == ["standard", "hidden", "skip", "both"]
    assert len(result.trials) == 4 * 3 and counts[-1] == (36, 36)
    for name, rows in result.trials.groupby("arm"):
        first = rows[rows["seed"] == 0]
        best = float(first.loc[first["valid_loss"].idxmin(), "rate"])
        assert set(rows.loc[rows["chosen"], "rate"]) == {best} and rows["chosen"].sum() == 2, name
    bits = result.trials["test_loss"] / math.log(2)
    np.testing.assert_allclose(result.trials["score"], bits)


def test_seeds_pair_the_arms(done):
    _, result, _ = done
    by_seed = result.trials[result.trials["chosen"]].pivot(index="seed", columns="arm", values="score")
    expected = mean_interval(by_seed["both"] - by_seed["standard"])
    assert result.difference("both").value == pytest.approx(expected.value)
    frame = result.to_frame().set_index("arm")
    assert frame.loc["both", "change"] == pytest.approx(expected.value) and frame.loc["standard", "change"] == 0


def test_it_goes_on_and_takes_more_seeds_but_no_other_settings(done, text):
    out, result, _ = done
    log = next((out / "train" / "units").glob("both-rate0.003-seed0-*.json"))
    stamp = log.stat().st_mtime_ns
    more = train("gpt", out, text=text, sizes=SIZES, **QUICK | {"seeds": 3})
    assert log.stat().st_mtime_ns == stamp and len(more.trials) == len(result.trials) + 4
    shared = more.trials.merge(result.trials, on=["arm", "rate", "seed"])
    assert (shared["score_x"] == shared["score_y"]).all()
    assert len(kept_studies(Run.open(out), "train")) == 2  # the earlier comparison is kept
    with pytest.raises(InputError, match="alpha_hidden = 0.5, not 0.7"):
        train("gpt", out, text=text, sizes=SIZES, alpha_hidden=0.7, **QUICK)
    with pytest.raises(InputError, match="cannot be resumed: seeds was"):
        train("gpt", out, text=text, sizes=SIZES, resume=True, **QUICK | {"seeds": 4})


def test_finalists_are_judged_by_the_mean_over_seeds(done, text, tmp_path):
    _, result, _ = done
    arms = ["standard", "skip"]
    found = train("gpt", tmp_path / "two", text=text, sizes=SIZES, arms=arms, finalists=2, **QUICK)
    assert len(found.trials) == 2 * 2 * 2  # every rate with every seed
    for name in arms:
        rows = found.trials[found.trials["arm"] == name]
        mean = rows.groupby("rate")["valid_loss"].mean()
        assert set(rows.loc[rows["chosen"], "rate"]) == {mean.idxmin()} and len(found.scores(name)) == 2
    shared = found.trials.merge(result.trials, on=["arm", "rate", "seed"])
    assert len(shared) >= 6 and (shared["score_x"] == shared["score_y"]).all()


def test_jobs_change_nothing(done, text, tmp_path):
    _, result, _ = done
    both = train("gpt", tmp_path / "jobs", text=text, sizes=SIZES, jobs=2, arms=["both"], **QUICK)
    expected = result.trials[result.trials["arm"] == "both"]
    merged = both.trials.merge(expected, on=["arm", "rate", "seed"])
    assert len(merged) == len(both.trials) and (merged["score_x"] == merged["score_y"]).all()


def test_results_come_back(done, tmp_path):
    _, result, _ = done
    result.save(tmp_path)
    again = TrainResult.load(tmp_path)
    assert again.to_frame().equals(result.to_frame()) and again.trials.equals(result.trials)
    assert [str(f) for f in again.findings()] == [str(f) for f in result.findings()]
    np.testing.assert_array_equal(again.counts, result.counts)
    (tmp_path / "trials.csv").unlink()
    with pytest.raises(HeadscapeError, match="cannot be read"):
        TrainResult.load(tmp_path)


def test_images_are_learned(pictures, tmp_path):
    result = train(
        "vit", tmp_path / "vit", images=pictures, sizes=SIZES, arms=["both"], seeds=1, rates=[3e-3], steps=60, batch=16
    )
    assert result.images and result.scores("both").iloc[0] > 90
    assert any("Fewer than three seeds" in f.text for f in result.findings())
    assert "nan" not in str(result.figures()[0].data["rows"])  # one seed has no interval
    assert result.similarity["layer"].tolist() == [0, 1, 2] and result.counts[0].sum() == 17 * 16 // 2 * 36


def test_a_rate_that_diverges_is_reported_and_not_taken(text, tmp_path, monkeypatch):
    from headscape.studies.train import loop as train_loop

    own = train_loop._Run._one_step

    def spoiled(self):
        own(self)
        if self.trial.rate > 0.02:
            self.losses[-1] = math.inf

    monkeypatch.setattr(train_loop._Run, "_one_step", spoiled)
    result = train("gpt", tmp_path / "a", text=text, sizes=SIZES, arms=["standard"], **QUICK)
    assert result.trials["diverged"].sum() == 1 and not result.trials.loc[result.trials["diverged"], "chosen"].any()
    assert any("did not stay finite: standard at 0.03" in f.text for f in result.findings())
    with pytest.raises(HeadscapeError, match="smaller learning rates"):
        train("gpt", tmp_path / "b", text=text, sizes=SIZES, arms=["standard"], **QUICK | {"rates": [0.05]})


def test_a_vit_says_that_it_needs_images_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("headscape.studies.train.data.FASHION", tmp_path / "none")
    with pytest.raises(InputError, match="a ViT needs labelled images"):
        train("vit", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": ["standard", "x"]}, "no arm 'x'"),
        ({"arms": []}, "name each arm once, of standard"),
        ({"arms": ["both", "both"]}, "name each arm once"),
        ({"steps": 0}, "0 steps with"),
        ({"batch": 0}, "a batch of 0"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"rates": [0.0]}, "learning rates must lie between"),
        ({"alpha": 1.0}, "alpha must be at least 0 and below 1"),
        ({"steps": 2, "evaluations": 5}, "too little"),
        ({"images": "x"}, "trained on text"),
        ({"patience": -1}, "patience must be"),
        ({"sizes": {"heads": 3, "dim": 16}}, "do not divide"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"engine": "cloud"}, "engine is one of"),
    ],
)
def test_wrong_requests(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        train("gpt", tmp_path / "out", **{"sizes": SIZES} | options)
    assert not (tmp_path / "out").exists()
