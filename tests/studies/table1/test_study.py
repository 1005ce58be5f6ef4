"""Table 1: attention-only networks at initialization, and what is said of them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.collapse.attention_only import AttentionNetwork, AttentionOnly, patch_tokens
from headscape.collapse.residual import relative_residual, roundoff
from headscape.studies.table1 import Table1Result, table1
from headscape.studies.table1 import study as table1_study
from headscape.studies.table1.result import PRINTED


@pytest.fixture(scope="module")
def small_table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table1") / "run"
    return path, table1(path, seeds=3, images=1, depth=4)


def by_claim(result):
    return {finding.claim: finding for finding in result.findings()}


def test_table_1_is_that_of_the_networks(small_table):
    _, result = small_table
    assert result.residual.shape == (2, 4, 3, 4)
    images, _ = hs.sample_images()
    config = AttentionOnly(depth=4, weights="xavier", norm="none", skip=True, alpha_hidden=0.5)
    with torch.no_grad():
        layers = list(AttentionNetwork(config, seed=2).layers(patch_tokens(images[2:3], seed=2)))
    expected = [np.mean(relative_residual(layer.states.numpy())) for layer in layers]
    np.testing.assert_allclose(result.column("xavier, no norm", "skip, a'=0.5")[2], expected, rtol=1e-9)
    frame = result.table
    np.testing.assert_allclose(frame["printed: self-attention"], PRINTED["self-attention"][:4])
    np.testing.assert_allclose(frame["default, pre-LN: no skip, a'=0"], result.residual[0, 0].mean(axis=0))
    assert frame.columns[0] == "depth" and frame.shape == (4, 1 + 8 + 2)
    assert len(result.bounds) == 2 * 4 * 4 and result.bounds["keeps_anywhere"].all()
    assert result.to_frame().shape == (2 * 4 * 4, 6)
    real = result.bounds["measured"] > result.bounds["floor"]
    assert by_claim(result)["table1.bounds"].judgement.statistic == hs.Interval(0, 0, 0, int(real.sum()))


def test_the_sentence_answers_whether_hidden_state_or_skip_prevents_collapse(small_table):
    _, result = small_table
    answer = by_claim(result)["table1.work"]
    assert answer.text.startswith("The skip prevents collapse, not the hidden state") and answer.holds is False
    swapped = result.residual[:, [0, 3, 0, 3]]  # as if the skip had done nothing, and a' what the skip does
    other = by_claim(replace(result, residual=swapped))["table1.work"]
    assert other.text.startswith("The hidden state prevents collapse, not the skip") and other.holds
    mixed = np.stack([result.residual[0], swapped[1]])
    assert "differs between settings" in by_claim(replace(result, residual=mixed))["table1.work"].text


def test_the_hidden_state_alone_slows_collapse(small_table):
    _, result = small_table
    alone = by_claim(result)["table1.slower"]
    assert alone.holds and "slows the collapse and does not stop it" in alone.text
    turned = result.residual[:, [1, 0, 2, 3]]
    assert by_claim(replace(result, residual=turned))["table1.slower"].holds is False
    both_gone = np.full_like(result.residual, 1e-17)
    both_gone[:, 1] = 1e-16  # ten times as much, but neither can be told from round-off
    assert by_claim(replace(result, residual=both_gone))["table1.slower"].verdict == "cannot tell"


def test_as_printed_means_within_a_factor_of_ten_at_every_depth(small_table):
    _, result = small_table
    spread = np.array([0.9, 1.0, 1.1])[:, None]
    near = result.residual.copy()
    near[0, 0] = 3 * spread * np.array(PRINTED["self-attention"][:4])
    assert by_claim(replace(result, residual=near))["table1.self_attention"].holds
    near[0, 0, :, 1] *= 10
    assert by_claim(replace(result, residual=near))["table1.self_attention"].holds is False
    first = result.along[result.along["seed"] == 0]
    one = replace(result, residual=result.residual[:, :, :1], along=first)
    assert {finding.verdict for finding in one.findings() if finding.claim != "table1.bounds"} == {"cannot tell"}


def test_the_second_column_earns_no_tick_where_the_skip_alone_has_it_too(small_table):
    _, result = small_table
    spread = np.array([0.95, 1.0, 1.05])[:, None]
    made = result.residual.copy()
    made[1, 2] = made[1, 3] = spread * np.array(PRINTED["MHA"][:4])
    said = by_claim(replace(result, residual=made))["table1.mha"]
    assert said.holds is False and "a' = 0 is off by 0.0" in said.text
    made[1, 2] = spread * np.array([0.9, 0.5, 0.1, 0.01])
    assert by_claim(replace(result, residual=made))["table1.mha"].holds
    made[:, 3] /= 100
    assert by_claim(replace(result, residual=made))["table1.mha"].holds is False


def test_the_theorem_is_judged_by_whether_its_bound_falls(small_table):
    _, result = small_table
    assert set(result.along["setting"]) == {"xavier, no norm"} and len(result.along) == 2 * 3 * 4
    said = by_claim(result)["table1.theorem"]
    assert said.holds is False and "says nothing about these networks" in said.text
    tight = replace(result, along=result.along.assign(corrected=result.along["measured"] + 0.1))
    assert by_claim(tight)["table1.theorem"].holds
    gone = result.along.assign(measured=result.along["floor"] - result.along["depth"] + 1.5)
    seen = replace(result, along=gone).theorem("no skip, a'=0")["measured"]
    assert seen.notna().tolist() == [True, False, False, False]  # what one seed has as round-off is not shown


def test_table_1_is_kept_and_goes_on(small_table, monkeypatch):
    path, result = small_table
    loaded = Table1Result.load(path / "table1")
    assert [str(f) for f in loaded.findings()] == [str(f) for f in result.findings()]
    assert loaded.table.equals(result.table)
    ran = []
    real = table1_study._network
    monkeypatch.setattr(table1_study, "_network", lambda *a: ran.append(a[3]) or real(*a))
    next((path / "table1" / "units").glob("xavier-1-0-0001-*")).unlink()
    again = table1(path, seeds=3, images=1, depth=4)
    assert ran == [1]
    np.testing.assert_allclose(again.residual, result.residual, rtol=1e-9, atol=1e-15)
    ran.clear()
    more = table1(path, seeds=4, images=1, depth=4)
    assert ran == [3] * 8  # the seeds that are there are not run again
    np.testing.assert_array_equal(more.residual[:, :, :3], again.residual)


def test_jobs_change_nothing(small_table):
    _, result = small_table
    other = table1(seeds=1, images=1, depth=4, jobs=2, threads=1)
    np.testing.assert_allclose(other.residual[:, :, 0], result.residual[:, :, 0], rtol=1e-9, atol=roundoff())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"images": 1000}, "images must be 1 to"),
        ({"alpha_hidden": 0.0}, "alpha_hidden must lie between 0 and 1"),
        ({"alpha": 1.0}, "alpha must be at least 0 and below 1"),
        ({"jobs": 0}, "jobs must be at least 1"),
    ],
)
def test_a_refused_request_leaves_no_folder(tmp_path, wrong, message):
    with pytest.raises(hs.InputError, match=message):
        table1(tmp_path / "out", **{"seeds": 1, "images": 1, "depth": 1} | wrong)
    assert not (tmp_path / "out").exists()


def test_every_figure_is_drawn_and_dotted_is_dotted(small_table):
    from headscape.report.drawing import draw
    from headscape.report.gather import gather
    from headscape.report.pictures import picture

    _, result = small_table
    scene = gather([result], [])
    figures = {figure.id: figure for figure in result.figures()}
    assert all(finding.figure in figures for finding in result.findings())
    for figure in figures.values():
        assert len(figure.title) <= 60
        if figure.kind != "table":
            assert picture(figure, scene.sections[0]) and draw(figure, scene.sections[0], scene.heads)
    drawn = draw(figures["cells-0"], scene.sections[0], scene.heads)
    assert [line.get_linestyle() for line in drawn.axes[0].lines] == ["-", "--", "-", "--", ":", ":"]
    for setting, name in zip(result.names, ("table1", "table1-1"), strict=True):  # a table per setting, with its seeds
        values = result.column(setting, result.variants[0])[:, 1]
        shown = f"{values.mean():.2g} [{values.min():.1g}, {values.max():.1g}]"
        assert setting in figures[name].title and figures[name].data["rows"][1][1] == shown
        assert figures[name].data["rows"][1][-2:] == ["0.07733", "0.8309"]  # as printed
