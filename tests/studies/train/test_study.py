import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from headscape.cli import train as cli_train
from headscape.cli.shared import app
from headscape.errors import HeadscapeError, InputError
from headscape.hopfield.networks import NetworkConfig, Transformer, arm
from headscape.studies.train.data import image_data, text_data
from headscape.studies.train.loop import Plan, Trial, run_trial, token_similarity
from headscape.studies.train.result import TrainResult, t_interval
from headscape.studies.train.study import train

SIZES = {"layers": 2, "heads": 2, "dim": 16, "tokens": 16}
QUICK = {"steps": 12, "evaluations": 3, "rates": (3e-3, 3e-2), "seeds": 2, "batch": 4}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "pattern.txt"
    rng = np.random.default_rng(0)
    path.write_text("".join(rng.choice(["the cat sat. ", "a dog ran. "], 900)))
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two classes, dark and bright."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    images = rng.integers(0, 90, (400, 28, 28)).astype(np.uint8)
    images[labels == 1] += 40
    path = tmp_path_factory.mktemp("images") / "halves.npz"
    np.savez(path, images=images, labels=labels)
    return path


def plan_of(network, **changes):
    return Plan(
        **{"network": network, "steps": 12, "batch": 4, "warmup": 2, "weight_decay": 0.1, "evaluations": 3} | changes
    )


# --- data ------------------------------------------------------------------------------------------------------------


def test_parts_of_a_text_are_consecutive_and_share_nothing(text):
    data = text_data(text, tokens=16)
    raw = text.read_bytes()
    joined = np.concatenate([data.parts[part] for part in ("train", "valid", "test")])
    assert bytes(joined.astype(np.uint8)) == raw
    assert len(data.parts["train"]) == round(0.8 * len(raw)) and data.vocabulary == 256 and data.bytes_a_token == 1.0


def test_windows_and_batches_predict_the_next_token(text):
    data = text_data(text, tokens=16)
    x, y = data.batch(torch.Generator().manual_seed(0), 8, 16)
    assert torch.equal(x[:, 1:], y[:, :-1])
    seen = [(x, y) for x, y in data.windows("test", 2, 16, 1000)]
    rows = torch.cat([x for x, _ in seen], dim=1)
    stream = torch.from_numpy(data.parts["test"])
    assert torch.equal(rows[0], stream[: rows.shape[1]])  # consecutive windows of each stream, none twice
    assert torch.equal(rows[1], stream[rows.shape[1] : 2 * rows.shape[1]])
    x0, y0 = data.segment(0, 4, 16)
    x1, _ = data.segment(1, 4, 16)
    assert torch.equal(y0[:, -1], x1[:, 0])  # a memory sees the text in order


def test_streams_need_a_window_each(text):
    data = text_data(text, tokens=16)
    with pytest.raises(InputError, match="the test part has .* too few for 100 streams of 16"):
        data.windows("test", 100, 16, 1)


def test_a_tokenizer_counts_bytes_a_token(text):
    class Words:
        def __len__(self):
            return 7

        def encode(self, text, add_special_tokens=True):
            return [len(word) % 7 for word in text.split()]

    data = text_data(text, Words(), tokens=16, tokenizer_name="words")
    whole = text.read_text()
    assert data.vocabulary == 7 and data.bytes_a_token == pytest.approx(len(whole) / len(whole.split()))


def test_images_are_split_and_scaled(pictures):
    data = image_data(pictures, NetworkConfig("vit", 1, 2, 8, patch=7))
    assert [len(data.labels[part]) for part in ("train", "valid", "test")] == [324, 36, 40]
    assert data.images["train"].mean().abs() < 1e-4 and data.images["train"].std() == pytest.approx(1, abs=1e-3)
    x, y = data.batch(torch.Generator().manual_seed(0), 16, NetworkConfig("vit", 1, 2, 8, patch=8, image=32))
    assert x.shape == (16, 1, 32, 32) and y.shape == (16,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: image_data(p / "none", NetworkConfig("vit", 1, 2, 8)), "no images at"),
        (lambda p: image_data(p, NetworkConfig("vit", 1, 2, 8)), "holds no train-images"),
        (lambda p: text_data(p / "short.txt", tokens=64), "fewer than two windows of 64"),
        (lambda p: image_data(p / "short.txt", NetworkConfig("vit", 1, 2, 8)), "is not an .npz"),
        (lambda p: image_data(p / "bare.npz", NetworkConfig("vit", 1, 2, 8)), "needs images and labels"),
        (lambda p: image_data(p / "rgb.npz", NetworkConfig("vit", 1, 2, 8)), "3 channels, this network takes 1"),
    ],
)
def test_data_that_does_not_fit(tmp_path, call, message):
    (tmp_path / "short.txt").write_text("too short a text")
    np.savez(tmp_path / "bare.npz", x=np.zeros(3))
    np.savez(tmp_path / "rgb.npz", images=np.zeros((50, 8, 8, 3), np.uint8), labels=np.zeros(50, int))
    with pytest.raises(InputError, match=message):
        call(tmp_path)


