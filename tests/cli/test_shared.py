"""What the commands share: one bar per stage with an honest total, and three lines at the end.

Also tests cli.records.
"""

import numpy as np
import pytest
from rich.console import Console

import headscape as hs
from commands import closing
from headscape.cli import main, shared
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
    finish(result, as_json=False, at=tmp_path / "run")
    found, look, then = closing(capsys.readouterr().out)
    assert "1 previous token (0.0)" in found
    assert look == f"headscape report {tmp_path / 'run'} --open"
    assert (
        then == f"headscape heads {tmp_path / 'run'} --role previous"
    )  # a role it has; nothing to prune without a model
    page = tmp_path / "run" / "report.html"
    finish([result, result], as_json=False, at=tmp_path / "run", page=page, brief=True, beside=["own"], then="rest")
    said = capsys.readouterr().out
    assert len(said.splitlines()) == 4 and said.startswith("own\n")
    found, look, then = closing(said)
    assert found.startswith("heads: ") and (look, then) == (str(page), "rest")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A is so: because. More.", "A is so"),
        ("B; they were C.", "B"),
        ("Plain. More", "Plain"),
        ("x" * 300, "x" * 159 + "…"),
    ],
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


def test_a_name_cannot_command_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["headscape", "report", "\x1b]0;title\x07\x1b[2Jrun"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert "]0;title" in said and not set(said) & set("\x1b\x07\x9b")


def test_a_table_that_is_too_wide_folds_its_cells_and_loses_none_of_them(monkeypatch):
    """Rich shares the width out before it makes room for names that must stay whole."""
    shown = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    monkeypatch.setattr(shared, "out", shown)
    names = ["gaussian.chain_variance", "spectra.energy"]
    rows = [
        [name, "Training lowers the energy of W_q and W_k.", "0.638 [0.137, 1.3] (n = 6)", "does not hold"]
        for name in names
    ]
    shared.print_table("Verdicts", ["claim", "statement", "value", "verdict"], rows)
    text = shown.export_text()
    assert all(name in text for name in names) and max(map(len, text.splitlines())) <= 80
    folded = "".join(text.split())
    for cell in rows[0][1:]:
        assert all(folded.count(word) >= len(rows) for word in cell.split())
