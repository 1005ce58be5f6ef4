"""Verdicts of the softmax study, on results whose truth is planted."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import t

import headscape as hs
from headscape.studies.softmax.figures import _change_all
from headscape.studies.softmax.head import COLUMNS
from headscape.studies.softmax.result import ALL_VARIANTS, HEAD_VARIANTS, SoftmaxResult
from headscape.studies.softmax.study import _table, softmax
from headscape.tensor import HeadId
from tiny import Letters
from zoo import ZOO

N_HEAD = 10


def result(n=8, batches=8, unit="loss", columns=None, changes=None, at_once=None, tolerance=0.01):
    """A result with the same values in every head unless given: columns (n_head,) or (n_input, n_head) by name.

    Heads with random weights are nearly uniform.
    """
    rng = np.random.default_rng(0)
    wobble = 1 + 1e-3 * rng.normal(size=(n, 1))
    values = np.ones((n, len(COLUMNS), N_HEAD))
    planted = {"mean_kl": 1.0, "paraproduct_error": 0.5, "alpha": 0.3, "alpha_shuffled": -0.45, "alpha_coarse": 0.3}
    planted |= {"alpha_residual": 0.45, "average_rms": 1.0, "second_order_error": 0.3} | (columns or {})
    for name, value in planted.items():
        own = 1 + 1e-3 * rng.normal(size=(n, 1))  # or a ratio of two would be the same for all inputs
        values[:, COLUMNS.index(name)] = np.broadcast_to(value, (N_HEAD,)) * own
    each = np.zeros((n, len(HEAD_VARIANTS), N_HEAD))
    for name, value in ({"corollary": 0.5, "paraproduct": 0.1, "mean": 1.0} | (changes or {})).items():
        each[:, HEAD_VARIANTS.index(name)] = np.broadcast_to(value, (N_HEAD,)) * wobble
    every = np.zeros((n, len(ALL_VARIANTS)))
    for name, value in ({"corollary": 2.0, "mean": 4.0} | (at_once or {})).items():
        every[:, ALL_VARIANTS.index(name)] = value * wobble[:, 0]
    heads = [HeadId("decoder", 0, h) for h in range(N_HEAD)]
    frame = _table(heads, values, each if unit else None, tolerance).assign(note="")
    random = np.ones((len(COLUMNS), N_HEAD))
    random[COLUMNS.index("mean_kl")] = np.linspace(0.01, 0.03, N_HEAD)
    return SoftmaxResult(
        **{
            "block": "decoder",
            "unit": unit,
            "tolerance": tolerance,
            "heads": frame,
            "values": values,
            "control": random,
        },
        **{"changes_head": each, "changes_layer": each[:, :, :1], "changes_all": every, "base": np.full(n, 3.0)},
        **{"scales": np.ones((2, 2, 2)), "maps": {}, "tokens": {}, "settings": {"batches": batches}},
    )


def verdict(found, claim):
    return next(f for f in found.findings() if f.claim == f"softmax.{claim}").verdict


def test_intervals_of_the_table_are_students_over_inputs():
    found = result(5)
    x = found.changes_head[:, HEAD_VARIANTS.index("mean"), 3]
    reach = t.ppf(0.975, 4) * x.std(ddof=1) / np.sqrt(5)
    row = found.heads.iloc[3]
    assert (row["change_mean_low"], row["change_mean_high"]) == pytest.approx((x.mean() - reach, x.mean() + reach))
    assert row["invariant"] == "no"


@pytest.mark.parametrize(
    ("corollary", "uniform", "expected"),
    [
        (0.5, 1.0, "does not hold"),
        (0.001, 1.0, "holds"),
        ([0.001] * 8 + [0.5] * 2, 1.0, "does not hold"),  # 80 % are not nearly all
        (0.001, 0.001, "cannot tell"),  # uniform attention passes too: the control does not fail
        ([0.5] * 5 + [0.001] * 5, [0.001] * 5 + [1.0] * 5, "holds"),  # only heads that need their map count
        (0.01, 1.0, "cannot tell"),  # at the tolerance
        (0.001, [1.0] + [0.001] * 9, "cannot tell"),  # one head that needs its map says nothing of heads
        (0.001, [1.0] * 5 + [0.01] * 5, "cannot tell"),  # half may need it as well, and nobody knows
    ],
)
def test_invariance_is_judged_on_heads_that_uniform_attention_fails(corollary, uniform, expected):
    assert verdict(result(changes={"corollary": corollary, "mean": uniform}), "invariance") == expected


@pytest.mark.parametrize(("n", "said"), [(1, "only 1 head is shown"), (2, "only 2 heads are shown")])
def test_too_few_heads_that_need_their_map_are_counted_in_words(n, said):
    found = result(changes={"corollary": 0.001, "mean": [1.0] * n + [0.001] * (N_HEAD - n)})
    assert said in next(f for f in found.findings() if f.claim == "softmax.invariance").judgement.why


@pytest.mark.parametrize(
    ("corollary", "shown"),
    [
        (0.5, "0 (n = 8) lies below 0.9 (nearly all of the 10 heads that need their map, each decided by its interval"),
        ([0.5] * 9 + [0.01], "0 [0, 0.1] (n = 8) lies below 0.9 (nearly all of the 10 heads that need their map"),
    ],
)
def test_a_share_of_decided_heads_says_of_how_many_heads_and_inputs(corollary, shown):
    found = next(f for f in result(changes={"corollary": corollary}).findings() if f.claim == "softmax.invariance")
    assert found.judgement.why.startswith(shown)
    assert ("undecided" in found.judgement.why) == ("[" in shown)


@pytest.mark.parametrize(
    ("n", "batches", "decided"), [(8, 8, True), (2, 8, False), (6, 6, True), (2, 2, False), (7, 20, False)]
)
def test_fewer_than_eight_inputs_decide_only_when_asked_for(n, batches, decided):
    found = result(n, batches)
    claims = ("invariance", "pointwise", "condition", "regularity", "residual", "all_heads")
    assert [verdict(found, claim) != "cannot tell" for claim in claims] == [decided] * 6
    if not decided:
        assert all("too few inputs" in f.judgement.why for f in found.findings() if f.judgement)


def test_three_inputs_decide_when_asked_for_and_not_by_agreeing():
    found = result(3, 3)
    assert verdict(found, "regularity") == "holds" and verdict(found, "all_heads") == "does not hold"
    assert verdict(found, "pointwise") == "cannot tell"  # no head passes on any of the three, which may be chance


def test_a_share_is_counted_in_heads_that_are_not_uniform():
    """Where all inputs agree: of three such heads one is a third, of ten a tenth."""
    ends = []
    for n_varied in (10, 3):
        flatness = np.where(np.arange(N_HEAD) < n_varied, 1.0, 0.0)
        found = next(f for f in result(columns={"mean_kl": flatness}).findings() if f.claim == "softmax.pointwise")
        ends.append(found.judgement.statistic.high)
    assert ends[1] / ends[0] == pytest.approx(10 / 3)


def test_one_input_has_no_verdict_and_no_interval():
    found = result(1, 1)
    assert {f.verdict for f in found.findings() if f.claim} == {"cannot tell"}
    assert set(found.heads["invariant"]) == {"cannot tell"}


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.3, "holds"), (-0.1, "does not hold"), (np.linspace(-1, 1, 10), "cannot tell")]
)
def test_regularity_needs_exponents_above_zero(alpha, expected):
    assert verdict(result(columns={"alpha": alpha}), "regularity") == expected


def test_exponents_above_zero_and_significantly_above_are_told_apart():
    """Ten exponents above 0 in the mean; of four of them the inputs disagree too much to say so."""
    found = result()
    k = COLUMNS.index("alpha")
    values = found.values.copy()
    values[:, k, :4] += np.linspace(-3, 3, 8)[:, None]
    frame = _table([HeadId("decoder", 0, h) for h in range(N_HEAD)], values, found.changes_head, 0.01)
    found = SoftmaxResult(**{**vars(found), "values": values, "heads": frame})
    text = next(f.text for f in found.findings() if f.claim == "softmax.regularity")
    assert "100% of the exponents are above 0, and 60% significantly so" in text


def test_regularity_must_beat_shuffled_heads():
    assert verdict(result(columns={"alpha": 0.3, "alpha_shuffled": 0.4}), "regularity") == "does not hold"


@pytest.mark.parametrize(("residual", "expected"), [(0.6, "holds"), (0.45, "does not hold")])
def test_the_residual_is_twice_as_regular_or_not(residual, expected):
    assert verdict(result(columns={"alpha_residual": residual}), "residual") == expected
    rough = result(columns={"alpha": -0.2})
    assert verdict(rough, "residual") == "cannot tell"
    assert "no head has an exponent above 0" in next(f.text for f in rough.findings() if f.claim == "softmax.residual")


@pytest.mark.parametrize("claim", ["pointwise", "condition"])
def test_heads_that_are_uniform_prove_nothing(claim):
    close = {"paraproduct_error": 0.01, "average_rms": 0.01}
    assert verdict(result(columns=close), claim) == "holds"
    assert verdict(result(columns=close | {"mean_kl": 1e-4}), claim) == "cannot tell"
    half = {"mean_kl": [1e-4] * 5 + [1.0] * 5, "paraproduct_error": [0.01] * 5 + [0.5] * 5}
    assert verdict(result(columns=half | {"average_rms": [0.01] * 5 + [0.5] * 5}), claim) == "does not hold"


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [
        ({}, "does not hold"),
        ({"corollary": -2.0}, "does not hold"),  # a loss that falls is a change too
        ({"corollary": 0.001}, "holds"),
        ({"corollary": 0.001, "mean": 0.002}, "cannot tell"),  # so little changes with uniform attention
        ({"corollary": 0.001, "own": 0.005}, "cannot tell"),  # the captured scores are not those of the model
    ],
)
def test_all_heads_at_once(at_once, expected):
    assert verdict(result(at_once=at_once), "all_heads") == expected


@pytest.mark.parametrize(("change", "expected"), [(2.0, "does not hold"), (0.001, "cannot tell")])
def test_a_sample_of_heads_shows_no_network_without_softmax(change, expected):
    whole = result(at_once={"corollary": change})
    found = next(
        f
        for f in dataclasses.replace(whole, settings=whole.settings | {"of": 30}).findings()
        if f.claim == "softmax.all_heads"
    )
    assert found.verdict == expected and f"with {N_HEAD} of 30 heads replaced at once" in found.text


LEARNT = {
    "invariance": {"changes": {"corollary": 0.001}},
    "pointwise": {"columns": {"paraproduct_error": 0.01}},
    "condition": {"columns": {"average_rms": 0.01}},
    "residual": {"columns": {"alpha_residual": 0.6}},
    "all_heads": {"at_once": {"corollary": 0.001}},
}
"""What earns a tick about what was learnt."""


@pytest.mark.parametrize("claim", LEARNT)
def test_what_was_learnt_needs_random_weights_that_are_nearer_to_uniform(claim):
    found = result(**LEARNT[claim])
    assert verdict(found, claim) == "holds"
    alone = dataclasses.replace(found, control=None)
    assert verdict(alone, claim) == "cannot tell"
    assert any("control missing: random weights" in f.judgement.why for f in alone.findings() if f.judgement)
    same = found.control.copy()
    same[COLUMNS.index("mean_kl")] = np.linspace(
        0.8, 1.3, N_HEAD
    )  # heads with random weights, around those of the model
    assert verdict(dataclasses.replace(found, control=same), claim) == "cannot tell"


@pytest.mark.parametrize("claim", [*LEARNT, "regularity", "second_order"])
def test_inputs_that_repeat_decide_nothing(claim):
    found = result(**LEARNT.get(claim, {}))
    again = found.values.copy()
    again[5] = again[2]
    twice = next(
        f for f in dataclasses.replace(found, values=again).findings() if f.claim == f"softmax.{claim}"
    ).judgement
    assert verdict(found, claim) == "holds" and twice.verdict == "cannot tell"
    assert twice.why == "only 7 of 8 inputs are different, and n counts independent ones; capture other inputs"


def test_tables_have_the_verdict_by_head():
    found = result(changes={"corollary": [0.001] * 3 + [0.5] * 7})
    row = found.variants.set_index("instead of softmax").loc["corollary"]
    assert (row["passes"], row["fails"]) == pytest.approx((0.3, 0.7)) and row["all at once_n"] == 8
    assert isinstance(found.summary()[0][1], pd.DataFrame)


@pytest.mark.parametrize(("sign", "expected"), [(-1, "holds"), (1, "does not hold"), (0, "cannot tell")])
def test_the_premise_is_that_the_loss_falls_where_mixed_differences_grow(sign, expected):
    found = result()
    noise = 0.2 * np.random.default_rng(0).normal(size=8)
    values = found.values.copy()
    values[:, COLUMNS.index("mixed_max")] = np.arange(8)[:, None]
    found = SoftmaxResult(**{**vars(found), "values": values, "base": 9 + sign * np.arange(8) + sign * noise})
    assert verdict(found, "premise") == expected
    assert not [f for f in result(unit="state").findings() if f.claim == "softmax.premise"]


def test_a_correlation_of_few_inputs_is_not_said_to_lie_beyond_one():
    values = result().values.copy()
    values[:, COLUMNS.index("mixed_max")] = np.array([4.0, 5.0, 4.5, 5.5, 4.2, 5.1, 4.7, 9.0])[:, None]
    loss = np.array([1.0, 0.4, 2.0, 0.3, 1.6, 0.2, 1.1, 3.5])  # the last input decides the sign
    found = SoftmaxResult(**{**vars(result()), "values": values, "base": loss})
    (premise,) = [f for f in found.findings() if f.claim == "softmax.premise"]
    span = premise.judgement.statistic
    assert (span.low, span.high) == (-1, 1) and premise.verdict == "cannot tell"


@pytest.mark.parametrize(("name", "n"), [("gpt2", 9), ("bert", 8)])  # the premise is about a loss
def test_random_weights_earn_no_tick(name, n):
    torch.manual_seed(0)
    model = hs.wrap_module(ZOO[name]().eval(), tokenizer=Letters())
    cap = hs.capture(
        model, ["the quick brown fox jumps " * 20], tokens=16, batches=8, keep=("scores",), dtype="float32"
    )
    found = softmax(cap, model=model, threads=1).findings()
    assert len(found) == n and not any(finding.holds for finding in found)


@pytest.mark.parametrize(
    ("claim", "columns", "expected"),
    [
        ("second_order", {}, "holds"),
        ("second_order", {"second_order_error": 0.7}, "does not hold"),
        ("printed", {"printed_error": 0.4, "mean_error": 0.9}, "holds"),
        ("printed", {"printed_error": 0.95, "mean_error": 0.9}, "does not hold"),
    ],
)
def test_the_orders_of_eq_12_are_judged_within_heads(claim, columns, expected):
    assert verdict(result(columns=columns), claim) == expected


def test_a_result_of_an_earlier_version_has_fewer_rows():
    now = result()
    later = [name for name in now.heads if name.startswith(("second_order", "printed"))]
    before = dataclasses.replace(
        now,
        heads=now.heads.drop(columns=later),
        values=now.values[:, : -len(later)],
        changes_all=now.changes_all[:, :-2],
    )
    assert len(before.variants) == len(now.variants) - 2
    assert {f.claim for f in now.findings()} - {f.claim for f in before.findings()} == {
        "softmax.printed",
        "softmax.second_order",
    }
    assert len(_change_all(before).data["names"]) == len(ALL_VARIANTS) - 2
