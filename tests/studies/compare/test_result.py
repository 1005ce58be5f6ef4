"""Tables and findings of a comparison: intervals over groups of inputs, and verdicts that follow from them."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from headscape.intervals import mean_interval
from headscape.studies.compare.result import (
    ALL,
    BATCHES,
    HEADS,
    INPUT,
    MEASURES,
    SHUFFLED,
    CompareResult,
    mean_distance,
)


def result_of(positions, networks, spread=0.1, seed=0, n_groups=6):
    """A comparison of networks that lie at these positions of a line; distances are those of noisy positions."""
    rng = np.random.default_rng(seed)
    x = np.repeat(positions, n_groups) + spread * rng.normal(size=n_groups * len(positions))
    D = np.abs(x[:, None] - x)
    D[np.tri(len(x), dtype=bool)] = np.nan
    run_of = np.repeat(np.arange(len(positions)), n_groups)
    heads = np.where(run_of[:, None] == run_of, 20 * D, np.nan)
    facts = {"block": "decoder", "kind": "probs", "mask": "causal", "inputs": "text", "n_query": 16}
    facts |= {"n_layers": 2, "n_heads": 4, "n_batches": n_groups, "part": False}
    return CompareResult(
        runs=pd.DataFrame([{"run": f"run{i}", "network": name} | facts for i, name in enumerate(networks)]),
        measures=np.array([D for _ in MEASURES]),
        bounds=0.9 * D,
        shuffled=np.array([2 * D for _ in SHUFFLED]),
        other_heads=np.array([heads for _ in MEASURES]),
        curves=np.ones((len(networks), 3, 20)),
        profiles=np.ones((len(networks), 3, 21)),
        entropies=[np.ones((2, 4)) for _ in networks],
        settings={"groups": [[k] for k in range(n_groups)]},
    )


def test_a_mean_over_pairs_has_the_interval_of_the_jackknife_over_groups():
    x = np.array([0.3, 0.9, 0.4, 1.1, 0.2])
    D = np.add.outer(x, x)  # additive: the mean over pairs is twice the mean over groups
    where = np.triu(np.ones((5, 5), dtype=bool), 1)
    found, truth = mean_distance(D, where), mean_interval(2 * (x - x.mean()))  # of both signs: Student's
    assert found.value == pytest.approx(2 * x.mean()) and found.n == 5
    assert (found.low - found.value, found.high - found.value) == pytest.approx((truth.low, truth.high))
    D[0, 1] = np.nan
    assert not mean_distance(D, where).known and np.isnan(mean_distance(D, where).value)


def test_intervals_of_distances_cover():
    """Mean distance of groups of two networks: about 95 % of the intervals hold the true mean."""
    rng, hits, n, dim = np.random.default_rng(1), 0, 5, 20
    offset = np.full(dim, 0.7)
    where = np.zeros((2 * n, 2 * n), dtype=bool)
    where[:n, n:] = True
    draws = rng.normal(size=(200_000, dim)) * np.sqrt(2) + offset
    truth = np.linalg.norm(draws, axis=1).mean()
    for _ in range(1000):
        x = rng.normal(size=(2 * n, dim))
        x[n:] += offset
        found = mean_distance(np.linalg.norm(x[:, None] - x, axis=-1), where)
        hits += found.low <= truth <= found.high
    assert 0.93 < hits / 1000 < 0.99


def test_copies_of_the_same_inputs_do_not_make_an_interval_narrower():
    """A network at its own length and once more with fewer tokens: as many inputs as before, with as wide an interval."""
    once = result_of([0.0, 5.0], ["one", "two"])
    order = np.r_[0:6, 0:6, 6:12]  # the first run, its copy, the second
    full = np.fmax(once.measures, once.measures.swapaxes(1, 2))
    measures = full[:, order][:, :, order]
    measures[:, np.tri(18, dtype=bool)] = np.nan
    rows = once.runs.iloc[[0, 0, 1]].assign(run=["run0", "run0-short", "run1"], clusters=4.0)
    copied = dataclasses.replace(once, runs=rows, measures=measures)
    a, b = (r._mean(r.measures[0], r._where("one", "two", own=False)) for r in (once, copied))
    assert a.n == b.n == 12 and (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high))
    wrong = mean_distance(measures[0], copied._where("one", "two", own=False))
    assert wrong.n == 18 and wrong.high - wrong.low < b.high - b.low


def test_verdicts_follow_the_intervals():
    result = result_of([0.0, 0.0, 5.0], ["one", "same", "two"])
    verdicts = {(d.a, d.b): d.judgement.verdict for d in result.by(ALL)}
    assert verdicts["one", "two"] == verdicts["same", "two"] == "holds" and verdicts["one", "same"] == "cannot tell"
    by_claim = {}
    for finding in result.findings():
        by_claim.setdefault(finding.claim, []).append(finding)
    assert [f.verdict for f in by_claim["compare.apart"]] == ["cannot tell", "holds", "holds"]
    (overall,) = by_claim["compare.all_apart"]
    assert overall.verdict == "cannot tell" and "2 of 3 pairs" in overall.text and "one and same" in overall.text
    assert by_claim["compare.apart"][1].text.startswith("one and two are different networks by their heads: they are")
    (geometry,) = by_claim["compare.geometry"]
    assert geometry.verdict == "cannot tell" and "for 2 of 3 pairs a lower bound" in geometry.text
    shuffled = next(f for f in result.findings() if f.text.startswith("Where attention goes"))
    assert "relative l1 2 of 2" in shuffled.text and shuffled.verdict is None


def test_networks_closer_than_one_to_itself_are_not_different():
    """Two runs of a network that lie far apart: another network between them is nearer than it is to itself."""
    result = result_of([0.0, 5.0, 2.5], ["wide", "wide", "between"])
    (pair,) = result.by(ALL)
    assert pair.judgement.verdict == "does not hold"
    finding = next(f for f in result.findings() if f.claim == "compare.apart")
    assert "are no further apart than one network from itself" in finding.text and finding.holds is False


def test_other_heads_can_fail_the_claim_that_kinds_differ():
    near, far = result_of([0.0, 0.1], ["one", "two"]), result_of([0.0, 50.0], ["one", "two"])
    said = [next(f for f in r.findings() if f.claim == "compare.kinds_of_heads") for r in (near, far)]
    verdicts = [finding.verdict for finding in said]
    for finding, r in zip(said, (near, far), strict=True):  # the sentence counts the pairs that hold
        pairs = [d for d in r.by("geometry") if d.heads.known]
        assert f"{sum(d.beyond_heads.verdict == 'holds' for d in pairs)} of {len(pairs)}" in finding.text and pairs
    assert verdicts == ["does not hold", "holds"]


def test_inputs_that_repeat_decide_nothing():
    """Eight inputs of two networks, of which one network was given one input twice."""
    result = result_of([0.0, 0.0, 50.0], ["one", "one", "two"])
    whole = [np.random.default_rng(i).uniform(1 + i, 1.1 + i, size=(3, 6)) for i in range(3)]
    bottom = np.where(np.tri(18, dtype=bool), np.nan, 1.0)
    found = dataclasses.replace(result, whole=whole, bottom=bottom)
    ticked = {f.claim for f in found.findings() if f.verdict == "holds"}
    assert ticked == {
        f"compare.{name}" for name in ("bottom", "all_apart", "apart", "geometry", "kinds_of_heads", "entropy")
    }
    again = [x.copy() for x in whole]
    again[1][:, 3] = again[0][:, 2]
    found = dataclasses.replace(found, whole=again)
    judged = [f for f in found.findings() if f.judgement]
    assert {f.claim for f in judged} == ticked and {f.verdict for f in judged} == {"cannot tell"}
    assert all("inputs are different, and n counts independent ones" in f.judgement.why for f in judged)
    assert "only 17 of 18" in next(f.judgement.why for f in judged if f.claim == "compare.apart")
    assert not any(pair.separated for pair in found.distances)


def test_tables_carry_n_and_the_verdict():
    result = result_of([0.0, 0.0, 5.0, 0.1], ["one", "same", "two", "one"])
    frame = result.to_frame()
    pairs = frame[frame["what"] == "different networks"]
    assert len(pairs) == 3 * (1 + len(MEASURES))
    assert (pairs["separated"] == (pairs["low"] > pairs["same_network_high"])).all()
    assert ((pairs["verdict"] == "holds") == pairs["separated"]).all()
    for yardstick in ("same_network", "other_heads"):  # no end of an interval without the other, its middle and n
        known = pairs[pairs[f"{yardstick}_high"].notna()]
        low, middle, high, n = (known[f"{yardstick}{part}"] for part in ("_low", "", "_high", "_n"))
        assert len(known) and (low <= middle).all() and (middle <= high).all() and (n > 1).all()
    assert set(frame["what"]) == {"different networks", BATCHES, INPUT, HEADS}
    assert frame.loc[(frame["what"] == BATCHES) & (frame["a"] == "same"), "n"].eq(6).all()
    table = result.table().set_index("networks")
    assert table.loc["one / same", "separated"] == "cannot tell" and table.loc["one / two", "separated"] == "yes"
    assert "(n = 18)" in table.loc["one / two", "apart"]
    assert set(result.tables()) == {"distances", "runs"} and len(result.summary()) == 2
    ids = {figure.id for figure in result.figures()}
    assert {finding.figure for finding in result.findings() if finding.figure} <= ids


def test_distances_between_runs_have_the_own_distance_on_the_diagonal():
    result = result_of([0.0, 3.0], ["one", "two"], n_groups=4)
    D = result.between_runs("geometry")
    blocks = result.measures[0].reshape(2, 4, 2, 4).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(D[0, 1], blocks[0, 1].mean())
    np.testing.assert_allclose(np.diag(D), [np.nanmean(blocks[0, 0]), np.nanmean(blocks[1, 1])])
    np.testing.assert_array_equal(D, D.T)
