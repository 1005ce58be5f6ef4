"""Tables, figures and files of a prune result."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

import headscape as hs
from headscape.report.files import write_figures
from headscape.studies.prune.result import PruneResult


def test_what_is_saved_comes_back(result, tmp_path):
    result.save(tmp_path)
    loaded = PruneResult.load(tmp_path)
    assert loaded.proposal == result.proposal and isinstance(loaded.proposal[0], hs.HeadId)
    assert [str(f) for f in loaded.findings()] == [str(f) for f in result.findings()]
    assert loaded.table.equals(result.table) and loaded.evidence.equals(result.evidence)
    assert loaded.tree == result.tree and loaded.to_json() == result.to_json()
    for name, layer in result.fitted.items():
        np.testing.assert_array_equal(loaded.fitted[name].mix, layer.mix)
        assert (loaded.fitted[name].heads, loaded.fitted[name].scale) == (layer.heads, layer.scale)
    (tmp_path / "result.safetensors").unlink()
    with pytest.raises(hs.HeadscapeError, match="cannot be read"):
        PruneResult.load(tmp_path)


def test_json_has_the_choice_the_heads_and_the_tables(result):
    found = json.loads(json.dumps(result.to_json()))
    assert {"criterion", "compensation", "heads", "findings", "abilities", "evidence", "costs", "recipe"} == set(found)
    assert [row["ability"] for row in found["abilities"]] == ["text", "copy.random", "copy.text"]
    assert found["heads"] == [str(head) for head in result.proposal] and found["recipe"]["heads"]
    first = result.proposal[0]
    assert f" ({first.layer}.{first.head}" in result.headline() and result.headline().endswith(")")
    assert found["evidence"][0]["removed by"] == "proposal"
    assert "% [" in found["evidence"][1]["costs more than the proposal by"]
    assert {row["n"] for row in found["evidence"] + found["costs"]} == {4}
    assert [title for title, _ in result.summary()][2] == "The proposal, and as many heads by other criteria"


def test_correlations_with_leave_one_out_are_those_of_ranks(result):
    rises = result.leave_one_out.mean(axis=1)
    for name, found in result.correlations.items():
        if np.ptp(result.heads[name]) > 0:
            assert found.value == pytest.approx(spearmanr(result.heads[name], rises).statistic)
            assert found.n == result.leave_one_out.shape[1] == 2
    assert "leave_one_out" not in result.correlations and len(result.correlations) == 15


def test_figures_are_drawn(result, run, tmp_path):
    kinds = {figure.id: figure.kind for figure in result.figures()}
    assert {
        "abilities",
        "proposal",
        "curves",
        "costs",
        "compensation",
        "importance",
        "correlations",
        "folders",
        "choice",
    } <= set(kinds)
    curves = next(figure for figure in result.figures() if figure.id == "curves")
    assert {"gradient", "l1_top", "random"} <= {series["name"] for series in curves.data["series"]}
    written = write_figures(hs.Run.open(run), [result], tmp_path)
    assert written and all(Path(path).stat().st_size > 0 for path in tmp_path.iterdir())


def test_every_score_of_a_head_is_explained(result):
    scores = set(result.heads.select_dtypes("number")) - {"layer", "head"}
    assert "novelty" in scores and scores <= set(result.meanings())
