"""What the collapse study says: by its rules, and never more than its controls allow."""

from dataclasses import replace

import numpy as np
import pytest

import headscape as hs
from headscape.intervals import geometric_interval
from headscape.studies.collapse import collapse


def by_claim(result):
    return {f.claim: f for f in result.findings() if f.claim}


def test_the_findings_follow_from_the_tables(vit):
    said = by_claim(vit)
    last = np.log10(np.maximum(vit.residual[:, :, -1], vit.floor[:, None]))
    rank = said["collapse.rank"]
    assert rank.text.startswith("Tokens do not collapse along depth") and rank.holds is False
    assert f"to {10 ** last[0].mean():.3g} [" in rank.text and "(n = 8)" in rank.text
    work = said["collapse.work"]
    by_skip = np.min(last[0] - last[vit.at("no skip")])  # a bound: without a skip only round-off is left
    assert work.text.startswith("The skip keeps tokens apart, not the hidden state") and work.holds is False
    assert f"The skip moves it by at least {by_skip:.3g} decades" in work.text
    assert said["collapse.work_random"].text.startswith("With random weights the skip keeps tokens apart")
    peaks = np.mean([[s > 0.98 for s in row] for row in vit.alike_by_input("standard", "mode")])
    assert f"have their mode above 0.98 is {100 * peaks:.3g} [" in said["collapse.population"].text
    bounds = said["collapse.bounds"]
    assert "in 48 of 96 layers" in bounds.text and "0 standard, 48 random" in bounds.text
    known = {figure.id for figure in vit.figures()}
    assert len(known) == len(vit.figures()) and all(f.figure in {*known, None} for f in vit.findings())


def test_a_bound_that_no_layer_of_the_model_can_break_earns_no_tick(vit):
    """All layers that meet its condition are those of the random network."""
    open_ = by_claim(vit)["collapse.bounds"]
    assert open_.verdict == "cannot tell" and "no layer of the model has D of at most 1.256" in open_.judgement.why
    assert open_.text.startswith("We cannot tell whether the repaired bound holds: D is at most 1.256 in 48 of 96")
    met, broken = vit.bounds.copy(), vit.bounds.copy()
    met.loc[met.index[0], "spread"] = 1.0
    assert by_claim(replace(vit, bounds=met))["collapse.bounds"].holds
    broken.loc[broken["arm"] == "random", "keeps_repaired"] = False
    assert by_claim(replace(vit, bounds=broken))["collapse.bounds"].holds is False


def test_the_other_verdicts_are_reached_by_the_same_rules(vit):
    turned = vit.residual.copy()
    turned[0, :, 1:] = 1e-3 * (1 + 0.1 * np.arange(8))[:, None]
    turned[vit.at("no skip")] = turned[0]
    said = by_claim(replace(vit, residual=turned))
    assert said["collapse.rank"].holds and said["collapse.rank"].text.startswith("Tokens collapse along depth")
    assert said["collapse.work"].holds and "The hidden state keeps tokens apart" in said["collapse.work"].text
    gone = vit.residual.copy()
    gone[0, :, 1:] = (
        1e-17 * (1 + 0.1 * np.arange(8))[:, None]
    )  # beyond what float64 can tell: still collapsed, but not by how much
    everything = replace(vit, residual=gone)
    assert by_claim(everything)["collapse.rank"].holds
    assert not everything.interval("standard").known and everything.interval("standard").value == vit.floor[0]
    start = vit.residual.copy()
    start[0] = 1e-3 * (1 + 0.1 * np.arange(8))[:, None]
    assert not by_claim(replace(vit, residual=start))["collapse.rank"].holds  # they were alike from the start


def test_inputs_of_which_some_are_round_off_have_a_bound_and_no_mean(vit):
    """Cut to the floor and averaged, they would pass for an estimate with an interval."""
    mixed = vit.residual.copy()
    mixed[0, :, -1], mixed[0, :3, -1] = 1e-3 * (1 + 0.1 * np.arange(8)), 1e-17
    result = replace(vit, residual=mixed)
    found = result.interval("standard")
    assert not found.known and found.value == mixed[0, -1, -1] and found.n == 8
    assert str(found).endswith("(n = 8, at most that; 3 are round-off)") and result.is_round_off("standard")
    said = by_claim(result)
    assert said["collapse.rank"].holds  # the largest is below it
    assert said["collapse.work"].verdict == "cannot tell"
    assert str(vit.interval("no skip")).endswith("(n = 8, round-off)")


def test_a_relative_residual_is_at_most_two(vit):
    wide = vit.residual.copy()
    wide[0, :, -1] = [0.01, *[1.9] * 7]
    assert replace(vit, residual=wide).interval("standard").high == 2


def test_alike_tokens_need_their_control(vit):
    alike = np.zeros_like(vit.similarity)
    alike[..., -1] = 10
    everywhere = by_claim(replace(vit, similarity=alike))["collapse.population"]
    assert everywhere.verdict == "cannot tell"  # random weights have them, too
    alike[vit.at("random"), ..., 200], alike[vit.at("random"), ..., -1] = 10, 0
    assert by_claim(replace(vit, similarity=alike))["collapse.population"].verdict == "holds"
    kept = [i for i, name in enumerate(vit.variants) if not name.startswith("random")]
    fewer = {name: getattr(vit, name)[kept] for name in ("residual", "rank", "entropy", "entropies", "floor")}
    names = tuple(vit.variants[i] for i in kept)
    alone = by_claim(replace(vit, variants=names, similarity=alike[kept], **fewer))["collapse.population"]
    assert alone.verdict == "cannot tell" and "control missing" in alone.judgement.why


