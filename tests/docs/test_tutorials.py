"""Nine of the tutorials run here and find what they say; `make docs` runs all of them."""

import ast
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with mpl.rc_context({"backend": "Agg"}):
        yield lambda name: runpy.run_path(str(TUTORIALS / f"{name}.py"), run_name="__main__")


def test_there_is_one_for_every_question():
    assert len(list(TUTORIALS.glob("*.py"))) == 11
    for file in TUTORIALS.glob("*.py"):
        text = file.read_text()
        assert "# How sure is this?" in text and "# What next?" in text, file.name
        assert ast.get_docstring(ast.parse(text)).split("\n")[1].startswith("==="), file.name


def test_any_matrix(run, capsys):
    names = run("any_matrix")
    scores = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert scores[0] > 0.4 and abs(scores[2]) < 0.05  # found in the data, and not in shuffled columns
    assert names["places"].shape == (400, 3)


def test_attentions_from_elsewhere(run):
    names = run("bring_attentions")
    found = names["hs"].find_heads(names["mine"], "previous token", top=1).iloc[0]
    assert (found["layer"], found["head"]) == (0, 1) and found["has_role"]


def test_a_study_of_ones_own(run, load):
    result = run("own_study")["result"]
    (finding,) = result.findings()
    assert repr(result) == f"How sharp is each head?\n- {finding.text}"  # not its arrays
    assert finding.verdict == "holds" and finding.text.startswith("Training made heads sharper")


def test_induction_heads(run, load, capsys):
    names = run("find_induction_heads")
    assert tuple(names["heads"].iloc[0][["layer", "head"]]) == (18, 6) and names["heads"]["has_role"].all()
    intact, without, others = (float(line.split()[-2]) for line in capsys.readouterr().out.splitlines())
    assert without > intact + 2 and abs(others - intact) < 0.5  # it copies with them, and not with others


def test_two_prompts(run, load):
    names = run("two_prompts")
    for batch, name in enumerate(("Mary", "John")):  # who was said once
        head = names["captured"].tensor(batch).head(names["layer"], names["head"])
        assert name in head.key_tokens[head.values[-1].argmax()]
    most = names["moved"].set_index(["layer", "head"]).index
    assert (names["baseline"][most] < names["matters"][most] / 2).all()


def test_softmax_matters(run, capsys):
    run("softmax_matters")
    *_, first, needed, _, unneeded, own = capsys.readouterr().out.splitlines()
    assert abs(float(own.split()[-1])) < 1e-6
    low = {line: float(line.split("[")[1].split(",")[0]) for line in (first, needed, unneeded)}
    assert low[needed] > 0  # layer 0 needs its maps,
    assert low[first] < 0 and low[unneeded] < 0  # no harm is shown of its paraproduct, nor that layer 4 needs its own


def test_weights_and_noise(run, load, capsys):
    names = run("weights_and_noise")
    beyond = names["heads"][["z", "z_other"]].abs().gt(3).mean()
    assert beyond["z"] > 0.9 and beyond["z_other"] < 0.2
    assert {f.claim: f.verdict for f in names["result"].findings()}["spectra.sparser"] == "holds"


def test_rank_collapse(run):
    verdicts = {f.claim: f.verdict for f in run("rank_collapse")["result"].findings()}
    assert verdicts["collapse.rank"] == "does not hold"  # in the model as it is


def test_a_cluster(run, load):
    names = run("cluster")
    assert (names["spread"].affinity == names["alone"].affinity).all()
