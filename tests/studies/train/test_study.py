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
    assert result.arms == ["standard", "hidden", "skip", "both", "longer"]
    assert len(result.trials) == 4 * 3 + 2 and counts[-1][0] == counts[-1][1]
    standard, longer = (result.trials[result.trials["arm"] == name] for name in ("standard", "longer"))
    assert set(longer["rate"]) == set(standard.loc[standard["chosen"], "rate"]) and set(longer["steps"]) == {16}
    for name, rows in result.trials[result.trials["arm"] != "longer"].groupby("arm"):
        first = rows[rows["seed"] == 0]
        best = float(first.loc[first["valid_loss"].idxmin(), "rate"])
        assert set(rows.loc[rows["chosen"], "rate"]) == {best} and rows["chosen"].sum() == 2, name
    bits = result.trials["test_loss"] / math.log(2)
    np.testing.assert_allclose(result.trials["score"], bits)
    assert list(result.baselines) == ["unigram", "bigram", "trigram"] and result.trials["removed"].notna().all()
    assert result.layers.groupby(["arm", "seed"]).size().eq(3 * 3).all()  # evaluations x (layers + 1)
    assert result.heads.groupby(["arm", "seed"]).size().eq(3 * 2 * 2).all()
    assert len(result.last) == len(result.counts) == 10 * 3


def test_seeds_pair_the_arms(done):
    _, result, _ = done
    by_seed = result.trials[result.trials["chosen"]].pivot(index="seed", columns="arm", values="score")
    expected = mean_interval(by_seed["both"] - by_seed["standard"])
    assert result.difference("both").value == pytest.approx(expected.value)
    frame = result.to_frame().set_index("arm")
    assert frame.loc["both", "change"] == pytest.approx(expected.value) and frame.loc["standard", "change"] == 0


def test_it_goes_on_and_takes_more_seeds_but_no_other_network(done, text):
    out, result, _ = done
    log = next((out / "train" / "units").glob("both-rate0.003-seed0-*.json"))
    stamp = log.stat().st_mtime_ns
    more = train("gpt", out, text=text, sizes=SIZES, **QUICK | {"seeds": 3})
    assert log.stat().st_mtime_ns == stamp and len(more.trials) == len(result.trials) + 5
    shared = more.trials.merge(result.trials, on=["arm", "rate", "seed"])
    assert (shared["score_x"] == shared["score_y"]).all()
    assert len(kept_studies(Run.open(out), "train")) == 2  # the earlier comparison is kept
    with pytest.raises(InputError, match="network"):
        train("gpt", out, text=text, sizes=SIZES | {"layers": 1}, **QUICK)
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


def test_short_runs_choose_the_rates_of_a_grid_of_alphas(text, tmp_path):
    options = {"arms": ["standard", "both"], "alpha": [0.3, 0.6], "alpha_hidden": [0.2, 0.5], "search_steps": 6}
    found = train("gpt", tmp_path / "grid", text=text, sizes=SIZES, **options, **QUICK | {"seeds": 1})
    grid = [f"both a={a} a'={b}" for a in (0.3, 0.6) for b in (0.2, 0.5)]
    assert found.arms == ["standard", *grid]
    search, kept = (found.trials[found.trials["kept"] == kept] for kept in (False, True))
    assert set(search["steps"]) == {6} and len(search) == 10 and search["uniform"].isna().all()
    assert set(kept["steps"]) == {12} and len(kept) == 5 and kept["chosen"].all()
    for name, rows in search.groupby("arm"):
        assert found.rate(name) == rows.loc[rows["valid_loss"].idxmin(), "rate"]
    said = [f.text for f in found.findings() if f.claim == "train.both"]
    assert ["(a=0.3 a'=0.2)" in text for text in said] == [True, False, False, False]


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
        "vit",
        tmp_path / "vit",
        images=pictures,
        sizes={"layers": 2, "heads": 2, "dim": 16, "patch": 7},
        arms=["both"],
        seeds=1,
        rates=[3e-3],
        steps=60,
        batch=16,
    )
    assert result.images and result.scores("both").iloc[0] > 90
    assert any("Fewer than three seeds" in f.text for f in result.findings())
    assert "nan" not in str(result.figures()[0].data["rows"])  # one seed has no interval
    assert result.last["layer"].tolist() == [0, 1, 2] and result.counts[0].sum() == 17 * 16 // 2 * 36
    assert list(result.baselines) == ["linear"] and result.baselines["linear"] > 90


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
    assert any("Runs that diverged: standard at 0.03." in f.text for f in result.findings())
    with pytest.raises(HeadscapeError, match="smaller learning rates"):
        train("gpt", tmp_path / "b", text=text, sizes=SIZES, arms=["standard"], **QUICK | {"rates": [0.05]})


