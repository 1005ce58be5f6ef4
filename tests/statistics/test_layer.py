"""One attention layer against its Gaussians: the same written out, and planted truths.

Also tests attention.layers, statistics.fixed_weights.
"""

import numpy as np
import pytest
from scipy.stats import spearmanr

from headscape.attention.layers import LayerData
from headscape.statistics.bilinear import form_moments, measured_moments, pooled_moments
from headscape.statistics.cosines import cosines
from headscape.statistics.fixed_weights import with_fixed_weights
from headscape.statistics.gaussian import fit_gaussian
from headscape.statistics.layer import (
    COLUMNS,
    FACTS,
    Reading,
    information_at_distances,
    layer_table,
    present_offsets,
)


def a_layer(n_input=6, n_head=4, n_kv=2, n=80, dim=5, seed=0, rotary=True, shift=1.0):
    """Gaussian queries and keys that depend on each other, values, and the softmax of their scores."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n_input, 1, n, dim))
    q = rng.normal(size=(n_input, n_head, n, dim)) + 0.7 * shared + shift * rng.normal(size=(1, n_head, 1, dim))
    k = rng.normal(size=(n_input, n_kv, n, dim)) + 0.7 * shared + shift * rng.normal(size=(1, n_kv, 1, dim))
    v = rng.normal(size=(n_input, n_kv, n, dim)) + shared
    rotations = None
    tq, tk = q, k
    if rotary:
        angle = 0.3 * np.arange(n)
        rotations = np.tile(np.eye(dim), (n, 1, 1))
        rotations[:, :2, :2] = np.moveaxis(
            np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]), 2, 0
        )
        tq, tk = (np.einsum("bhnd,nde->bhne", part, rotations) for part in (q, k))
    group = n_head // n_kv
    scores = 0.4 * tq @ np.repeat(tk, group, axis=1).swapaxes(2, 3)
    masked = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    probs = np.exp(masked - masked.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    outputs = probs @ np.repeat(v, group, axis=1)
    arrays = [np.asarray(x, dtype=np.float32) for x in (q, k, v, scores, probs, outputs)]
    return LayerData(0, *arrays, rotations=rotations, scaling=0.4, note="")


def folds_of(data, reading):
    return [[dict(zip(COLUMNS, row, strict=True)) for row in fold] for fold in layer_table(data, reading)]


def table_of(data, reading):
    return folds_of(data, reading)[0]


def cosines_for(data, seed=5):
    return cosines(np.random.default_rng(seed).normal(size=(len(data.probs), data.probs.shape[-1], 6)))


def test_predictions_of_gaussian_queries_and_keys_are_met():
    """Joint Gaussians are the truth here: 4,700 pairs tell a sd within some 2 % and a kurtosis within some .3."""
    data = a_layer(n_input=12)
    rows = table_of(data, Reading(slice(1, None), True, [1, 8], 0))
    assert len(rows) == data.probs.shape[1]
    for row in rows:
        assert row["mean_joint"] == pytest.approx(row["mean"], abs=1e-5)
        assert np.sqrt(row["variance_joint"] / row["variance"]) == pytest.approx(1, abs=0.06)
        assert row["kurtosis_joint"] == pytest.approx(row["kurtosis"], abs=0.5)
        assert np.sqrt(row["self_variance_predicted"] / row["self_variance"]) == pytest.approx(1, abs=0.12)
        assert abs(row["self_mean"] - row["mean"]) > 0.2 * np.sqrt(row["variance"])  # tokens share a part
        assert abs(row["mean_independent"] - row["mean"]) < np.sqrt(row["variance"])
        assert 1 < row["directions"] <= 5


def test_one_head_written_out():
    """Pairs one by one: query i with the key r before it, the group's key, and the same moments."""
    data = a_layer(n_input=3, n=40)
    content = slice(1, 38)
    row = table_of(data, Reading(content, True, [1, 8], 0))[3]
    places = range(40)[content]
    parts, joint, counts = [], [], []
    for r in (0, 1, 4, 16):
        pairs = [(b, i, i - r) for b in range(3) for i in places if i - r in places]
        scores = [float(data.scores[b, 3, i, j]) for b, i, j in pairs]
        z = np.array([np.r_[data.queries[b, 3, i], data.keys[b, 1, j]] for b, i, j in pairs], dtype=float)
        g = fit_gaussian(z)
        C = 0.4 * data.rotations[r] @ data.rotations[0].T
        assert scores == pytest.approx([x[:5] @ C @ x[5:] for x in z], abs=1e-4)
        parts.append(measured_moments(scores))
        S = g.covariance
        joint.append(form_moments(C, g.mean[:5], g.mean[5:], S[:5, :5], S[5:, 5:], S[5:, :5]))
        counts.append(len(pairs))
    for suffix, found in (("", pooled_moments(parts, counts)), ("_joint", pooled_moments(joint, counts))):
        for name, value in found._asdict().items():
            assert row[name + suffix] == pytest.approx(value, abs=1e-5)
    assert row["score_shrinkage"] == pytest.approx(max(0.0, g.shrinkage)) or row["score_shrinkage"] > 0


