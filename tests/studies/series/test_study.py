"""A series with a planted birth: one head learns to copy between two checkpoints, the others stay as they are."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import headscape as hs
from headscape.geometry.diffusion import diffusion_map
from headscape.studies.series.result import SeriesResult
from headscape.studies.series.study import find_series, series, shared_map, small_maps

N, PERIOD, BORN = 24, 8, 2  # tokens, their period, the checkpoint at which head 1.1 copies
STEPS = (0, 100, 200, 300)


def maps_of(t, batch):
    """Two layers of two heads; rows of equal attention, a head for the previous token, and from BORN on an induction head."""
    rng = np.random.default_rng([batch, 7])
    even = np.tri(N) / np.tri(N).sum(axis=1, keepdims=True)
    previous = np.eye(N, k=-1)
    previous[0, 0] = 1
    copying = 0.1 * even
    for q in range(N):
        copying[q, max(0, q - PERIOD + 1)] += 0.9
    noisy = even * rng.uniform(0.9, 1.1, (N, N))
    noisy /= noisy.sum(axis=1, keepdims=True)
    return np.stack([previous, even, noisy, copying if t >= BORN else even]).reshape(2, 2, N, N)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("series")
    for t, step in enumerate(STEPS):
        batches = [[layer[None].astype(np.float32) for layer in maps_of(t, b)] for b in range(3)]
        tokens = [[f"{(i + b) % PERIOD}" for i in range(N)] for b in range(3)]
        hs.from_attentions(batches, tokens, out=place / f"step-{step:04d}")
    return place


@pytest.fixture(scope="module")
def result(folder):
    return series(folder)


def test_the_birth_is_between_the_two_checkpoints_where_it_was_planted(result):
    births = result.births()
    row = births[births["role"] == "induction"]
    assert row[["layer", "head", "after", "by"]].to_numpy().tolist() == [[1, 1, 100, 200]]
    previous = births[births["role"] == "previous"]
    assert previous[["layer", "head", "by"]].to_numpy().tolist() == [[0, 0, 0]] and previous["after"].isna().all()


def test_since_counts_back_from_the_end(result):
    frame = result.to_frame().set_index(["layer", "head"])
    assert frame.loc[(1, 1), "role"] == "induction" and frame.loc[(1, 1), "since"] == 200
    assert frame.loc[(0, 0), "since"] == 0


def test_the_slider_has_the_colours_of_the_grid_whatever_role_came_first(result):
    from headscape.report.first import heads_by_role
    from headscape.report.gather import gather

    shown = [role for role in heads_by_role(gather([result])) if role != "mixed"]
    assert len(shown) > 1 and shown[0] == "induction"  # at first no head is one
    assert result.figures()[0].data["kinds"][: len(shown)] == shown


def test_only_the_head_that_changes_moves(result):
    moved = result.moved.round(6)
    assert (moved[:, :3] == 0).all() and (moved[[0, 2]] == 0).all() and moved[1, 3] > 0.3
    place = result.coordinates
    assert np.allclose(place[0, :3], place[-1, :3]) and not np.allclose(place[1, 3], place[2, 3])
    assert np.allclose(place[1, 3], place[1, 1])  # before it is born it attends as 0.1 does


def test_change_is_judged_beside_other_inputs(result):
    assert (result.change[1] > result.noise.max()).all() and (result.change[[0, 2]] == 0).all()
    verdict = result.findings()[-1].judgement
    assert verdict.verdict == "holds" and "other input" in verdict.why


def test_findings_name_the_head_and_the_steps(result):
    said = next(f.text for f in result.findings() if "induction" in f.text)
    assert "1.1" in said and "since steps 100 to 200" in said and "at random" in said


def test_a_network_without_the_role_is_said_to_have_none(folder):
    early = series([folder / "step-0000", folder / "step-0100"])
    said = next(f.text for f in early.findings() if "induction" in f.text)
    assert said.startswith("No head has the role 'induction' at the end")


def test_saved_and_read_again_it_is_the_same(result, folder):
    again = hs.open_result(folder, "series") if (folder / "run.json").exists() else SeriesResult.load(folder / "series")
    assert np.array_equal(again.scores, result.scores) and again.births().equals(result.births())
    assert again.history().shape == (len(STEPS) * 4, result.history().shape[1])


def test_more_checkpoints_cost_only_what_is_new(folder, tmp_path):
    first = series(folder, out=tmp_path / "kept")
    units = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept" / "series" / "units").iterdir()}
    hs.from_attentions(
        [[layer[None].astype(np.float32) for layer in maps_of(3, b + 10)] for b in range(3)],
        [[f"{(i + b) % PERIOD}" for i in range(N)] for b in range(3)],
        out=tmp_path / "runs" / "step-0050",
    )
    more = [folder / "step-0000", tmp_path / "runs" / "step-0050", *(folder / f"step-0{s}" for s in (100, 200, 300))]
    second = series(more, out=tmp_path / "kept")
    assert list(second.steps) == [0, 50, 100, 200, 300] and len(first.steps) == 4
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept" / "series" / "units").iterdir()}
    assert units.items() <= after.items() and len(after) == len(units) + 1


def test_steps_are_the_numbers_at_the_end_or_places(folder, tmp_path):
    assert list(find_series(folder)) == list(STEPS)
    (tmp_path / "b").mkdir()
    (tmp_path / "a").mkdir()
    assert list(find_series([tmp_path / "b", tmp_path / "a"])) == [0, 1]
    for name in ("epoch5", "epoch10", "final"):
        (tmp_path / "mixed" / name).mkdir(parents=True)
        (tmp_path / "mixed" / name / "run.json").touch()
    with pytest.raises(hs.InputError, match="final has no number at its end"):
        find_series(tmp_path / "mixed")


def test_what_cannot_be_followed_is_refused_by_name(folder, tmp_path):
    with pytest.raises(hs.InputError, match="two or more"):
        series([folder / "step-0000"])
    with pytest.raises(hs.InputError, match="0 runs"):
        series(tmp_path)
    hs.from_attentions([[maps_of(0, 0)[0][None].astype(np.float32)]], out=tmp_path / "less")
    with pytest.raises(hs.InputError, match="other heads"):
        series([folder / "step-0000", tmp_path / "less"])
    batches = [[layer[None].astype(np.float32) for layer in maps_of(0, b)] for b in range(3)]
    hs.from_attentions(batches, [[f"{i % 5}" for i in range(N)]] * 3, out=tmp_path / "other")
    with pytest.raises(hs.InputError, match="same inputs"):
        series([folder / "step-0000", tmp_path / "other"])


def test_small_maps_give_hellinger_distances():
    rng = np.random.default_rng(0)
    values = rng.dirichlet(np.ones(6), size=(6, 3)).transpose(0, 2, 1).astype(np.float32)
    rows = small_maps(hs.AttentionTensor(values))
    for i in range(3):
        for j in range(3):
            p, q = values[:, :, i] / 6, values[:, :, j] / 6
            slow = np.sqrt(((np.sqrt(p) - np.sqrt(q)) ** 2).sum() / 2)
            assert np.isclose(np.linalg.norm(rows[i] - rows[j]) / np.sqrt(2), slow, atol=1e-5)


def test_the_shared_map_of_a_sample_is_close_to_that_of_all_heads(monkeypatch):
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(3, 20))
    points = [centres[rng.integers(3, size=40)] + 0.05 * rng.normal(size=(40, 20)) for _ in range(2)]
    points = [p / np.linalg.norm(p, axis=1, keepdims=True) for p in points]
    whole = shared_map(points, 0)
    together = np.concatenate(points)
    between = np.sqrt(np.maximum(2 - 2 * together @ together.T, 0))
    affinity = np.exp(-between / np.median(between[np.triu_indices(80, 1)]))
    assert np.allclose(whole.reshape(-1, 2), diffusion_map((affinity + affinity.T) / 2, 2), atol=1e-6)
    monkeypatch.setattr("headscape.studies.series.study.LANDMARKS", 50)
    some = shared_map(points, 0)
    apart = [np.linalg.norm(c.reshape(-1, 1, 2) - c.reshape(1, -1, 2), axis=-1).ravel() for c in (some, whole)]
    assert np.corrcoef(*apart)[0, 1] > 0.99


def test_two_inputs_make_one_pair_and_no_interval(folder, tmp_path):
    for step in list(STEPS)[:2]:
        batches = [[layer[None].astype(np.float32) for layer in maps_of(step, b)] for b in range(2)]
        hs.from_attentions(batches, out=tmp_path / f"step-{step}")
    assert series(tmp_path).noise.shape == (2, 1)


def test_pairs_of_inputs_are_not_counted_as_inputs(result):
    """An input is in several pairs, so these are not independent; the mean is over all of them, not over neighbours."""
    rng = np.random.default_rng(0)
    scores = 1e-3 * rng.normal(size=(2, len(result.role_names), 8, 4)) + 0.1
    scores[:, :, 0] += 0.05 * rng.random((len(result.role_names), 4))
    noise = np.abs(scores - np.roll(scores, 1, axis=2)).mean(axis=(1, 3))
    moving = replace(
        result, steps=np.array([0, 100]), scores=scores, noise=noise, change=rng.uniform(2e-3, 3e-3, (1, 8))
    )
    moving = replace(moving, held=result.held[-2:], named=result.named[-2:], entropies=result.entropies[-2:])
    judgement = replace(moving, moved=result.moved[-1:]).findings()[-1].judgement
    apart = [np.abs(a - b).mean() for a, b in combinations(scores[-1].swapaxes(0, 1), 2)]
    assert f"{np.mean(apart):.3g}" in judgement.why and "(n = 8)" in judgement.why.partition(" and ")[2]
    assert judgement.verdict == "cannot tell"


def test_inputs_that_repeat_decide_nothing(result):
    scores = np.repeat(result.scores, 2, axis=2)
    twice = replace(result, scores=scores, change=np.repeat(result.change, 2, axis=1))
    found = twice.findings()[-1]
    assert found.verdict == "cannot tell" and "only 3 of 6 inputs are different" in found.judgement.why