# --- one run ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt", "xl"])
def test_a_killed_run_goes_on_to_the_same_numbers(text, tmp_path, kind):
    data = text_data(text, tokens=16)
    plan = plan_of(NetworkConfig(kind, 2, 2, 16, tokens=16, memory=16 if kind == "xl" else 0, dropout=0.1))
    trial = Trial("both", arm("both"), 1e-2, 0)
    whole = run_trial(plan, data, trial, tmp_path / "whole", 1, lambda: None)
    ticks = []

    def kill():
        ticks.append(1)
        if len(ticks) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trial(plan, data, trial, tmp_path / "cut", 1, kill)
    assert (tmp_path / "cut" / "checkpoint.safetensors").is_file() and not (tmp_path / "cut" / "log.json").exists()
    resumed = run_trial(plan, data, trial, tmp_path / "cut", 1, lambda: None)
    assert resumed == whole
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    assert not (tmp_path / "cut" / "checkpoint.safetensors").exists()


def test_a_finished_run_is_read_and_not_run_again(text, tmp_path):
    data = text_data(text, tokens=16)
    plan = plan_of(NetworkConfig("gpt", 1, 2, 8, tokens=16))
    trial = Trial("standard", arm("standard"), 1e-2, 0)
    log = run_trial(plan, data, trial, tmp_path, 1, lambda: None)
    (tmp_path / "model.safetensors").unlink()
    assert run_trial(plan, data, trial, tmp_path, 1, lambda: pytest.fail("evaluated again")) == json.loads(
        json.dumps(log)
    )


def test_learning_and_early_stop(text, tmp_path):
    data = text_data(text, tokens=16)
    network = NetworkConfig("gpt", 2, 2, 32, tokens=16)
    trial = Trial("both", arm("both"), 1e-2, 0)
    log = run_trial(plan_of(network, steps=150, batch=8), data, trial, tmp_path / "a", 1, lambda: None)
    assert log["test"]["loss"] < 1.5 < math.log(256) and log["curve"][-1]["loss"] < log["curve"][0]["loss"]
    assert not log["stopped_early"] and log["steps"] == 150
    stuck = plan_of(network, steps=40, evaluations=20, patience=2)
    log = run_trial(stuck, data, Trial("both", arm("both"), 1e-30, 0), tmp_path / "b", 1, lambda: None)
    assert log["stopped_early"] and log["steps"] < 40


def test_the_loss_is_the_mean_negative_log_probability(text, tmp_path):
    data = text_data(text, tokens=16)
    plan = plan_of(NetworkConfig("gpt", 1, 2, 8, tokens=16), test_batches=3)
    log = run_trial(plan, data, Trial("hidden", arm("hidden"), 1e-2, 0), tmp_path, 1, lambda: None)
    from safetensors.torch import load_file

    network = Transformer(plan.network, arm("hidden")).eval()
    state = load_file(tmp_path / "model.safetensors")
    network.load_state_dict(state | {"head.weight": state["embedding.weight"]})
    total, count = 0.0, 0
    for x, y in data.windows("test", 8, 16, 3):
        with torch.no_grad():
            probs = network(x).logits.double().softmax(-1)
        for b in range(x.shape[0]):
            for i in range(16):
                total, count = total - math.log(probs[b, i, y[b, i]]), count + 1
    assert log["test"]["loss"] == pytest.approx(total / count, rel=1e-5)


