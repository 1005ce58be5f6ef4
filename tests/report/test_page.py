"""The file itself: whole, the same twice, and closed to the outside."""

from pathlib import Path

import pytest

import headscape.report
from fakes import attention, make_run, result_of
from headscape.report import write_report
from headscape.report.page import SCRIPTS, Page
from headscape.runs import Run


def test_page_is_the_same_twice_and_appears_whole(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", attention())
    first = write_report(run, [result_of(4, 3, everything=True)]).read_bytes()
    again = write_report(run, [result_of(4, 3, everything=True)], tmp_path / "else" / "page.html")
    assert again.read_bytes() == first

    def failing(page):
        raise OSError("the disk is gone")

    monkeypatch.setattr(Page, "html", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        write_report(run, [])
    assert (run.path / "report.html").read_bytes() == first
    assert not list(run.path.glob("*.partial"))


def test_page_asks_for_nothing_outside(tmp_path):
    text = write_report(make_run(tmp_path / "run", attention()), [result_of(4, 3)]).read_text()
    head = text[: text.index("</head>")]
    policy = head[head.index("Content-Security-Policy") :].split('"')[2]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    assert all(source.startswith("'sha256-") for source in rules["script-src"].split())
    assert rules["img-src"] == "data: blob:"
    assert text.count("</script>") == text.count("<script")


def test_a_run_that_captures_nothing_misses_nothing(tmp_path):
    run = Run.create(
        tmp_path / "run", config={"kind": "train"}, inputs={"text": "novels", "bytes": 1234, "sha256": "0"}
    )
    (run.path / "begun").mkdir()
    missing = [("organize", "not run yet"), ("begun", "not finished")]
    html = write_report(run, [result_of(1, 2, 4), *missing]).read_text(encoding="utf-8")
    assert "organize</b> is missing" not in html and "begun</b> is missing" in html
    assert "Attention maps are not shown" not in html and "imported from a file" not in html
    assert "networks made for this study" in html and "text novels; bytes 1,234" in html
    captured = Run.create(tmp_path / "captured", config={"kind": "capture"})
    html = write_report(captured, [result_of(1, 2, 4), *missing]).read_text(encoding="utf-8")
    assert "organize</b> is missing" in html and "Attention maps are not shown" in html


def test_every_script_is_part_of_the_page(tmp_path):
    assets = Path(headscape.report.__file__).parent / "assets"
    assert {path.stem for path in assets.glob("*.js")} == set(SCRIPTS)
    text = write_report(make_run(tmp_path / "run", attention()), [result_of(4, 3)]).read_text()
    at = [text.index((assets / f"{name}.js").read_text()) for name in SCRIPTS]
    assert at == sorted(at)
