"""Figures as files: every kind, every format, the same bytes twice."""

import csv
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from fakes import NASTY, FakeResult, attention, frame_of, make_run, result_of
from headscape.errors import InputError
from headscape.report import write_figures
from headscape.results import Captions, FigureSpec

SIGNATURE = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run", attention(), tokens=(NASTY * 2)[:24])


@pytest.mark.parametrize("format", ["png", "svg", "pdf"])
def test_every_kind_is_written(run, tmp_path, format):
    every = result_of(4, 3, everything=True)
    few = [spec for spec in every.shown if format == "png" or spec.id in ("map", "bars", "table", "maps")]
    files = write_figures(run, [FakeResult(every.frame, few), ("prune", "it is damaged")], tmp_path, format)
    drawn = [path for path in files if path.suffix == f".{format}"]
    assert len(drawn) == len(few) - 1
    for path in drawn:
        assert path.read_bytes().startswith(SIGNATURE[format])
    names = {path.name for path in files}
    assert {f"figure-3-fake-map.{format}", "table-1-fake-table.csv", "figures.csv"} <= names
    index = list(csv.reader((tmp_path / "figures.csv").open(encoding="utf-8")))
    assert {row[0] for row in index[1:]} == names - {"figures.csv"} | {"missing: it is damaged"}


def test_same_figures_same_bytes(run, tmp_path):
    few = FakeResult(frame_of(4, 3), [s for s in result_of(4, 3, everything=True).shown if s.id in ("tree", "lines")])
    for format in SIGNATURE:
        for folder in ("a", "b"):
            write_figures(run, [few], tmp_path / folder, format)
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / folder).iterdir()} for folder in ("a", "b"))
    assert len(first) > len(SIGNATURE) and first == second


def test_a_figure_that_fails_is_a_line_of_the_index(run, tmp_path):
    bad = FigureSpec(id="bad", title="Bad", kind="head_map", data={"coordinates": np.zeros((2, 2))}, read="Look.")
    good = FigureSpec(id="good", title="Good", kind="bars", data={"names": ["a"], "values": [1.0]}, read="Look.")
    files = write_figures(run, [FakeResult(frame_of(4, 3), [bad, good])], tmp_path)
    assert [path.name for path in files] == ["fake-good.png", "figures.csv"]
    assert "not drawn: 'coordinates' of figure 'bad' has shape (2, 2)" in (tmp_path / "figures.csv").read_text()


def test_tables_hold_no_formula(run, tmp_path):
    rows = [["=HYPERLINK(1)", "+cmd", -1.5, "@x", "-1+1", "plain"]]
    table = FigureSpec(id="t", title="T", kind="table", data={"columns": list("abcdef"), "rows": rows}, read="Look.")
    write_figures(run, [FakeResult(frame_of(4, 3), [table])], tmp_path)
    written = list(csv.reader((tmp_path / "fake-t.csv").open()))[1]
    assert written == ["'=HYPERLINK(1)", "'+cmd", "-1.5", "'@x", "'-1+1", "plain"]


def test_numbers_in_tables_are_numbers_to_pandas(run, tmp_path):
    frame = pd.DataFrame({"cost": [-0.8834, 1e-7, np.nan], "gain": [-1, 2, 3], "name": ["-x", "=1", "plain"]})
    table = Captions("headscape.studies.change.result").table("change-table", frame, id="t")
    write_figures(run, [FakeResult(frame_of(4, 3), [table])], tmp_path)
    read = pd.read_csv(tmp_path / "fake-t.csv")
    np.testing.assert_allclose(read["cost"], frame["cost"], rtol=1e-3)
    assert read["gain"].tolist() == [-1, 2, 3]
    assert read["name"].tolist() == ["'-x", "'=1", "plain"]


def test_unknown_format_lists_the_known(run, tmp_path):
    with pytest.raises(InputError, match="choose png, svg, pdf"):
        write_figures(run, [], tmp_path, "gif")


@pytest.mark.parametrize(("n_layer", "n_head"), [(1, 1), (1, 5)])
def test_few_heads_are_drawn(tmp_path, n_layer, n_head):
    small = make_run(tmp_path / "run", attention(n_layer, n_head, 8, 1))
    files = write_figures(small, [result_of(n_layer, n_head, 8, 1)], tmp_path / "figures")
    assert len(files) == 5
    assert "not drawn" not in (tmp_path / "figures" / "figures.csv").read_text()


def test_reporting_imports_neither_plotly_nor_torch():
    code = "import sys, headscape.report; print({'plotly', 'matplotlib', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