def test_token_similarity_pair_by_pair():
    network = Transformer(NetworkConfig("gpt", 2, 2, 8, tokens=6), arm("both")).eval()
    x = torch.randint(0, 256, (2, 6))
    got = token_similarity(network, [x])
    with torch.no_grad():
        hidden = network(x).hidden
    for layer, h in enumerate(hidden):
        values = [
            float(torch.dot(h[b, i], h[b, j]) / h[b, i].norm() / h[b, j].norm())
            for b in range(2)
            for i in range(6)
            for j in range(i)
        ]
        assert got["mean"][layer] == pytest.approx(np.mean(values), abs=1e-5)
        assert got["aligned"][layer] == pytest.approx(np.mean(np.array(values) > 0.99), abs=1e-9)
        assert got["quantiles"][layer][50] == pytest.approx(np.median(values), abs=1e-4)


# --- the comparison --------------------------------------------------------------------------------------------------


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
    expected = t_interval((by_seed["both"] - by_seed["standard"]).to_numpy())
    assert result.difference("both").value == pytest.approx(expected.value)
    frame = result.to_frame().set_index("arm")
    assert frame.loc["both", "change"] == pytest.approx(expected.value) and frame.loc["standard", "change"] == 0


def test_it_goes_on_and_takes_more_seeds_but_no_other_settings(done, text):
    out, result, _ = done
    log = out / "train" / "trials" / "both-rate0.003-seed0" / "log.json"
    stamp = log.stat().st_mtime_ns
    more = train("gpt", out, text=text, sizes=SIZES, **QUICK | {"seeds": 3})
    assert log.stat().st_mtime_ns == stamp and len(more.trials) == len(result.trials) + 4
    shared = more.trials.merge(result.trials, on=["arm", "rate", "seed"])
    assert (shared["score_x"] == shared["score_y"]).all()
    with pytest.raises(InputError, match="alpha_hidden = 0.5, not 0.7"):
        train("gpt", out, text=text, sizes=SIZES, alpha_hidden=0.7, **QUICK)


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


def test_results_come_back(done):
    out, result, _ = done
    again = TrainResult.load(out / "train")
    pd.testing.assert_frame_equal(again.to_frame(), TrainResult.load(out / "train").to_frame())
    assert again.arms == result.arms
    (out / "train" / "trials.csv").rename(out / "train" / "gone.csv")
    with pytest.raises(HeadscapeError, match="cannot be read"):
        TrainResult.load(out / "train")
    (out / "train" / "gone.csv").rename(out / "train" / "trials.csv")


def test_figures_are_complete(done):
    _, result, _ = done
    figures = {spec.id: spec for spec in result.figures()}
    assert list(figures) == ["arms", "scores", "curves", "rates", "similarity", "violins"]
    assert {finding.figure for finding in result.findings()} <= set(figures)
    for spec in figures.values():
        assert spec.read and spec.alt
    for line in figures["curves"].data["series"]:
        assert (np.asarray(line["low"]) <= line["y"]).all() and (line["y"] <= np.asarray(line["high"])).all()
    assert len(figures["violins"].data["groups"]) == 2 * 3


def test_images_are_learned(pictures, tmp_path):
    result = train(
        "vit", tmp_path / "vit", images=pictures, sizes=SIZES, arms=["both"], seeds=1, rates=[3e-3], steps=60, batch=16
    )
    assert result.images and result.scores("both").iloc[0] > 90
    assert any("Fewer than three seeds" in f.text for f in result.findings())
    assert "nan" not in str(result.figures()[0].data["rows"])  # one seed has no interval


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


# --- what is said of it ----------------------------------------------------------------------------------------------


def made_up(scores, kind="gpt", aligned=0.0):
    """A result with given scores {arm: [by seed]}."""
    trials = [
        {"arm": a, "rate": 1e-3, "seed": s, "chosen": True, "valid_loss": 1.0, "test_loss": 1.0, "score": v}
        | {"steps": 10, "stopped_early": False, "diverged": False}
        for a, values in scores.items()
        for s, v in enumerate(values)
    ]
    places = [{"arm": t["arm"], "seed": t["seed"], "layer": n} for t in trials for n in range(2)]
    similarity = pd.DataFrame([p | {"mean": 0.2, "aligned": aligned * (p["arm"] == "standard")} for p in places])
    return TrainResult(
        trials=pd.DataFrame(trials),
        curves=pd.DataFrame(
            [{"arm": a, "rate": 1e-3, "seed": 0, "step": 1, "train": 1.0, "valid": 1.0} for a in scores]
        ),
        similarity=similarity,
        quantiles=np.zeros((len(places), 101), np.float32),
        settings={"network": {"kind": kind}, "rates": [1e-3], "seeds": [0, 1, 2]},
        data={},
    )


