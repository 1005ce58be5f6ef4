"""Tables of the documents: controls in cells, and what longer runs say where a quick look is silent."""

import json
import runpy
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

CLONE = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made():
    spec = spec_from_file_location("make_tables", CLONE / "docs" / "make_tables.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def look(claim, verdict, why="", value=None):
    ends = {"low": value and value - 1, "high": value and value + 1}
    return {"claim": claim, "verdict": verdict, "why": why, "value": value, **ends, "n": 8 if value else 0}


@pytest.mark.parametrize(
    ("verdict", "why", "cell"),
    [
        ("holds", "3 [2, 4] (n = 8) lies above 1.5 [1.2, 1.8] (n = 3) (a draw)", "✓ 3 [2, 4] (n = 8), above 1.5 [1.2, 1.8] (n = 3)"),
        ("does not hold", "3 [2, 4] (n = 8) lies above -1e-05 (rounding)", "✗ 3 [2, 4] (n = 8), above -1e-05"),
        ("cannot tell", "3 [2, 4] (n = 8) and 2.5 [1, 3] (n = 8) (x) overlap", "? 3 [2, 4] (n = 8), overlaps 2.5 [1, 3] (n = 8)"),
        ("cannot tell", "3 [2, 4] (n = 8) and 3.5 overlap", "? 3 [2, 4] (n = 8), overlaps 3.5"),
        ("cannot tell", "nothing is promised: the exponent -1 is not above 0", "? 3 [2, 4] (n = 8)"),
    ],
)  # fmt: skip
def test_a_cell_shows_the_value_of_the_control(made, verdict, why, cell):
    assert made._cell(look("a", verdict, why, 3.0)) == cell


def test_every_kept_comparison_has_its_control_in_its_cell(made):
    rows = [row for found in made.results("claims").values() for row in found["claims"] if row["value"] is not None]
    bare = [row["why"] for row in rows if "lies " in row["why"] and not made._control(row["why"])]
    assert len(rows) > 300 and not bare


@pytest.fixture
def kept(made, tmp_path, monkeypatch):
    """Two models looked at quickly; longer runs of one of them, of another network, and one that was quick."""

    def keep(study, name, found):
        file = tmp_path / "docs" / "results" / study / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found))

    def said(claim, verdict, why):
        return {"claim": claim, "verdict": verdict, "why": why, "text": ""}

    for name in ("one", "two"):
        rows = [look("softmax.invariance", "cannot tell"), look("softmax.premise", "holds", value=3.0)]
        rows += [look("softmax.residual", "holds", value=3.0), look("train.both", "not applicable")]
        keep("claims", name, {"claims": rows})
    several = [said("softmax.invariance", v, f"{v} (n = 8)") for v in ("holds", "does not hold", "holds")]
    several += [
        said("softmax.premise", "holds", "as before"),
        said("softmax.residual", "cannot tell", "no head is regular"),
    ]
    keep("softmax", "one", {"command": "headscape softmax", "findings": several})
    keep(
        "softmax",
        "three",
        {"command": "headscape softmax", "findings": [said("softmax.premise", "cannot tell", "3 (n = 2)")]},
    )
    keep("softmax", "two", {"command": "headscape claims --quick", "findings": several})
    keep("hopfield/deep", "findings", [said("train.both", "does not hold", "1 (n = 3)"), said(None, None, None)])
    monkeypatch.setattr(made, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(made, "TRAINED", tmp_path / "docs" / "results" / "hopfield")
    return made


def test_longer_runs_are_quoted_where_the_quick_look_is_silent_or_says_otherwise(kept):
    (kept.DOCS.parent / "scripts").mkdir()
    (kept.DOCS.parent / "scripts" / "prune_page.py").write_text("def judged(found): return {}\n")
    rows = [[cell.strip() for cell in line.split("|")[2:-1]] for line in kept.longer("").splitlines()[2:]]
    assert rows == [
        ["[one](softmax.md)", "?", "✗ does not hold (n = 8)"],  # of several findings the one that decides
        ["[three](softmax.md)", "✓", "? 3 (n = 2)"],  # of a network without a quick look: beside all of them
        ["[deep](hopfield.md)", "–", "✗ 1 (n = 3)"],
    ]


def test_kept_losses_are_judged_by_the_rules_of_the_study():
    judged = runpy.run_path(str(CLONE / "scripts" / "prune_page.py"))["judged"]
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.01, (32, 1))

    def losses(*levels):
        return {s: {"losses": {"text": {str(i): [2 + x + e[0]] for i, e in enumerate(noise)}}} for s, x in levels}

    def method(first, second):
        return losses(("10", first), ("20", second))

    intact = {"text": {str(i): [2 + e[0]] for i, e in enumerate(rng.normal(0, 0.01, (32, 1)))}}
    random = {f"random {i}": method(0.1, 0.2 + i / 100) for i in range(3)} | {"random 0 + linear": method(9, 9)}
    ours = {"novelty": method(0.1, 0.2), "l1_top": method(1, 1)}
    found = {"intact": intact, "methods": {**ours, **random, "michel + linear": method(0.3, 0.2)}}
    assert {id: one.verdict for id, one in judged(found).items()} == {
        "prune.gradients": "cannot tell",  # better at one share of heads, as good at the other
        "prune.gradient_free": "cannot tell",
        "prune.l1_top": "does not hold",
    }
    found["methods"]["michel + linear"] = {
        share: {"losses": {"text": {i: [x[0] + 0.1 + int(i) / 1000] for i, x in of["losses"]["text"].items()}}}
        for share, of in ours["novelty"].items()
    }
    assert judged(found)["prune.gradients"].verdict == "holds"
    assert judged(found)["prune.gradients"].statistic.n == 32
    for i in (1, 2):
        del found["methods"][f"random {i}"]
    assert judged(found)["prune.l1_top"].verdict == "cannot tell"  # one draw says nothing of another