def test_offsets_go_both_ways_without_a_causal_mask():
    assert present_offsets(20, True) == [0, 1, 4, 16]
    assert present_offsets(20, False) == [-16, -4, -1, 0, 1, 4, 16]


@pytest.mark.parametrize("n_input", [1, 2, 5])
def test_fixed_weights_by_fold_are_the_mean_maps_of_the_others(n_input):
    rng = np.random.default_rng(n_input)
    P, V = rng.dirichlet(np.ones(7), size=(n_input, 4)), rng.normal(size=(n_input, 7, 3))
    found = list(with_fixed_weights(P, V))
    assert len(found) == (n_input + 1 if n_input > 1 else 1)
    for fold, outputs in enumerate(found):
        kept = [i for i in range(n_input) if i != fold - 1]
        for i, output in zip(kept, outputs, strict=True):
            others = [P[j] for j in kept if j != i]
            wanted = np.mean(others, axis=0) @ V[i] if others else np.zeros_like(output)
            np.testing.assert_allclose(output, wanted, atol=1e-12)


def test_keys_that_a_causal_map_hides_are_left_out_of_no_sum(monkeypatch):
    monkeypatch.setattr("headscape.statistics.fixed_weights.QUERIES", 3)
    rng = np.random.default_rng(0)
    P, V = rng.dirichlet(np.ones(11), size=(4, 11)) * np.tri(11), rng.normal(size=(4, 11, 3))
    for content in (slice(0, 11), slice(1, 9)):
        for block, whole in zip(
            with_fixed_weights(P[:, content], V, content.start), with_fixed_weights(P[:, content], V), strict=True
        ):
            np.testing.assert_allclose(block, whole, atol=1e-12)


def test_fixed_weights_propagate_and_real_ones_do_not():
    data = a_layer(shift=0.0)
    content = slice(1, None)
    row = table_of(data, Reading(content, True, [1, 8], 0))[2]
    P, V, O = data.probs[:, 2].astype(float), data.values[:, 1].astype(float), data.outputs[:, 2].astype(float)
    fixed = np.stack([np.mean([P[c] for c in range(6) if c != b], axis=0) @ V[b] for b in range(6)])

    def moments(x):
        x = x[:, content]
        centred = (x - x.mean(axis=0)).reshape(-1, 5)
        return x.mean(axis=0), centred.T @ centred / (len(centred) * 5 / 6)

    (m, S), (mp, Sp) = moments(O), moments(fixed)
    assert row["mean_off"] == pytest.approx(np.linalg.norm(mp - m) / np.linalg.norm(m), rel=1e-4)
    assert row["covariance_off"] == pytest.approx(np.linalg.norm(Sp - S) / np.linalg.norm(S), rel=1e-4)
    assert row["trace_ratio"] == pytest.approx(np.trace(Sp) / np.trace(S), rel=1e-4)
    assert row["covariance_off"] > 0.2
    steady = LayerData(**{**vars(data), "probs": np.repeat(data.probs[:1], 6, axis=0)})
    steady = LayerData(**{**vars(steady), "outputs": steady.probs @ np.repeat(data.values, 2, axis=1)})
    for row in table_of(steady, Reading(content, True, [1, 8], 0)):  # one map for all inputs
        assert row["covariance_off"] < 1e-4 and row["mean_off"] < 1e-4
        assert row["entropy_propagated"] == pytest.approx(row["entropy_measured"], abs=1e-3)
        assert row["information_propagated"] == pytest.approx(row["information_measured"], abs=1e-3)


def test_attention_makes_neighbours_share_more():
    data = a_layer(n_input=12, n=80)
    even = np.tri(80) / np.arange(1, 81)[:, None]
    data = LayerData(**{**vars(data), "probs": np.tile(even, (12, 4, 1, 1)).astype(np.float32)})
    data = LayerData(**{**vars(data), "outputs": data.probs @ np.repeat(data.values, 2, axis=1)})
    for row in table_of(data, Reading(slice(1, None), True, [1, 8], 0)):
        assert abs(row["information_values"]) < 0.15  # values of neighbours are independent
        assert row["information_measured"] > 2  # means of all tokens so far are not
        assert row["entropy_measured"] < row["entropy_values"]
        assert row["rank90"] == pytest.approx(row["rank90"]) and row["rank90"] <= 8


