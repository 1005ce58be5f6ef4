"""One head: its log-attention, what can replace its softmax, and what is measured of it."""

import numpy as np
import pytest

import headscape as hs
from headscape.geometry.questionnaire import Questionnaire
from headscape.studies.softmax.head import (
    COLUMNS,
    VARIANTS,
    Head,
    Trees,
    as_probabilities,
    compare,
    log_attention,
    measure,
    organize,
    scales,
)
from headscape.tree import PartitionTree
from planted_scores import scores_of

SETTINGS = Questionnaire(n_jobs=1).get_params()


def a_head(n=16, seed=0, causal=True):
    present = np.tri(n, dtype=bool) if causal else np.ones((n, n), dtype=bool)
    g = log_attention(scores_of(1, 1, 1, n, seed=seed)[0, 0, 0], present)
    return Head(g, present, organize(g, present, SETTINGS))


@pytest.mark.parametrize("causal", [True, False])
def test_log_attention_is_the_log_of_softmax_over_present_keys(causal):
    rng = np.random.default_rng(0)
    S = 20 * rng.normal(size=(7, 7))
    present = np.tri(7, dtype=bool) if causal else np.ones((7, 7), dtype=bool)
    g = log_attention(S, present)
    for i in range(7):
        weights = np.exp(S[i, present[i]] - S[i, present[i]].max())
        np.testing.assert_allclose(np.exp(g[i, present[i]]), weights / weights.sum(), rtol=1e-12)
    assert np.isnan(g[~present]).all()
    shifted = log_attention(np.where(present, S + rng.normal(size=(7, 1)), 1e9), present)
    np.testing.assert_allclose(shifted, g, atol=1e-12)
    with pytest.raises(hs.InputError, match="query 2 has no key"):
        log_attention(S, np.arange(7)[:, None] != 2 * np.ones((7, 7)))


def test_probabilities_are_clipped_and_sum_to_one():
    present = np.tri(3, dtype=bool)
    raw = np.array([[-2.0, np.nan, np.nan], [0.0, 0.0, np.nan], [-1.0, 1.0, 3.0]])
    found = as_probabilities(raw, present)
    np.testing.assert_allclose(found, [[1, 0, 0], [0.5, 0.5, 0], [0, 0.25, 0.75]])
    head = a_head()
    for variant in VARIANTS:
        rows = as_probabilities(head.approximation(variant), head.present)
        np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-12)
        assert (rows >= 0).all() and not rows[~head.present].any()


def test_softmax_compared_with_itself_and_with_something_else():
    head = a_head(12)
    same = compare(np.where(head.present, head.softmax, np.nan), head.g, head.present)
    np.testing.assert_allclose(same, (0, 0, 1), atol=1e-12)
    rng = np.random.default_rng(1)
    other = head.softmax + 0.3 * rng.normal(size=head.g.shape)
    error, kl, top = compare(np.where(head.present, other, np.nan), head.g, head.present)
    inside = head.present
    expected = np.sqrt(((other - head.softmax)[inside] ** 2).sum() / (head.softmax[inside] ** 2).sum())
    assert error == pytest.approx(expected)
    kls, overlaps = [], []
    for i, row in enumerate(other):
        p, q = head.softmax[i, : i + 1], np.maximum(row[: i + 1], 0)
        q = q / q.sum() if q.any() else np.full(i + 1, 1 / (i + 1))
        kls.append(sum(b * np.log(b / a) for a, b in zip(p, q, strict=True) if b > 0))
        if i + 1 > 5:
            largest = [set(np.argsort(-x[: i + 1])[:5].tolist()) for x in (head.softmax[i], row)]
            overlaps.append(len(largest[0] & largest[1]) / 5)
    assert kl == pytest.approx(np.mean(kls))
    assert top == pytest.approx(np.mean(overlaps))
    assert np.isnan(compare(head.softmax[:4, :4], head.g[:4, :4], head.present[:4, :4])[2])


def test_what_the_variants_are():
    head = a_head(20)
    g, present, P = head.g, head.present, head.softmax
    full = hs_paraproduct(head, head.trees, "exp")
    np.testing.assert_array_equal(head.approximation("paraproduct"), full.approximation)
    np.testing.assert_array_equal(head.approximation("boundary"), full.boundary)
    dyadic = Trees(PartitionTree.dyadic(20), PartitionTree.dyadic(20))
    np.testing.assert_array_equal(head.approximation("natural"), hs_paraproduct(head, dyadic, "exp").approximation)
    np.testing.assert_allclose(head.approximation("mean")[present], np.exp(g[present].mean()))
    slope, offset = np.polyfit(g[present], P[present], 1)
    np.testing.assert_allclose(head.approximation("linear")[present], offset + slope * g[present], atol=1e-12)
    with pytest.raises(hs.InputError, match="unknown variant"):
        head.approximation("nothing")


def hs_paraproduct(head, trees, function):
    from headscape.wavelets.paraproduct import paraproduct

    return paraproduct(head.g, *trees, function, head.present)


