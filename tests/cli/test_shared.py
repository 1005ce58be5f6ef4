"""What the commands share: one bar per stage with an honest total, and three lines at the end."""

import numpy as np
import pytest
from rich.console import Console

import headscape as hs
from headscape.cli import shared
from headscape.cli.shared import Bars, finish
from headscape.studies.work.how import Work
from tiny import attention


def test_each_stage_has_a_bar_of_its_own_whose_total_stays(monkeypatch):
    monkeypatch.setattr(shared, "err", Console(file=open("/dev/null", "w"), force_terminal=True, width=100))  # noqa: SIM115
    bars = Bars("working", quiet=False)
    work = Work(progress=bars)
    totals = []
    for name, total in (("ranking heads", 3), ("measuring", 5)):
        steps = work.stage(name, total)
        for _ in range(total):
            steps.one()
            totals.append([task.total for task in bars._bar.tasks])
    bars.close()
    assert [(t.description, t.completed, t.total) for t in bars._bar.tasks] == [
        ("ranking heads", 3, 3),
        ("measuring", 5, 5),
    ]
    assert totals == [[3]] * 3 + [[3, 5]] * 5
    assert any(type(column).__name__ == "TimeRemainingColumn" for column in bars._bar.columns)


def test_a_command_ends_with_what_was_found_where_to_look_and_what_next(tmp_path, capsys):
    maps = attention(shape=(2, 2, 6, 6))
    maps[0, 0] = np.eye(6, k=-1) + np.eye(6) * (np.arange(6) == 0)
    hs.from_attentions(list(maps), tokens=list("abcabc"), out=tmp_path / "run")
    result = hs.organize(tmp_path / "run")
    finish(result, as_json=False, at="RUN")
    found, look, then = capsys.readouterr().out.splitlines()[-3:]
    assert found.startswith("found  ") and "1 previous token (0.0)" in found
    assert look == "look   headscape report RUN --open"
    assert then.startswith("next   headscape heads RUN --role induction")
    (tmp_path / "run" / "report.html").write_text("")
    finish([result, result], as_json=False, at=tmp_path / "run", brief=True)
    lines = capsys.readouterr().out.splitlines()
    assert (
        len(lines) == 3
        and lines[0].startswith("found  heads: ")
        and lines[1] == f"look   {tmp_path / 'run' / 'report.html'}"
    )


@pytest.mark.parametrize(
    ("text", "line"), [("A is so: because. More.", "A is so"), ("Plain. More", "Plain"), ("x" * 300, "x" * 159 + "…")]
)
def test_a_headline_is_how_the_first_finding_opens(text, line):
    class Said(hs.Result):
        study = title = "said"

        def to_frame(self):
            raise NotImplementedError

        figures = to_frame

        def findings(self):
            return [hs.Finding(text)]

    assert Said().headline() == line
