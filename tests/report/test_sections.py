"""How the figures of a study are laid out."""

from fakes import result_of
from headscape.report import write_report
from headscape.results import FigureSpec
from headscape.runs import Run


def test_a_table_too_wide_for_half_a_page_takes_the_whole(tmp_path):
    run = Run.create(tmp_path / "run", config={"kind": "train"})

    def page_of(n_column):
        spec = FigureSpec(
            id="t",
            title="T",
            kind="table",
            data={"columns": ["a column"] * n_column, "rows": [["x"] * n_column]},
            read="Look.",
        )
        result = result_of(1, 2, 4)
        result.shown[:] = [spec]
        return write_report(run, [result]).read_text(encoding="utf-8")

    assert 'class="card table-card wide"' in page_of(9)
    assert 'class="card table-card "' in page_of(3)  # not of class table, whose height is limited: the caption would go
