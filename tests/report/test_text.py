"""Text from strangers is shown and never obeyed."""

import html
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import NASTY
from headscape.report.text import escape, json_for_html, plotly_text, visible


@given(st.text(max_size=200))
def test_visible_text_hides_and_turns_nothing(text):
    shown = visible(text)
    joiner = "\u200d"  # kept between pictographs only
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c != joiner]
    assert len(shown) < 60 * 10 + 40
    shown.encode("utf-8")


@given(st.text(max_size=60))
def test_visible_leaves_plain_text_alone(text):
    plain = "".join(c for c in text if unicodedata.category(c)[0] in "LNPS").strip()
    assert visible(plain) == (plain or "(empty)")


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_for_html_cannot_leave_its_script(value):
    text = json_for_html(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert text.isascii()
    assert json.loads(text) == value


@pytest.mark.parametrize("token", NASTY)
def test_escaped_text_holds_no_tag(token):
    assert html.unescape(escape(token)) == (visible(token.strip(), 4000) if token.strip() else "")
    assert "<" not in escape(token)
    assert '"' not in escape(token)
    assert "<" not in plotly_text(token)
