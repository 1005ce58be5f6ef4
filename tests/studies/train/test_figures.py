"""The pictures of the comparison."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from headscape.collapse.residual import relative_residual
from headscape.hopfield.networks import base_arm
from headscape.studies.train.figures import paper_tables, shown_table

ARMS = ("standard", "hidden", "skip", "both")


@pytest.fixture
def result(made_up):
    return made_up({arm: [2.5, 2.53, 2.47] for arm in (*ARMS, "learned", "both a'=0.3", "longer")}, layers=6)


def test_figures_are_complete(result):
    from headscape.report.drawing import draw
    from headscape.report.gather import gather

    figures = {spec.id: spec for spec in result.figures()}
    by_layer = ["similarity", "residual", "rank", "course", "entropy"]
    assert list(figures) == ["arms", "scores", "curves", *by_layer, "learned", "violins", "heads"]
    for line in figures["learned"].data["series"]:  # heads of one network are not independent, seeds are
        assert set(line["n"]) == {3} and figures["learned"].read.endswith(" n = 3.")
    assert {finding.figure for finding in result.findings()} <= set(figures)
    scene = gather([result], [])
    for spec in figures.values():
        assert spec.read and spec.alt and len(spec.title) <= 60
        assert spec.kind == "table" or draw(spec, scene.sections[0], scene.heads)
    for line in figures["curves"].data["series"]:
        assert (np.asarray(line["low"]) <= line["y"]).all() and (line["y"] <= np.asarray(line["high"])).all()


def test_intervals_end_where_a_measure_does(result):
    """Three seeds that differ much: Student's interval of a cosine reaches above 1, of a rank below 1."""
    seed = result.layers["seed"]
    layers = result.layers.assign(similarity=0.3 + 0.3 * seed, residual=0.1 + 0.9 * seed, rank=1.0 + 2.0 * seed)
    figures = {
        spec.id: spec.data["series"] for spec in replace(result, layers=layers).figures() if spec.kind == "lines"
    }
    for name, low, high in (("similarity", -1, 1), ("residual", 0, 2), ("rank", 1, np.inf), ("course", 1, np.inf)):
        ends = np.concatenate([line[end] for line in figures[name] for end in ("low", "high")])
        assert low <= ends.min() and ends.max() <= high
    assert figures["similarity"][0]["high"].max() == 1 and figures["rank"][0]["low"].min() == 1
    assert figures["residual"][0]["high"].max() == 2
    assert relative_residual([[1.0], [1.0], [1.0], [-1.0]]) > 1  # so its intervals do not end at 1


@pytest.mark.parametrize(("arms", "compared"), [(["standard"], False), (["hidden", "skip"], False), (ARMS[:2], True)])
def test_changes_need_standard_attention_and_another(made_up, arms, compared):
    result = made_up({arm: [2.5, 2.53, 2.47] for arm in arms})
    assert ("scores" in [spec.id for spec in result.figures()]) == compared


def test_no_layer_of_a_small_network_is_left_out_of_the_violins(result):
    groups = next(figure for figure in result.figures() if figure.id == "violins").data["groups"]
    assert [group["name"] for group in groups[::2]] == [f"layer {n}" for n in range(7)]
    assert [group["side"] for group in groups[:2]] == ["left", "right"]


def test_the_papers_figures_as_tables_have_every_layer_and_arm(result):
    heads = result.heads.assign(entropy=lambda h: 0.1 * h["layer"] + 0.01 * h["seed"])
    counts = result.counts * 0
    counts[:, 310] = 3  # cosines of 0.5525
    counts[(result.last["arm"] == "both").to_numpy(), 399] = 1  # and of 1
    found = paper_tables(replace(result, heads=heads, counts=counts))
    similarity, entropy = found["similarity"], found["entropy"]
    assert list(similarity["after layer"]) == ["0 (before the first)", *"123456"]
    assert list(entropy["layer"]) == list("123456")
    assert list(similarity)[1:] == list(entropy)[1:] == [base_arm(arm).title for arm in result.arms]
    assert set(similarity["standard"]) == {"0.55 / 0.55 / 0.55 / 0.00%"}
    assert set(similarity["both (Hopfield)"]) == {"0.55 / 0.55 / 0.66 / 25.00%"}
    assert list(entropy["standard"])[:2] == ["0.00 / 0.01 / 0.02", "0.10 / 0.11 / 0.12"]


def test_a_paired_change_has_its_own_number_of_seeds(made_up):
    result = made_up({"standard": [2.5, 2.53, 2.47], "hidden": [2.4, 2.42, 2.41]})
    assert result.to_frame().set_index("arm").loc["hidden", "change_n"] == 3
    shown = shown_table(result).set_index("arm")["change"]
    assert shown["hidden state"].endswith("] (n = 3)") and shown["standard"] == ""


def test_paired_changes_of_one_sign_have_students_interval(made_up):
    found = made_up({"standard": [2.5, 2.5], "hidden": [2.49, 2.3]}).difference("hidden")
    reach = 12.706 * 0.19 / 2  # of two: half their distance times Student's quantile
    assert (found.low, found.high) == pytest.approx((-0.105 - reach, -0.105 + reach), rel=1e-3)


def chosen_by(result, finalists):
    """Three rates, the two best of them with all seeds: by the first seed 1e-3 wins, by the mean of all 3e-3."""
    losses = {(1e-3, 0): 1.0, (1e-3, 1): 2.0, (3e-3, 0): 1.1, (3e-3, 1): 1.1, (9e-3, 0): 5.0}
    if finalists == 1:
        del losses[3e-3, 1]
    best = 1e-3 if finalists == 1 else 3e-3
    trials = [
        {
            "arm": arm,
            "rate": rate,
            "seed": seed,
            "kept": True,
            "chosen": rate == best,
            "valid_loss": loss,
        }
        | dict.fromkeys(("test_loss", "score", "uniform", "removed"), 1.0)
        | {"steps": 10, "stopped_early": False, "diverged": False}
        for arm in ARMS
        for (rate, seed), loss in losses.items()
    ]
    settings = dict(result.settings) | {"rates": [1e-3, 3e-3, 9e-3], "seeds": [0, 1], "finalists": finalists}
    curves = pd.DataFrame(
        [{"arm": arm, "rate": best, "seed": 0, "step": 1, "train": 1.0, "valid": 1.0} for arm in ARMS]
    )
    return replace(result, trials=pd.DataFrame(trials), settings=settings, curves=curves)


def test_one_finalist_is_chosen_by_the_first_seed(result):
    figure = next(f for f in chosen_by(result, 1).figures() if f.id == "rates")
    assert [line["y"].tolist() for line in figure.data["series"]] == [[1.0, 1.1, 5.0]] * 4
    assert "with the first seed; each arm takes its lowest" in figure.read


def test_several_finalists_are_chosen_by_the_mean_of_all_seeds(result):
    figure = next(f for f in chosen_by(result, 2).figures() if f.id == "rates")
    whole, first = figure.data["series"][:2]
    assert whole["x"].tolist() == [1e-3, 3e-3] and whole["y"].tolist() == [1.5, 1.1]  # the rate taken is the lowest
    assert first["y"].tolist() == [1.0, 1.1, 5.0] and first["dash"] == "dot"
    assert "the best 2 rates of each arm were run with all 2 seeds; each arm takes the lowest mean" in figure.read
    assert "One seed chooses" not in figure.caveat