def test_approximation_and_softmax_are_in_the_same_order():
    """Permuting queries and keys of a head, with its trees, permutes the approximation and changes no measure."""
    head = a_head(18, causal=False)
    rng = np.random.default_rng(3)
    p, q = rng.permutation(18), rng.permutation(18)
    moved = Head(head.g[np.ix_(p, q)], head.present, Trees(head.trees.query.permute(p), head.trees.key.permute(q)))
    for variant in ("paraproduct", "corollary", "boundary", "mean", "linear"):
        a, b = head.approximation(variant), moved.approximation(variant)
        np.testing.assert_allclose(b, a[np.ix_(p, q)], atol=1e-12)
        measured = [compare(x, h.g, h.present) for x, h in ((a, head), (b, moved))]
        np.testing.assert_allclose(*(m[: 2 if variant == "mean" else 3] for m in measured), atol=1e-9)  # ties of a mean


def test_uniform_attention_is_exact_and_has_no_exponent():
    present = np.ones((16, 16), dtype=bool)
    g = log_attention(np.zeros((16, 16)), present)
    head = Head(g, present, organize(g, present, SETTINGS))
    found, note = measure(head, SETTINGS)
    assert tuple(found) == COLUMNS
    for variant in ("paraproduct", "corollary", "boundary", "mean", "linear", "natural"):
        assert found[f"{variant}_error"] < 1e-12
    assert np.isnan(found["alpha"]) and "no mixed coefficient" in note
    assert found["average_rms"] < 1e-12 and found["mixed_rms"] < 1e-12


def test_heads_whose_scores_depend_on_the_key_alone():
    """g = v(key): boundary terms are exact, so both decompositions are, however large the scores."""
    present = np.ones((16, 12), dtype=bool)
    g = log_attention(np.tile(5 * np.random.default_rng(0).normal(size=12), (16, 1)), present)
    found, _ = measure(Head(g, present, organize(g, present, SETTINGS)), SETTINGS)
    assert max(found[f"{v}_error"] for v in ("paraproduct", "corollary", "boundary", "natural")) < 1e-10
    assert found["mean_error"] > 0.5 and found["mixed_share"] < 1e-12


def test_small_scores_meet_the_condition_and_are_approximated():
    """As scores shrink averages go to 0, and the error of Corollary 1 falls like their square."""
    errors, averages = [], []
    for size in (0.2, 0.02):
        present = np.ones((24, 24), dtype=bool)
        g = log_attention(scores_of(1, 1, 1, size=1)[0, 0, 0] * size, present)
        found, _ = measure(Head(g, present, organize(g, present, SETTINGS)), SETTINGS)
        errors.append(found["corollary_error"])
        averages.append(found["average_rms"])
    assert averages[1] == pytest.approx(averages[0] / 10, rel=0.2)
    assert errors[1] < errors[0] / 50 and errors[1] < 1e-3


def test_condition_columns_are_what_they_say():
    head = a_head(16)
    found, _ = measure(head, SETTINGS)
    g, present = head.g, head.present
    mixed = g - np.nanmean(g, axis=1, keepdims=True) - np.nanmean(g, axis=0) + g[present].mean()
    assert found["mixed_rms"] == pytest.approx(np.sqrt(np.mean(mixed[present] ** 2)))
    assert found["mixed_max"] == pytest.approx(np.abs(mixed[present]).max())
    assert found["spread"] == pytest.approx(g[present].std())
    means = head.averages
    values = [
        (means.at(j, k) - means.mean)[present] for j in range(means.n_scales[0]) for k in range(means.n_scales[1])
    ]
    assert found["average_rms"] == pytest.approx(np.sqrt(np.mean(np.square(values))))
    assert found["average_max"] == pytest.approx(np.abs(values).max())


def test_organisation_makes_a_shuffled_smooth_head_regular():
    x = np.linspace(0, 1, 64)
    rng = np.random.default_rng(0)
    S = 3 * np.cos(3 * (x[rng.permutation(64)][:, None] - x[rng.permutation(64)]))
    present = np.ones((64, 64), dtype=bool)
    g = log_attention(S, present)
    found, note = measure(Head(g, present, organize(g, present, SETTINGS)), SETTINGS)
    assert not note
    assert found["alpha"] > 0.3 > found["alpha_natural"] + 0.5
    assert found["alpha_shuffled"] == pytest.approx(-0.45, abs=0.15)
    assert found["roughness"] < 0.3 * found["roughness_natural"]
    assert found["paraproduct_error"] < found["shuffled_error"]
    assert found["constant_mixed"] < found["constant_mixed_natural"]


def test_scales_hold_the_energy_of_the_terms():
    head = a_head(24)
    terms = head.averages.paraproduct("exp").terms
    found = scales(head, (6, 6))
    total = np.linalg.norm(head.softmax)
    np.testing.assert_allclose(np.linalg.norm(found[0]), np.linalg.norm(terms.residual) / total)
    np.testing.assert_allclose(np.linalg.norm(found[1]), np.linalg.norm(terms.exact) / total)
