"""The prompt of the few-shot study: a table of words and clues, the text made from it, and where each token belongs."""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError

__all__ = ["Entry", "Layout", "Text", "chat_text", "choose_shots", "find_entry", "lay_out", "plain_text", "read_table"]

COLUMNS = ("word", "clue", "category")
CONTENT = ("word", "clue", "target", "answer")
"""Segments with content; the others are the instruction and separators."""
END = "#"
"""Closes a clue."""


class Entry(NamedTuple):
    """One row of a table."""

    word: str
    clue: str
    category: str


def read_table(path: str | Path | None = None) -> list[Entry]:
    """Read a CSV with columns word, clue and category (others are ignored); the table of the package by default.

    Raises an `InputError` for a file that is missing, lacks a column, or has a line without word or clue.
    """
    place = files("headscape") / "data" / "words.csv" if path is None else Path(path)
    if not place.is_file():
        raise InputError(f"no table {str(path)!r}")
    try:
        reader = csv.DictReader(io.StringIO(place.read_text(encoding="utf-8-sig"), newline=""))
        lines = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}") from None
    found = [str(name).strip().lower() for name in reader.fieldnames or ()]
    missing = [column for column in COLUMNS if column not in found]
    if missing:
        raise InputError(
            f"{path} has no column {missing[0]!r} (it has {', '.join(found) or 'no lines'}); "
            f"the first line must name {', '.join(COLUMNS)}"
        )
    if not lines:
        raise InputError(f"{path} has no row below its column names")
    entries = []
    for number, line in enumerate(lines, start=2):
        plain = {str(key).strip().lower(): str(value or "").strip() for key, value in line.items()}
        entry = Entry(*(plain[column] for column in COLUMNS))
        if not entry.word or not entry.clue:
            raise InputError(f"line {number} of {path} has no {'word' if not entry.word else 'clue'}")
        entries.append(entry)
    return entries


def find_entry(table: Sequence[Entry], word: str) -> Entry:
    """The entry of a word, in any case; an unknown word is an `InputError` that suggests the nearest."""
    by_name = {entry.word.casefold(): entry for entry in table}
    found = by_name.get(word.strip().casefold())
    if found is None:
        near = difflib.get_close_matches(word.strip().casefold(), list(by_name), n=3, cutoff=0.0)
        offered = ", ".join(by_name[name].word for name in near)
        raise InputError(f"the word {word!r} is not in the table of {len(table)} words; the nearest are {offered}")
    return found


def choose_shots(table: Sequence[Entry], target: Entry, shots: int, random_state: int = 0) -> list[Entry]:
    """Examples of the target's category without the target, drawn by random_state and target."""
    if shots < 0:
        raise InputError(f"shots are at least 0, not {shots}")
    others = [e for e in table if e.category == target.category and e.word.casefold() != target.word.casefold()]
    if shots > len(others):
        raise InputError(
            f"{shots} shots were requested; the table has {len(others)} words in {target.category!r} besides {target.word!r}"
        )
    rng = np.random.default_rng([random_state, *target.word.encode()])
    return [others[i] for i in rng.choice(len(others), shots, replace=False)]


@dataclass(frozen=True)
class Text:
    """A text and its spans: (start, end, segment, shot), in order and without overlap.

    Segments are context, word, clue, target, answer and separator; shots (examples) are counted from 0, the target is
    the last, and the context has -1.
    """

    text: str
    spans: tuple[tuple[int, int, str, int], ...]

    def with_answer(self, answer: str) -> Text:
        """The text followed by an answer, which belongs to the target."""
        last = self.spans[-1][3]
        spans = (*self.spans, (len(self.text), len(self.text) + len(answer), "answer", last))
        return Text(self.text + answer, spans) if answer else self


def _instruction(category: str) -> str:
    return (
        f"You write crossword clues for words of the category {category}. For each word give one short clue that does "
        f"not contain it, and mark its end with {END}"
    )


def plain_text(target: Entry, shots: Sequence[Entry]) -> Text:
    """The prompt as lines of Word: and Clue:, for any model; it ends where the target's clue should begin."""
    pieces = [(_instruction(target.category), "context", -1)]
    for i, shot in enumerate(shots):
        pieces += [("\n\nWord:", "separator", i), (f" {shot.word}", "word", i), ("\nClue:", "separator", i)]
        pieces += [(f" {shot.clue}", "clue", i), (END, "separator", i)]
    last = len(shots)
    pieces += [("\n\nWord:", "separator", last), (f" {target.word}", "target", last)]
    pieces += [("\nClue:", "separator", last)]
    spans, start = [], 0
    for text, segment, number in pieces:
        spans.append((start, start + len(text), segment, number))
        start += len(text)
    return Text("".join(text for text, _, _ in pieces), tuple(spans))


