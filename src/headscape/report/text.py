"""Text from outside, made harmless: every character is shown, none is interpreted.

Tokens, file names and model names come from untrusted sources. Control characters, bidirectional overrides and invisible
characters become visible signs, long strings are cut, and text for HTML, JSON or plotly is escaped.
"""

from __future__ import annotations

import html
import json
import re
import unicodedata
from typing import Any

__all__ = ["escape", "is_number", "json_for_html", "number", "plotly_text", "slug", "visible"]

LIMIT = 60  # characters of a token in a label; a reader learns nothing from more
_SIGNS = {"\n": "↵", "\r": "␍", "\t": "⇥", "\x7f": "␡"}
_JOINER = "\u200d"
_NUMBER = re.compile(r"[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|inf|nan)", re.IGNORECASE)


def _joins_emoji(text: str, i: int) -> bool:
    """True for a joiner between two pictographs, where it makes one sign of them."""
    if text[i] != _JOINER or not 0 < i < len(text) - 1:
        return False
    before, after = text[i - 1], text[i + 1]
    return (before == "\ufe0f" or unicodedata.category(before) in ("So", "Sk")) and unicodedata.category(after) == "So"


def visible(text: str, limit: int = LIMIT) -> str:
    r"""Show a string as it is, with what cannot be seen made visible.

    Leading and trailing spaces become "·", a line break "↵"; other control and format characters (among them those
    that change the direction of writing) show their code point; a string over the limit is cut and says its length.

    >>> visible(" cat"), visible("a\nb"), visible("\u202eevil"), visible("")
    ('·cat', 'a↵b', '⟨U+202E⟩evil', '(empty)')
    >>> visible("x" * 10_000, 5)
    'xxxxx… (10000 characters)'
    """
    text = str(text)
    if not text:
        return "(empty)"
    cut = text[:limit]
    inner_start = len(cut) - len(cut.lstrip(" "))
    inner_stop = len(cut.rstrip(" ")) if cut == text else len(cut)
    shown = []
    for i, sign in enumerate(cut):
        category = unicodedata.category(sign)
        if sign == " ":
            shown.append(" " if inner_start <= i < inner_stop else "·")
        elif sign in _SIGNS:
            shown.append(_SIGNS[sign])
        elif category == "Cc" and ord(sign) < 0x20:
            shown.append(chr(0x2400 + ord(sign)))
        elif (category[0] == "C" or category in ("Zl", "Zp")) and not _joins_emoji(cut, i):
            shown.append(f"⟨U+{ord(sign):04X}⟩")
        else:
            shown.append(sign)
    return "".join(shown) + (f"… ({len(text)} characters)" if len(text) > limit else "")


def escape(text: object, limit: int = 4000) -> str:
    """Text for the inside of an HTML element or a quoted attribute.

    >>> escape('<script>alert("x")</script>')
    '&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;'
    """
    stripped = str(text).strip()
    return html.escape(visible(stripped, limit), quote=True) if stripped else ""


def plotly_text(text: object, limit: int = LIMIT) -> str:
    """Text for plotly, which reads tags such as <b> and <a href> in labels; it turns the entities back into signs.

    >>> plotly_text("<b>&")
    '&lt;b&gt;&amp;'
    """
    return html.escape(visible(str(text), limit), quote=False)


def json_for_html(value: Any) -> str:
    r"""JSON that may stand inside a <script type="application/json">: plain ASCII without <, > and &.

    >>> json_for_html({"token": "</script>"})
    '{"token":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def slug(text: str) -> str:
    """Text for an id on the page: letters, digits, - and _."""
    return "".join(sign if sign.isascii() and (sign.isalnum() or sign in "-_") else "-" for sign in text) or "-"


def is_number(cell: object) -> bool:
    """Whether a cell of a table holds a number, or text that spells one.

    >>> is_number(-0.5), is_number("-8.3e-05"), is_number("-cmd"), is_number("1.2 [1, 1.4]"), is_number(True)
    (True, True, False, False, False)
    """
    plain = cell.item() if hasattr(cell, "item") else cell
    return _NUMBER.fullmatch(plain) is not None if isinstance(plain, str) else type(plain) in (int, float)


def number(value: object, digits: int = 3) -> str:
    """A number for people.

    >>> number(0.123456), number(12345.6), number(3), number(float("nan")), number(134515008)
    ('0.123', '12,346', '3', '–', '134,515,008')
    """
    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if value != value:
        return "–"
    if isinstance(value, int) or (abs(value) >= 1000 and abs(value) < 1e9):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"
