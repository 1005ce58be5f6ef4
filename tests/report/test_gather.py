"""Heads of several studies and networks are joined by their place."""

import json
import re

import pandas as pd
import pytest

from fakes import FakeResult, attention, frame_of, head_figures, make_run, result_of
from headscape.report import write_report
from headscape.report.gather import gather
from headscape.results import FigureSpec, Finding
from headscape.tensor import HeadId


class Broken(FakeResult):
    """A study whose figures cannot be computed."""

    def figures(self):
        raise KeyError("coordinates")


def test_a_study_that_fails_is_a_section_with_its_reason(tmp_path):
    run = make_run(tmp_path / "run", attention())
    found = [Finding("This still holds.")]
    text = write_report(run, [Broken(frame_of(4, 3), [], found), result_of(4, 3)]).read_text()
    assert "its figures could not be computed: KeyError: &#x27;coordinates&#x27;" in text
    assert "This still holds." in text
    assert "Map of the heads" in text


def test_heads_of_all_studies_are_joined_by_place():
    heads = [HeadId("decoder", 0, h) for h in range(3)]
    first = frame_of(1, 3)
    second = first.iloc[::-1].assign(gain=[3.0, 2.0, 1.0], flag=[True, False, True])
    scene = gather([FakeResult(first), FakeResult(second)], heads)
    assert scene.heads == heads
    assert scene.sections[1].rows == [2, 1, 0]
    columns = {column.name: column.values for column in scene.columns}
    assert columns["gain (fake#2)"].tolist() == [1.0, 2.0, 3.0]
    assert columns["flag (fake#2)" if "flag (fake#2)" in columns else "flag"] == ["True", "False", "True"]


class Explained(FakeResult):
    """A study that says what one of its scores means."""

    def meanings(self):
        return {"gain": "how much <b>louder</b> the head is " + "than others" * 9}


def test_scores_come_with_their_meaning(tmp_path):
    scene = gather([Explained(frame_of(1, 3))], [HeadId("decoder", 0, h) for h in range(3)])
    about = {column.name: column.about for column in scene.columns}
    assert about["gain"].startswith("how much") and about["entropy"] == ""
    text = write_report(make_run(tmp_path / "run", attention()), [Explained(frame_of(4, 3))]).read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert {c["name"]: c["about"] for c in data["columns"]} == {**about, "role": ""}  # whole, as text


def test_heads_of_two_networks_stay_apart():
    both = pd.concat([frame_of(1, 2).assign(run=run) for run in ("a", "b")])
    scene = gather([FakeResult(both)], [HeadId("decoder", 0, 0)])
    assert [str(head) for head in scene.heads[1:]] == [
        "a: decoder.0.0",
        "a: decoder.0.1",
        "b: decoder.0.0",
        "b: decoder.0.1",
    ]
    assert {column.name for column in scene.columns} == {"entropy", "gain", "role"}


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"batch": [0, 1], "l1": [1.0, 2.0]}),
        pd.concat([frame_of(1, 2), frame_of(1, 2)]),
        frame_of(1, 2).assign(layer="none"),
        frame_of(1, 2).iloc[:0],
    ],
)
def test_tables_that_are_not_of_heads_are_shown_as_tables(tmp_path, frame):
    scene = gather([FakeResult(frame)])
    assert scene.sections[0].rows is None
    assert scene.columns == []
    run = make_run(tmp_path / "run", attention())
    bars = FigureSpec(id="bars", title="Bars", kind="bars", data={"names": ["a"], "values": [1.0]}, read="Look.")
    assert "Bars" in write_report(run, [FakeResult(frame, [bars, *head_figures(1, 2)])]).read_text()