def chat_text(tokenizer: Any, target: Entry, shots: Sequence[Entry]) -> Text:
    """The prompt as a conversation in the model's chat template, as in Wertich (2024).

    Raises an `InputError` when there is no template, or when it changes words or clues.
    """
    from headscape.attention.inputs import as_chat

    turns = [("user", _instruction(target.category)), ("assistant", "Ok")]
    for shot in shots:
        turns += [("user", f"Word: {shot.word}"), ("assistant", f"{shot.clue}{END}")]
    turns.append(("user", f"Word: {target.word}"))
    text = as_chat(tokenizer, turns)
    wanted = [(part, segment, i) for i, e in enumerate(shots) for part, segment in ((e.word, "word"), (e.clue, "clue"))]
    wanted.append((target.word, "target", len(shots)))
    spans: list[tuple[int, int, str, int]] = []
    cursor = text.find(turns[1][1], text.find(turns[0][1]) + len(turns[0][1]))
    spans.append((0, max(cursor, 0), "context", -1))
    for part, segment, number in wanted:
        start = text.find(part, cursor)
        if cursor < 0 or start < 0:
            raise InputError(f"the chat template of this model changes {part!r}; leave out --chat")
        spans += [(spans[-1][1], start, "separator", number), (start, start + len(part), segment, number)]
        cursor = start + len(part)
    spans.append((cursor, len(text), "separator", len(shots)))
    return Text(text, tuple(spans))


@dataclass(frozen=True)
class Layout:
    """What each token is: display string, segment, shot (-1 in the context), and the number of its word."""

    tokens: list[str]
    segments: list[str]
    shots: npt.NDArray[np.int64]
    words: npt.NDArray[np.int64]

    @property
    def content(self) -> npt.NDArray[np.bool_]:
        """Which tokens belong to words and clues."""
        return np.array([segment in CONTENT for segment in self.segments])

    @property
    def n_words(self) -> int:
        """How many words there are."""
        return int(self.words[-1]) + 1

    def word_strings(self) -> list[str]:
        """The words as text."""
        joined = [""] * self.n_words
        for token, word in zip(self.tokens, self.words, strict=True):
            joined[word] += token
        return [word.strip() or repr(word)[1:-1] for word in joined]

    def content_words(self) -> npt.NDArray[np.bool_]:
        """Which words belong to words and clues, punctuation excluded."""
        kept = np.zeros(self.n_words, dtype=bool)
        kept[self.words[self.content]] = True
        spelled = np.array([any(sign.isalnum() for sign in word) for word in self.word_strings()], dtype=bool)
        return np.asarray(kept & spelled)


def lay_out(text: Text, offsets: Sequence[tuple[int, int]], special: Sequence[str] = ()) -> Layout:
    """Assign every token its segment and word, from the characters (start, end) it covers.

    Tokens that cover none, (i, i), are special tokens outside of the text; `special` are their names, in order. A token
    belongs to the span that holds most of its letters. A new word begins at a space, at another span, and before and
    after punctuation.
    """
    tokens, segments, shots, words = [], [], [], []
    number, before = -1, ("", -2, True)
    names = iter(special)
    for start, end in offsets:
        piece = text.text[start:end]
        inner = piece.strip()
        first = start + (piece.find(inner) if inner else 0)
        span = _span_at(text, first, first + len(inner or piece))
        segment, shot = ("start", -1) if start == end else span
        apart = not inner or not inner[:1].isalnum() or segment == "start"
        opens = apart or piece[:1].isspace() or before[2] or (segment, shot) != before[:2]
        number += bool(opens)
        before = (segment, shot, apart or piece[-1:].isspace())
        tokens.append(next(names, "") if start == end else piece)
        segments.append(segment)
        shots.append(shot)
        words.append(number)
    return Layout(tokens, segments, np.array(shots, dtype=np.int64), np.array(words, dtype=np.int64))


def _span_at(text: Text, start: int, end: int) -> tuple[str, int]:
    best, most = ("separator", -1), 0
    for a, b, segment, shot in text.spans:
        shared = min(b, end) - max(a, start)
        if shared > most:
            best, most = (segment, shot), shared
    return best
