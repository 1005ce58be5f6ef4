import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import headscape as hs
from headscape.attention.inputs import ImagePreparation, Prompts, cut_windows, read_images, read_texts
from tiny import Letters


class Framed(Letters):
    """Adds a first and a last token, and has a chat template."""

    chat_template = "yes"

    def encode(self, text, add_special_tokens=True, verbose=True):
        body = [10 + ord(c) for c in text]
        return [1, *body, 2] if add_special_tokens else body

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return f"<{messages[0]['content']}>:"


@given(st.lists(st.text(alphabet="abc", max_size=40), min_size=1, max_size=5), st.integers(4, 9))
def test_windows_are_disjoint_and_cover_the_text(texts, tokens):
    body = tokens - 2
    if not any(len(text) >= body for text in texts):
        with pytest.raises(hs.InputError, match="a window needs"):
            cut_windows(texts, Framed(), tokens, None)
        return
    windows = cut_windows(texts, Framed(), tokens, None)
    assert all(len(ids) == tokens and ids[0] == 1 and ids[-1] == 2 for ids in windows.ids)
    rebuilt = {}
    for ids, (number, start) in zip(windows.ids, windows.origins, strict=True):
        rebuilt.setdefault(number, {})[start] = "".join(chr(i - 10) for i in ids[1:-1])
    for number, parts in rebuilt.items():
        joined = "".join(parts[start] for start in sorted(parts))
        assert joined == texts[number][: len(texts[number]) // body * body]


def test_the_choice_is_seeded_and_more_batches_extend_it():
    text = ["abcdefghij" * 20]
    one, same, more, other = (cut_windows(text, Letters(), 5, n, seed=s) for n, s in ((6, 0), (6, 0), (9, 0), (6, 1)))
    assert one.origins == same.origins == more.origins[:6] and len(set(more.origins)) == 9
    assert one.sha256 == more.sha256 == other.sha256  # of all windows: the same text
    assert one.origins != other.origins and one.n_available == 40
    assert cut_windows(text, Letters(), 5, None).origins == sorted(cut_windows(text, Letters(), 5, 40).origins)


def test_a_chat_template_that_fails_is_one_line(monkeypatch):
    def fails(*_, **__):
        raise SyntaxError("a stranger's program\nof two lines")

    monkeypatch.setattr(Framed, "apply_chat_template", fails)
    with pytest.raises(hs.InputError, match="chat template of this model fails: a stranger's program; leave out"):
        cut_windows(["abcdef"], Framed(), 6, None, chat=True)


def test_chat_template_frames_every_window():
    windows = cut_windows(["abcdef"], Framed(), 6, None, chat=True)
    assert [list(w) for w in windows.ids] == [
        [ord(c) + 10 for c in "<abc>:"],
        [ord(c) + 10 for c in "<def>:"],
    ]


def test_a_prefix_the_tokenizer_forgets_is_put_first():
    windows = cut_windows(["abcd"], Letters(), 3, None, prefix=(7,))
    assert [w[0] for w in windows.ids] == [7, 7]


def test_texts_from_files_and_folders(tmp_path):
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.md").write_text("first")
    (tmp_path / "c.bin").write_bytes(b"\0")
    assert read_texts(tmp_path) == ["first", "second"]
    assert read_texts(tmp_path / "b.txt") == ["second"]
    assert read_texts(["one", "two"]) == ["one", "two"]


def test_texts_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "folder").mkdir()
    for inputs, message in [
        (tmp_path / ("folder" * 15) / "nope.txt", "folder/nope.txt'; give a path that exists$"),
        ("./" + "folder" * 15 + "/nope.txt", r"\.\.\.\w*folder/nope.txt'; give a path that exists, or the text"),
        ("./" + "x" * 50, "no file or folder"),
        (tmp_path / "latin.txt", r"not UTF-8 text \(byte 3\)"),
        (tmp_path / "empty.txt", "the text is empty: .*empty.txt"),
        ([""], "the text is empty"),
        (tmp_path / "folder", "holds no text files"),
        ([3], "text 0 is a int"),
    ]:
        with pytest.raises(hs.InputError, match=message):
            read_texts(inputs)


def test_a_string_that_names_no_file_is_a_prompt():
    for text in ("x" * 5000, "and/or is no path", "A sentence."):
        assert read_texts(text) == Prompts([text])


GREY = ImagePreparation(4, 6, 1, (0.25,), (0.5,))


def test_images_are_scaled_and_normalised():
    array = np.arange(24, dtype=np.uint8).reshape(1, 4, 6) * 10
    prepared = read_images(array, GREY).pixels
    np.testing.assert_allclose(prepared[0, 0], (array[0] / 255 - 0.25) / 0.5, atol=1e-6)
    np.testing.assert_allclose(read_images(array / 255, GREY).pixels, prepared, atol=1e-6)


def test_image_files_are_read_alike(tmp_path):
    array = np.arange(48, dtype=np.uint8).reshape(2, 4, 6) * 5
    for i, picture in enumerate(array):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    np.testing.assert_array_equal(read_images(tmp_path, GREY).pixels, read_images(array, GREY).pixels)
    np.savez(tmp_path / "set.npz", images=array, labels=[3, 4])
    loaded = read_images(tmp_path / "set.npz", GREY)
    assert list(loaded.labels) == [3, 4]


def test_images_that_do_not_fit(tmp_path):
    Image.new("L", (9, 9)).save(tmp_path / "large.png")
    (tmp_path / "no.png").write_text("cannot identify image")
    for inputs, message in [
        (np.zeros((2, 5, 6)), r"shape \(2, 5, 6\), the model takes \(n, 4, 6, 1\)"),
        (np.zeros((2, 4, 6, 3)), "the model takes"),
        (np.zeros((0, 4, 6)), "no images given"),
        (tmp_path / "large.png", "9 x 9 pixels, the model takes 6 x 4"),
        (tmp_path / "no.png", "cannot identify image"),
        (tmp_path / "missing", "no file or folder"),
        ((np.zeros((2, 4, 6)), [1]), "1 labels for 2 images"),
    ]:
        with pytest.raises(hs.InputError, match=message):
            read_images(inputs, GREY)


def test_samples_are_two_disjoint_parts_of_real_size():
    rank, judge = hs.sample_text("rank"), hs.sample_text("judge")
    assert len(rank) > 200_000 and len(judge) > 200_000
    sentences = {s.strip() for s in rank.split(".") if len(s) > 40}
    assert not sentences & {s.strip() for s in judge.split(".")}
    images, labels = hs.sample_images()
    assert images.shape == (256, 28, 28) and set(labels) == set(range(10))
    with pytest.raises(hs.InputError, match="parts 'rank' and 'judge'"):
        hs.sample_text("test")