def test_an_arm_that_diverges_ends_no_comparison(text, tmp_path, monkeypatch):
    from headscape.studies.train import loop as train_loop
    from headscape.studies.train.figures import shown_table

    own = train_loop._Run._one_step

    def spoiled(self):
        own(self)
        if self.trial.arm == "both" or (self.trial.arm == "hidden" and self.trial.seed == 1):
            self.losses[-1] = math.nan

    monkeypatch.setattr(train_loop._Run, "_one_step", spoiled)
    arms, counts = ["standard", "hidden", "both", "skip", "longer"], []
    result = train(
        "gpt", tmp_path / "a", text=text, sizes=SIZES, arms=arms, progress=lambda *c: counts.append(c), **QUICK
    )
    assert result.arms == ["standard", "skip", "longer"] and counts[-1][0] == counts[-1][1]
    tried = result.trials[result.trials["arm"] == "hidden"].set_index("seed")
    assert result.failed == {
        "hidden": f"the loss did not stay finite (learning rate {tried.loc[1, 'rate']:g} with seed 1)",
        "both": "the loss did not stay finite (learning rate 0.003 with seed 0, 0.03 with seed 0)",
    }
    said = next(f for f in result.findings() if f.claim == "train.both")
    assert said.verdict == "cannot tell" and said.text.startswith("We cannot tell whether Modern Hopfield Attention is")
    assert said.text.endswith(f"it diverged and is not compared. Reason: {result.failed['both']}.")
    row = shown_table(result).set_index("arm").loc["both (Hopfield)"]
    assert row["bits per byte"] == f"diverged: {result.failed['both']}" and row["seeds"] == ""
    assert all(len(frame) for _, frame in result.summary()) and len(result.figures()) > 5
    result.save(tmp_path / "kept")
    assert TrainResult.load(tmp_path / "kept").failed == result.failed


def test_an_implicit_arm_that_does_not_converge_has_diverged(text, tmp_path, monkeypatch):
    monkeypatch.setattr("headscape.hopfield.layer.MAX_ITERATIONS", 1)
    arms = ["standard", "implicit", "implicit-delayed"]
    result = train("gpt", tmp_path / "a", text=text, sizes=SIZES, arms=arms, jobs=1, **QUICK | {"seeds": 1})
    assert result.arms == ["standard"] and list(result.failed) == arms[1:]
    assert result.failed["implicit"].startswith("the implicit step did not converge to 1e-05 in 1 iterations")
    assert result.trials.set_index("arm").loc["implicit", "steps"].eq(0).all()
    with pytest.raises(HeadscapeError, match="arm implicit diverged: the implicit step did not converge"):
        train("gpt", tmp_path / "b", text=text, sizes=SIZES, arms=["implicit"], **QUICK)


def test_a_vit_says_that_it_needs_images_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("headscape.studies.train.data.FASHION", tmp_path / "none")
    with pytest.raises(InputError, match="a ViT needs labelled images"):
        train("vit", tmp_path / "out")
    with pytest.raises(InputError, match="a ViT takes no tokens"):
        train("vit", tmp_path / "out", sizes={"tokens": 8})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": ["standard", "x"]}, "no arm 'x'"),
        ({"arms": []}, "name each arm once, of standard"),
        ({"arms": ["both", "both"]}, "name each arm once"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"rates": [0.0]}, "learning rates must lie between"),
        ({"alpha": 1.0}, "alpha must be at least 0 and below 1"),
        ({"steps": 2, "evaluations": 5}, "2 steps are too few for 5"),
        ({"batch": 5, "accumulate": 2}, "cannot be run in 2 equal parts"),
        ({"autocast": "int8"}, "autocast is one of bfloat16, float16"),
        ({"augment": "heavy"}, "augment is one of none, light, paper"),
        ({"augment": "light"}, "augment changes images"),
        ({"search_steps": 3}, "3 steps to choose a learning rate are too few"),
        ({"device": "tpu"}, "device is auto, cpu"),
        ({"device": "split"}, "one device: auto, cpu, cuda or mps, not 'split'"),
        ({"images": "x"}, "trained on text"),
        ({"patience": -1}, "patience must be"),
        ({"sizes": {"heads": 3, "dim": 16}}, "do not divide"),
        ({"sizes": {"patch": 7}}, "a language model takes no patch"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"engine": "cloud"}, "engine is one of"),
    ],
)
def test_wrong_requests(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        train("gpt", tmp_path / "out", **{"sizes": SIZES} | options)
    assert not (tmp_path / "out").exists()
