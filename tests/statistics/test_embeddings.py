"""Embeddings beside random vectors, and mixtures of next tokens."""

import numpy as np
import pytest

from headscape.statistics.embeddings import FACTS, describe_embeddings, mixtures, neighbour_rows, one_gram


def test_one_gram_counts_the_other_inputs():
    ids = np.array([[1, 2, 3, 1], [1, 2, 1, 3], [1, 4, 1, 2]])
    tokens, probs = one_gram(ids, 1)[0]
    assert dict(zip(tokens[0][probs[0] > 0].tolist(), probs[0][probs[0] > 0], strict=True)) == {
        2: 0.5,
        3: 0.25,
        4: 0.25,
    }
    assert tokens[0, 0] == 2
    assert set(tokens[2][probs[2] > 0].tolist()) == {1, 2, 3, 4}  # 3 is followed by nothing there: all their tokens


def test_mixtures_of_known_tokens():
    table = 10 * np.eye(8)
    ids = np.tile(np.arange(8), (2, 1))
    tokens, probs = np.zeros((8, 20), dtype=int), np.zeros((8, 20))
    tokens[:, :2], probs[:, :2] = [3, 4], [0.5, 0.45]
    facts, spectra = mixtures([(tokens, probs)] * 2, ids, table, slice(1, None))
    found = dict(zip(FACTS, facts[0], strict=True))
    assert found["mass"] == pytest.approx(0.95) and found["dominated"] == 1
    assert found["hit"] == pytest.approx(2 / 6)  # after tokens 2 and 3
    assert found["directions"] == pytest.approx(1) and found["rank90"] == 1  # two tokens differ in one direction
    p = np.array([0.5, 0.45]) / 0.95
    assert found["trace_share"] == pytest.approx(100 * (1 - (p**2).sum()) / (100 * 7 / 8))
    assert spectra[0, 0] == pytest.approx(1)


def test_a_certain_next_token_dominates_and_has_no_directions():
    tokens, probs = np.full((8, 20), 3), np.zeros((8, 20))
    probs[::2, 0] = 1.0  # at every other position; at the others two tokens share what is left of the likeliest
    tokens[1::2, :2], probs[1::2, :2] = [3, 4], [0.5, 0.25]
    facts, _ = mixtures([(tokens, probs)], np.arange(8)[None], 10 * np.eye(8), slice(0, None))
    found = dict(zip(FACTS, facts[0], strict=True))
    assert found["dominated"] == pytest.approx(4 / 7) and found["mass"] == pytest.approx((4 + 3 * 0.75) / 7)
    assert found["directions"] == pytest.approx(1) and found["rank90"] == pytest.approx(3 / 7)  # only of the others


def test_embeddings_beside_random_vectors():
    """Random embeddings are as random vectors are; with a pair planted, neighbours are found."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(500, 32)).astype(np.float32)
    table[7] = table[3] + 0.01 * rng.normal(size=32)
    ids = np.arange(10)[None]
    found = describe_embeddings(table, ids, 0)
    assert found["entropy"].mean() == pytest.approx(found["entropy_random"].mean(), abs=0.05)
    assert found["nearest"].max() > 0.99 > 0.9 > found["nearest_random"].max()
    assert abs(found["pairs"].mean()) < 0.05 and found["dim"][0] == 32
    assert found["entropy_predicted"] == pytest.approx(np.log(32) - found["norms"] ** 2 / 64, abs=1e-5)


def test_neighbours_of_frequent_words():
    table = np.eye(6)[[0, 1, 2, 3, 4, 4]] + 0.01
    words = ["tree", "of", "house", "dog", "river", "stream"]
    rows = neighbour_rows(table, np.array([[0, 0, 0, 1, 1, 4], [2, 2, 5, 5, 5, 1]]), words.__getitem__, neighbours=1)
    assert [row[0] for row in rows] == ["tree", "stream", "house", "river"]  # by count; short words are left out
    assert rows[1][1] == "river 1.00" and rows[3][1] == "stream 1.00"
