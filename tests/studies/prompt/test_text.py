"""The prompt of the few-shot study: the table, the text and what its tokens are."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headscape as hs
from headscape.studies.prompt.text import Entry, chat_text, choose_shots, find_entry, lay_out, plain_text, read_table

TABLE = read_table()
ANT = find_entry(TABLE, "Ant")
SHOTS = choose_shots(TABLE, ANT, 3)


def test_the_table_of_the_package():
    assert len(TABLE) >= 60 and len({e.category for e in TABLE}) == 3
    assert len({e.word.casefold() for e in TABLE}) == len(TABLE)
    for word, clue, _ in TABLE:
        assert word.casefold() not in clue.casefold().rstrip(".").split() and "#" not in clue and clue.endswith(".")


def test_any_csv_with_the_columns_is_read(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text('\ufeffCategory, Clue ,note,word\nsea,"Salty, and wide.",x,Ocean\n', encoding="utf-8")
    assert read_table(file) == [Entry("Ocean", "Salty, and wide.", "sea")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("word,category\nOcean,sea\n", r"no column 'clue' \(it has word, category\); the first line must name word"),
        ("", "no column 'word'"),
        ("word,clue,category\n", "no row below its column names"),
        ("word,clue,category\nOcean,,sea\n", "line 2 .* has no clue"),
        ("word,clue,category\nA,b,c\n,b,c\n", "line 3 .* has no word"),
        (b"word,clue,category\n\xff,b,c\n", "not a CSV file in UTF-8"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, content, message):
    file = tmp_path / "bad.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(hs.InputError, match=message):
        read_table(file)
    with pytest.raises(hs.InputError, match="no table"):
        read_table(tmp_path / "nothing.csv")


def test_words_and_their_shots():
    assert find_entry(TABLE, " aNT") == ANT
    with pytest.raises(hs.InputError, match="'Antt' is not in the table of .* nearest are Ant"):
        find_entry(TABLE, "Antt")
    n = sum(e.category == ANT.category for e in TABLE) - 1
    every = choose_shots(TABLE, ANT, n)
    assert ANT not in every and len(set(every)) == n and {e.category for e in every} == {"animals"}
    assert SHOTS == choose_shots(TABLE, ANT, 3) != choose_shots(TABLE, ANT, 3, random_state=1)
    with pytest.raises(
        hs.InputError, match=rf"{n + 1} shots were requested; the table has {n} words in 'animals' besides 'Ant'"
    ):
        choose_shots(TABLE, ANT, n + 1)
    with pytest.raises(hs.InputError, match="at least 0"):
        choose_shots(TABLE, ANT, -1)


def test_the_prompt_and_its_spans():
    text = plain_text(ANT, SHOTS).with_answer(" Small.")
    assert text.text.endswith("\n\nWord: Ant\nClue: Small.")
    assert [a for a, _, _, _ in text.spans[1:]] == [b for _, b, _, _ in text.spans[:-1]]
    assert (text.spans[0][0], text.spans[-1][1]) == (0, len(text.text))
    said = {(s, n): text.text[a:b].strip() for a, b, s, n in text.spans if s != "separator"}
    for i, shot in enumerate(SHOTS):
        assert said["word", i] == shot.word and said["clue", i] == shot.clue
    assert said["target", 3] == "Ant" and said["answer", 3] == "Small."
    assert ANT.clue not in text.text
    bare = plain_text(ANT, [])
    assert {segment for _, _, segment, _ in bare.spans} == {"context", "separator", "target"}


class Chat:
    """A template like Mistral's."""

    chat_template = "yes"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return "".join(f"[INST] {m['content']} [/INST]" if m["role"] == "user" else m["content"] for m in messages)


def test_the_prompt_as_a_conversation():
    text = chat_text(Chat(), ANT, SHOTS)
    assert text.text.endswith("[INST] Word: Ant [/INST]") and "#[INST]" in text.text
    assert [text.text[a:b] for a, b, s, _ in text.spans if s in ("word", "target")] == [*(e.word for e in SHOTS), "Ant"]
    assert [text.text[a:b] for a, b, s, _ in text.spans if s == "clue"] == [e.clue for e in SHOTS]
    Chat.chat_template = None
    with pytest.raises(hs.InputError, match="no chat template"):
        chat_text(Chat(), ANT, SHOTS)
    Chat.chat_template = "yes"

    class Loud(Chat):
        def apply_chat_template(self, *args, **options):
            return super().apply_chat_template(*args, **options).upper()

    with pytest.raises(hs.InputError, match="changes"):
        chat_text(Loud(), ANT, SHOTS)


@given(seed=st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_tokens_are_told_where_they_belong(seed):
    """Cut anywhere: tokens lie in the span with most of their letters, words do not cross spans or blanks."""
    text = plain_text(ANT, SHOTS)
    rng = np.random.default_rng(seed)
    cuts = [0, *np.sort(rng.choice(np.arange(1, len(text.text)), 90, replace=False)).tolist(), len(text.text)]
    offsets = [(0, 0), *itertools.pairwise(cuts)]
    layout = lay_out(text, offsets, ["<s>"])
    assert layout.tokens[0] == "<s>" and layout.segments[0] == "start"
    owner = np.full(len(text.text), -1)
    for k, (a, b, _, _) in enumerate(text.spans):
        owner[a:b] = k
    for (a, b), segment, shot in list(zip(offsets, layout.segments, layout.shots, strict=True))[1:]:
        inner = text.text[a:b].strip()
        a += text.text[a:b].find(inner) if inner else 0
        counts = np.bincount(owner[a : a + len(inner or text.text[a:b])], minlength=len(text.spans))
        best = text.spans[int(counts.argmax())]
        assert (segment, shot) == best[2:] or counts[
            [s[2:] == (segment, shot) for s in text.spans]
        ].max() == counts.max()
    assert (np.diff(layout.words) >= 0).all() and (np.diff(layout.words) <= 1).all()
    for w in range(layout.n_words):
        inside = np.flatnonzero(layout.words == w)
        assert len({(layout.segments[i], int(layout.shots[i])) for i in inside}) == 1
        assert all(not layout.tokens[i][:1].isspace() for i in inside[1:])


def test_words_are_put_together_from_tokens():
    text = plain_text(Entry("Hippopotamus", "x.", "animals"), [Entry("Ant", "It is small, you know.", "animals")])
    start = text.text.index(" Ant")
    pieces = [" An", "t", "\n", "Clue", ":", " It", " is", " sma", "ll", ",", " you", " know", ".#"]
    offsets, at = [], start
    for piece in pieces:
        assert text.text[at : at + len(piece)] == piece
        offsets.append((at, at + len(piece)))
        at += len(piece)
    layout = lay_out(text, offsets)
    assert layout.word_strings() == ["Ant", r"\n", "Clue", ":", "It", "is", "small", ",", "you", "know", ".#"]
    kept = [word for word, keep in zip(layout.word_strings(), layout.content_words(), strict=True) if keep]
    assert kept == ["Ant", "It", "is", "small", "you", "know"]
