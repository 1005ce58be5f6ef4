"""What is measured of a map of attention in a few-shot prompt."""

import numpy as np
import pytest

from headscape.statistics.maps import uniform_map
from headscape.studies.prompt.maps import MEASURES, measure_map
from headscape.studies.prompt.text import Layout


def a_map(n, seed=0, heads=None):
    scores = 2 * np.random.default_rng(seed).normal(size=(*([heads] if heads else []), n, n))
    weights = np.exp(scores) * np.tri(n)
    return weights / weights.sum(axis=-1, keepdims=True)


def a_layout():
    """Start, context, two shots and a target, with separators between; some words of several tokens."""
    kinds = ["start", "context", "context", "separator", "word", "separator", "clue", "clue", "clue", "separator"]
    kinds += ["word", "separator", "clue", "clue", "clue", "clue", "separator", "target", "separator", "answer"]
    shots = [-1, -1, -1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]
    words = np.repeat(np.arange(14), [1, 1, 1, 1, 2, 1, 3, 1, 1, 1, 2, 2, 1, 2])
    return Layout([f"t{i}" for i in range(20)], kinds, np.array(shots), words)


def test_measures_of_a_map_one_by_one():
    layout, A = a_layout(), a_map(20)
    found = measure_map(A, layout, 0.25)
    assert tuple(found) == MEASURES
    content = [s in ("word", "clue", "target", "answer") for s in layout.segments]
    within = cross = first = rest = own = dropped = 0.0
    queries = [i for i in range(20) if content[i]]
    for i in queries:
        for j in range(i + 1):
            part = A[i, j] / len(queries)
            dropped += 0 if content[j] else part
            if j == i:
                own += part
            elif j == 0:
                first += part
            elif content[j] and layout.shots[i] == layout.shots[j]:
                within += part
            elif content[j]:
                cross += part
            else:
                rest += part
    assert [found[k] for k in ("within", "cross", "first", "rest")] == pytest.approx([within, cross, first, rest])
    assert own + within + cross + first + rest == pytest.approx(1)
    assert found["dropped"] == pytest.approx(dropped) == pytest.approx(first + rest)
    assert found["self"] == pytest.approx(np.mean([A[i, i] for i in range(1, 20)]))
    kept = [w for w in range(14) if any(content[i] for i in range(20) if layout.words[i] == w)]
    shares = []
    for a in kept[1:]:  # of what the tokens of a word give to words and clues
        rows = [i for i in range(20) if layout.words[i] == a]
        given = {b: sum(A[i, j] for i in rows for j in range(20) if layout.words[j] == b) for b in kept}
        shares.append(given[a] / sum(given.values()))
    assert found["drawn_self"] == pytest.approx(np.mean(shares))
    entropies = [-(A[i, : i + 1] * np.log(A[i, : i + 1])).sum() / np.log(i + 1) for i in range(1, 20)]
    assert found["entropy"] == pytest.approx(np.mean(entropies)) and found["head_entropy"] == 0.25
    lower = [(A[i, j], 0.1 / (i + 1)) for i in range(20) for j in range(1, i + 1)]
    assert found["sparsity"] == pytest.approx(np.mean([a < t for a, t in lower]))
    assert found["largest"] == max(a for a, _ in lower)


def test_closed_cases():
    layout = a_layout()
    even = measure_map(uniform_map(20), layout)
    assert even["entropy"] == pytest.approx(1) and even["sparsity"] == 0
    assert even["self"] == pytest.approx(np.mean(1 / np.arange(2, 21)))
    diagonal = measure_map(np.eye(20), layout)
    assert (
        diagonal["self"] == diagonal["drawn_self"] == 1
        and diagonal["entropy"] == 0
        and diagonal["within"] == diagonal["dropped"] == 0
    )
