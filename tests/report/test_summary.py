"""The first screen quotes the input as people read it."""

from fakes import attention, make_run
from headscape.captures import open_capture
from headscape.report.summary import excerpt


def test_word_pieces_are_quoted_as_words(tmp_path):
    pieces = ["[CLS]", "an", "aw", "##ful", "charge", "."]
    run = make_run(tmp_path / "run", attention(1, 1, 6), tokens=pieces)
    run.meta["inputs"]["kind"] = "text"
    assert excerpt(open_capture(run), run.meta["inputs"]) == "[CLS] an awful charge ."
    run = make_run(tmp_path / "other", attention(1, 1, 3), tokens=["An", " aw", "ful"])
    run.meta["inputs"]["kind"] = "text"
    assert excerpt(open_capture(run), run.meta["inputs"]) == "An awful"