BASE = [2.50, 2.53, 2.47]


@pytest.mark.parametrize(
    ("shift", "kind", "word", "holds"),
    [
        ([-0.10, -0.11, -0.09], "gpt", "better", True),
        ([0.10, 0.11, 0.09], "gpt", "worse", False),
        ([-0.10, 0.10, 0.0], "gpt", "not shown to differ", None),
        ([0.10, 0.11, 0.09], "vit", "better", True),
        ([-0.10, -0.11, -0.09], "vit", "worse", False),
    ],
)
def test_the_verdict_follows_the_interval(shift, kind, word, holds):
    scores = dict.fromkeys(("standard", "hidden", "skip"), BASE) | {
        "both": [b + s for b, s in zip(BASE, shift, strict=True)]
    }
    finding = made_up(scores, kind).findings()[0]
    assert f"is {word}" in finding.text and finding.holds is holds


def test_one_seed_has_no_interval():
    said = made_up({"standard": [2.5], "both": [2.4]}).findings()[0]
    assert said.holds is None and said.text.endswith("a change of -0.1 with one seed.")


def test_aligned_tokens_are_only_removed_where_there_were_some():
    scores = dict.fromkeys(("standard", "hidden", "skip", "both"), BASE)
    said = {share: made_up(scores, aligned=share).findings()[4] for share in (0.0, 0.3)}
    assert said[0.0].holds is None and "no group of aligned tokens" in said[0.0].text
    assert said[0.3].holds is True and "30.0%" in said[0.3].text


def test_intervals_are_students():
    x = [1.0, 2.5, 2.0, 4.0]
    low, high = stats.t.interval(0.95, 3, np.mean(x), stats.sem(x))
    got = t_interval(x)
    assert (got.value, got.low, got.high) == pytest.approx((np.mean(x), low, high))
    assert math.isnan(t_interval([1.0]).low)


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arms": ["standard", "x"]}, "no arm 'x'"),
        ({"arms": []}, "no arms given"),
        ({"arms": ["both", "both"]}, "named once"),
        ({"steps": 0}, "0 steps with"),
        ({"batch": 0}, "a batch of 0"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"rates": [0.0]}, "learning rates lie between"),
        ({"alpha": 1.0}, "alpha is at least 0 and below 1"),
        ({"steps": 2, "evaluations": 5}, "too little"),
        ({"images": "x"}, "trained on text"),
        ({"patience": -1}, "patience must be"),
        ({"sizes": {"heads": 3, "dim": 16}}, "do not divide"),
    ],
)
def test_wrong_requests(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        train("gpt", tmp_path / "out", **{"sizes": SIZES} | options)
    assert not (tmp_path / "out").exists()


def test_the_command(text, tmp_path):
    runner = CliRunner()
    options = "--layers 1 --heads 2 --dim 8 --tokens 16 --steps 4 --evaluations 2 --batch 2 --seeds 1 --rates 1e-2"
    command = ["train", "gpt", "--out", str(tmp_path / "run"), "--text", str(text), "--quiet", *options.split()]
    shown = runner.invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "Four kinds of attention" in shown.output and "scaled skip" in shown.output
    again = runner.invoke(app, [*command, "--json"])
    assert {row["arm"] for row in json.loads(again.stdout)["arms"]} == {"standard", "hidden", "skip", "both"}
    listed = runner.invoke(app, ["train", "--list"])
    assert "transformer-xl" in listed.output and "16 x 8 x 410" in listed.output
    for wrong, said in [
        ([], "name a run directory"),
        (["--out", str(tmp_path / "x"), "--rates", "a,b"], "numbers with commas"),
        (["--out", str(tmp_path / "x"), "--tokenizer", str(tmp_path / "none")], "no tokenizer at"),
        (["--out", str(tmp_path / "x"), "--init", "one"], "init is one of"),
    ]:
        error = runner.invoke(app, ["train", "gpt", *wrong]).exception
        assert isinstance(error, InputError) and said in str(error)
    assert cli_train.train is not None
