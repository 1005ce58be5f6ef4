"""The page and single heads from Python."""

import html
import re

import numpy as np
import pytest

import headscape as hs
from headscape.report.showing import Shown
from tiny import attention

TOKENS = ["The", " cat", " sat", " <b>", " down"]


@pytest.fixture(scope="module")
def captured():
    return hs.from_attentions(list(attention(shape=(2, 3, 5, 5))), tokens=TOKENS)


def test_a_head_knows_its_values_and_tokens(captured):
    X = captured.tensor(0)
    head = X.head(1, 2)
    np.testing.assert_array_equal(np.asarray(head), X.values[:, :, 5])
    assert (head.id, head.key_tokens) == (hs.HeadId("heads", 1, 2), TOKENS)
    assert np.isnan(head.masked[0, 1]) and head.masked[1, 0] == head.values[1, 0]
    assert repr(head) == "AttentionHead(heads.1.2, 5 queries x 5 keys, causal, probs)"
    with pytest.raises(hs.InputError, match=r"no head 2\.0; layers go from 0 to 1"):
        X.head(2, 0)


def test_a_head_shows_a_view_over_a_still(captured):
    shown = hs.show(captured, 1, 2)
    assert isinstance(shown, Shown) and shown == captured.tensor(0).head(1, 2)._repr_html_() == shown._repr_html_()
    assert shown == hs.show(captured.tensor(0), 1, 2)
    outside = re.sub(r'srcdoc="[^"]*"', "", shown)
    assert 'src="data:image/png;base64,' in outside and "<script" not in outside and "<b>" not in outside
    inside = html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])
    assert (
        '"heads":[["heads",1,2]]' in inside
        and "Content-Security-Policy" in inside
        and "plotly" not in inside.lower()[:2000]
    )
    assert len(shown) < 600_000


def test_a_page_of_a_capture_in_memory_and_of_results(captured, tmp_path):
    page = hs.report(captured, tmp_path / "page.html")
    text = page.read_text(encoding="utf-8")
    assert 'id="grid"' in text and "6 heads in 2 layers" in text and "The landscape of heads" in text
    result = hs.organize(captured)
    alone = hs.report(result, tmp_path / "alone.html").read_text(encoding="utf-8")
    assert 'id="grid"' in alone and "maps-0-0" not in alone
    assert 'srcdoc="' in result._repr_html_()
    with pytest.raises(hs.InputError, match="a page is made from a run, a capture or results"):
        hs.report([captured], tmp_path / "x.html")


@pytest.mark.parametrize("n_blocks", [1, 3])
def test_a_run_has_its_page_and_python_writes_the_files_of_the_command(n_blocks, tmp_path):
    from typer.testing import CliRunner

    from headscape.cli import app

    maps = list(attention(shape=(2, 3, 5, 5)))
    given = {f"{name}_attentions": maps for name in ("encoder", "decoder", "cross")} if n_blocks == 3 else maps
    for name in ("python", "command"):
        hs.from_attentions(given, out=tmp_path / name)
    found = hs.organize(tmp_path / "python")
    if n_blocks == 3:
        assert [result.block for result in found] == ["encoder", "decoder", "decoder.cross"]
        assert len(hs.find_heads(found, "first", None)) == 3 * 6
    assert CliRunner().invoke(app, ["organize", str(tmp_path / "command"), "-q"]).exit_code == 0
    files = {
        name: {
            p.relative_to(tmp_path / name): p.read_bytes()
            for p in (tmp_path / name / "organize").rglob("*")
            if p.is_file()
        }
        for name in ("python", "command")
    }
    assert files["python"] == files["command"] and len(files["python"]) > 4
    import headscape.report  # the package of that name does not hide the function

    assert hs.report(tmp_path / "python") == tmp_path / "python" / "report.html"
    assert callable(headscape.report)