def test_the_layers_of_an_input_go_together(vit):
    """Eight inputs without such a layer: a ninth may be alike in all of them, as that of one repeated token is."""
    apart = np.zeros_like(vit.similarity)
    apart[..., 100] = 10
    found = by_claim(replace(vit, similarity=apart))["collapse.population"]
    assert found.verdict == "does not hold" and 0.3 < found.judgement.statistic.high < 0.4


def test_an_inserted_hidden_state_decides_nothing_about_trained_ones(vit):
    """The claims are about networks trained with a hidden state."""
    for claim in ("collapse.entropy", "collapse.removed"):
        finding = by_claim(vit)[claim]
        assert finding.verdict == "cannot tell" and "trained" in finding.judgement.why
    change = (vit.entropy[vit.at("hidden")] - vit.entropy[0]).mean()
    assert change > 0.05 and f"changes it by {change:.3g} [" in by_claim(vit)["collapse.entropy"].text


def test_random_weights_earn_no_tick_about_what_was_learnt(vit_run, random_vit):
    other = hs.load_model("vit-fmnist", device="cpu", random_init=2)
    said = by_claim(collapse(vit_run, model=random_vit, control=other))
    learnt = ("collapse.rank", "collapse.population", "collapse.removed", "collapse.work", "collapse.entropy")
    assert not [claim for claim in learnt if said[claim].holds]


@pytest.mark.parametrize("batches", [1, 2])
def test_few_inputs_cannot_tell(vit_run, load, batches):
    said = by_claim(collapse(vit_run, model=load("vit-fmnist"), batches=batches, cells=False))
    assert said["collapse.rank"].verdict == "cannot tell" and said["collapse.population"].verdict == "cannot tell"


def test_a_run_with_fewer_inputs_than_asked_for_decides_nothing(load, tmp_path):
    """Three inputs were all there is, and nobody asked to decide on them."""
    run = tmp_path / "run"
    hs.capture(load("vit-fmnist"), hs.sample_images(), batches=3, keep=("probs",), dtype="float32", out=run)
    said = by_claim(collapse(run, model=load("vit-fmnist"), cells=False))
    assert said["collapse.rank"].verdict == "cannot tell"
    assert said["collapse.rank"].judgement.why == "too few inputs: 3, at least 8 are needed unless fewer are requested"
    asked = by_claim(collapse(run, model=load("vit-fmnist"), cells=False, batches=3))
    assert asked["collapse.rank"].verdict == "does not hold"


def test_the_same_input_eight_times_is_one(vit):
    again = vit.residual.copy()
    again[:, 1:] = again[:, :1]
    said = by_claim(replace(vit, residual=again))
    for claim in ("collapse.rank", "collapse.population", "collapse.work"):
        assert said[claim].verdict == "cannot tell" and "only 1 of 8 inputs" in said[claim].judgement.why


def test_no_interval_below_the_precision_of_the_arithmetic(vit):
    layers = vit.by_layer.set_index(["arm", "layer"])
    last = layers.loc[("random, no skip", 6)]
    assert last["residual"] == vit.floor[0] and np.isnan(last["residual_low"]) and last["n"] == 8
    assert (layers["residual"] >= vit.floor[0]).all() and not (layers["residual_low"] < vit.floor[0]).any()
    for name in ("residual-cells", "residual-cells-random"):
        figure = next(f for f in vit.figures() if f.id == name)
        assert min(np.min(line["low"]) for line in figure.data["series"] if "low" in line) >= vit.floor[0]
    assert vit.by_variant.set_index("arm").loc["random, no skip", "residual_low":"residual_high"].isna().all()
    found = by_claim(vit)["collapse.work_random"]
    assert "moves it by at least" in found.text and "an unknown amount (both are round-off)" in found.text
    assert found.verdict == "does not hold" and "at most that" in found.judgement.why
    assert found.judgement.statistic.n == 8 and found.judgement.statistic.low == found.judgement.statistic.high


@pytest.mark.parametrize("lost", [("standard", "no skip"), ("standard",), ("hidden", "no skip")])
def test_how_far_a_residual_was_moved_from_round_off_is_not_known(vit, lost):
    """Both the skip and the hidden state may have moved it by any number of decades."""
    turned = vit.residual.copy()
    for name in ("standard", "hidden", "no skip"):
        turned[vit.at(name), :, -1] = (1e-30 if name in lost else 1e-3) * (1 + 0.1 * np.arange(8))
    found = by_claim(replace(vit, residual=turned))["collapse.work"]
    assert found.verdict == "cannot tell" and "round-off" in found.judgement.why


def test_two_inputs_that_differ_by_decades_leave_an_interval_open():
    found = geometric_interval(np.array([1e-300, 1.0]))
    assert found.value == pytest.approx(1e-150) and not np.isfinite(found.high)
