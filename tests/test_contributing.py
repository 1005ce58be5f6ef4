"""CONTRIBUTING.md is true: its snippets run, and every hop of its walks is a function that exists."""

import re
import sys
import threading
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


def called_in(work):
    """The functions of headscape that run in a call, in any thread, and the classes of those that are methods."""
    found = set()

    def note(frame, event, _):
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("headscape."):
            name = frame.f_code.co_qualname
            found.update(f"{module.removeprefix('headscape.')}:{one}" for one in (name, name.rpartition(".")[0]))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


def hops_of(start):
    walk = next(part for part in PAGE.split("## Three walks")[1].split("\n\n") if part.startswith(start))
    return {f"{module}:{name}" for module, name in re.findall(r"`([\w.]+):([\w.]+)`", walk)}


def test_a_fit_takes_the_hops_of_its_walk():
    found = called_in(lambda: hs.Questionnaire(n_iter=1).fit(np.random.default_rng(0).random((6, 5, 4))))
    assert hops_of("`Questionnaire.fit(X)`") <= found


def test_the_studies_take_the_hops_of_their_walks(run):
    """What the commands do before and after a study (options, loading, the page, the end) is tested with them."""
    found = called_in(lambda: hs.organize(run[0], model=run[1]))
    beyond = ("cli.", "attention.", "report", "studies:")
    assert {hop for hop in hops_of("`headscape analyze") if not hop.startswith(beyond)} <= found
    text = [hs.sample_text("judge")[:2000]]
    found = called_in(lambda: hs.prune(run[0], run[1], text, n_heads=2, windows=4).export(run[0].parent / "smaller"))
    loaded = {"studies.work.models:Loader.model"}  # not of a model that is given
    assert {hop for hop in hops_of("`headscape prune") if not hop.startswith("cli.")} - loaded <= found


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