@pytest.mark.parametrize("causal", [True, False])
def test_rank_correlation_with_cosines_written_out(causal):
    data = a_layer(n_input=2, n=30)
    angles = cosines_for(data)
    row = table_of(data, Reading(slice(1, 29), causal, [1, 8], 0, angles))[1]
    rhos, partials = [], []
    for b in range(2):
        a, c, d = [], [], []
        for i in range(1, 29):
            for j in range(1, 29):
                if j < i or (not causal and j != i):
                    a.append(data.probs[b, 1, i, j] * np.float32(i + 1 if causal else 30))
                    c.append(angles[b, i, j])
                    d.append(abs(i - j))
        ac, ad, cd = (spearmanr(x, y).statistic for x, y in ((a, c), (a, d), (c, d)))
        rhos.append(ac)
        partials.append((ac - ad * cd) / np.sqrt((1 - ad**2) * (1 - cd**2)))
    assert row["cosine_rho"] == pytest.approx(np.mean(rhos), abs=1e-6)
    assert row["cosine_partial"] == pytest.approx(np.mean(partials), abs=1e-6)
    assert 0 < row["cosine_p"] <= 1


def test_attention_that_follows_cosines_is_found_and_chance_is_not():
    data = a_layer(n_input=3, n=40)
    angles = cosines_for(data)
    scores = np.where(np.tri(40, dtype=bool), 3 * angles, -np.inf)
    follows = np.exp(scores)
    follows /= follows.sum(axis=-1, keepdims=True)
    probs = data.probs.copy()
    probs[:, 0] = follows
    rows = table_of(LayerData(**{**vars(data), "probs": probs}), Reading(slice(1, None), True, [1, 8], 0, angles))
    assert rows[0]["cosine_partial"] > 0.8 and rows[0]["cosine_p"] == pytest.approx(1 / 100)
    assert all(abs(row["cosine_partial"]) < 0.25 for row in rows[1:])


def test_information_by_distance_takes_positions_out():
    """Tokens that share nothing but a strong position embedding have no information at any distance."""
    rng = np.random.default_rng(1)
    state = rng.normal(size=(10, 60, 4)) + 5 * np.sin(np.arange(60)[:, None] * [0.1, 0.2, 0.3, 0.5])
    information, facts = information_at_distances(state, Reading(slice(1, None), True, [1, 8], 0))
    assert information.shape == (2, 11) and (np.abs(information) < 0.06).all()
    assert facts[0, FACTS.index("kept")] == pytest.approx(1)


def test_leaving_an_input_out_is_measuring_the_others():
    """Fold 1 + b is the table of the other inputs, but for the means of positions, which are those of all."""
    data, reading = a_layer(n_input=5, n=60), Reading(slice(1, None), True, [1], 0)
    angles = cosines_for(data)
    folds = folds_of(data, Reading(slice(1, None), True, [1], 0, angles))
    assert len(folds) == 6
    for b in (0, 3):
        parts = {name: np.delete(value, b, axis=0) for name, value in vars(data).items() if np.ndim(value) == 4}
        others = folds_of(LayerData(**vars(data) | parts), reading)[0]
        for left, whole in zip(folds[1 + b], others, strict=True):
            for name in (
                "mean",
                "variance",
                "skewness",
                "kurtosis",
                "variance_joint",
                "kurtosis_independent",
                "self_mean",
            ):
                assert left[name] == pytest.approx(whole[name], rel=1e-6, abs=1e-9)
            for name in ("rank90", "mean_off", "covariance_off", "trace_ratio"):
                assert left[name] == pytest.approx(whole[name], rel=1e-9)
            assert left["information_measured"] == pytest.approx(whole["information_measured"], abs=0.5)
    spread = np.std([fold[1]["cosine_partial"] for fold in folds[1:]])
    assert 0 < spread < 0.05


def test_variance_along_what_heads_read_first():
    """Beside covariances written out; a head that reads the widest directions of its inputs, and one that reads none."""
    rng, d, r = np.random.default_rng(3), 12, 4
    data = a_layer(n_input=5, n=30)
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    inputs = (rng.normal(size=(5, 30, d)) * np.linspace(3, 0.1, d) + rng.normal(size=d)) @ axes.T
    leading = {"q": np.stack([axes.T[:r], axes.T[-r:], *(axes.T[rng.permutation(d)[:r]] for _ in range(2))])}
    leading |= {kind: leading["q"][[2, 0]] for kind in ("k", "v")}
    found = folds_of(
        LayerData(**vars(data) | {"inputs": inputs, "leading": leading}), Reading(slice(1, None), True, [1], 0)
    )
    for fold, rows in enumerate(found):
        kept = np.delete(inputs, fold - 1, axis=0) if fold else inputs
        S = np.cov(kept[:, 1:].reshape(-1, d).T, bias=True)
        for head, row in enumerate(rows):
            for name, V in (
                ("query", leading["q"][head]),
                ("key", leading["k"][head // 2]),
                ("value", leading["v"][head // 2]),
            ):
                assert row[f"data_{name}"] == pytest.approx(np.trace(V @ S @ V.T) / np.trace(S) * d / r, rel=1e-9)
    assert found[0][0]["data_query"] > 1.8 and found[0][1]["data_query"] < 0.5
    assert np.isnan(table_of(data, Reading(slice(1, None), True, [1], 0))[0]["data_query"])
