"""Networks of different length: maps over the clusters of a common level, and what length alone does."""

import numpy as np
import pytest

from headscape.captures import Capture
from headscape.errors import InputError
from headscape.studies.compare.coarse import averaged, coarse_runs, coarsen, thinned
from headscape.studies.compare.study import compare
from planted_runs import attention_of, make_run


def test_an_average_is_the_mean_over_queries_of_what_goes_to_a_cluster():
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.ones(7), (5, 2)).transpose(0, 2, 1)
    rows, columns = np.array([1, 0, 1, 1, 0]), np.array([0, 2, 1, 1, 0, 2, 2])
    found = averaged(maps, rows, columns)
    for a in range(2):
        for b in range(3):
            for h in range(2):
                mass = [sum(maps[q, k, h] for k in range(7) if columns[k] == b) for q in range(5) if rows[q] == a]
                assert found[a, b, h] == pytest.approx(np.mean(mass))
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_thinned_maps_are_those_of_the_tokens_left():
    maps = np.random.default_rng(0).dirichlet(np.ones(6), (4, 1)).transpose(0, 2, 1)
    maps[2] = 0
    found = thinned(maps, (3, 4), np.random.default_rng(1))
    rng = np.random.default_rng(1)
    rows, columns = (sorted(rng.permutation(n)[:kept]) for n, kept in ((4, 3), (6, 4)))
    for i, q in enumerate(rows):
        left = [maps[q, k, 0] for k in columns]
        expected = [0.25] * 4 if q == 2 else np.array(left) / sum(left)
        np.testing.assert_allclose(found[i, :, 0], expected)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Network one at 24 tokens, and network two, with more keys than queries."""
    place = tmp_path_factory.mktemp("lengths")
    small = {"n_batch": 4, "n_layer": 2, "n_head": 3}
    two = attention_of(4, 1, n=32, **small)[..., :20, :]
    return [
        make_run(place / "one", attention_of(1, 0, n=24, **small), "net-one", organized=False),
        make_run(place / "two", two / two.sum(axis=-1, keepdims=True), "net-two", organized=False),
    ]


def test_networks_of_other_length_are_compared_beside_what_length_does(runs, tmp_path):
    made = coarse_runs(runs, tmp_path, 5, threads=1)
    assert [path.name for path in made] == ["one", "one-short", "two", "two-short"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("batch-*.safetensors")}
    coarsen(runs[0], made[0], clusters=5)  # is there already
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("batch-*.safetensors")}
    assert Capture.of_run(made[2]).tensor(0).shape == (5, 5, 6)
    result = compare(made, draws=20)
    assert result.networks == ["net-one", "net-two"] and result.clusters == 5
    (pair,) = result.by("together")
    assert pair.judgement.verdict == "holds"  # further apart than a network from itself at another length
    high, low, verdict = result.larger
    peak = {"net-one": 1, "net-two": 4}
    assert (peak[high] < peak[low]) == (verdict.verdict == "holds")  # peaked maps have few coefficients
    said = [f for f in result.findings() if f.claim == "compare.entropy"]
    assert said and said[0].figure == "whole"
    table = next(f for f in result.figures() if f.id == "whole")
    assert "one: relative l1" in str(table.data)


def test_what_cannot_be_averaged_is_refused(runs, tmp_path):
    with pytest.raises(InputError, match="no level of 21 clusters; there are levels of 2, 3, 4"):
        coarsen(runs[0], tmp_path / "many", clusters=21)
    with pytest.raises(InputError, match="same name"):
        coarse_runs([runs[0], runs[0]], tmp_path, 5)
    with pytest.raises(InputError, match="--coarsen 16"):
        compare([make_run(tmp_path / n, attention_of(1, 0, n=size, n_batch=4)) for n, size in (("a", 16), ("b", 20))])
