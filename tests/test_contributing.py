"""CONTRIBUTING.md is true: its snippets run, and every hop of its walks is a function that exists."""

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import headscape as hs
from headscape.report import write_report
from tiny import captured

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.S)
HOPS = sorted(set(re.findall(r"`([\w.]+):([\w.]+)`", PAGE.split("## Three walks")[1])))


@pytest.mark.parametrize(("module", "name"), HOPS, ids=[f"{module}:{name}" for module, name in HOPS])
def test_a_hop_exists(module, name):
    found = import_module(f"headscape.{module}")
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


def test_the_walks_have_hops():
    assert len(HOPS) > 20


@pytest.fixture
def run(tmp_path):
    model, _ = captured("gpt2", out=tmp_path / "run")
    return tmp_path / "run", model


def test_the_smallest_study_goes_on_a_page(run):
    names = {"RUN": run[0]}
    exec(next(s for s in SNIPPETS if "class Peak" in s), names)
    page = write_report(hs.Run.open(run[0]), [names["result"]])
    assert "How sharp is each head?" in page.read_text()


def test_a_function_is_a_criterion(run):
    names = {"RUN": run[0], "MODEL": run[1], "hs": hs}
    exec(next(s for s in SNIPPETS if "rank_heads" in s), names)
    assert len(names["ranking"]) == 8


def test_a_network_of_ones_own_is_captured():
    names = {"hs": hs}
    exec(next(s for s in SNIPPETS if "TransformerEncoderLayer" in s), names)
    assert np.allclose(names["captured"].tensor(0).values.sum(axis=1), 1, atol=1e-3)


def test_every_test_that_the_pages_name_exists():
    root = Path(__file__).parents[1]
    named = {
        found
        for page in (root / "docs").glob("*.md")
        for found in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 40
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (root / file).read_text()]
    assert not missing
