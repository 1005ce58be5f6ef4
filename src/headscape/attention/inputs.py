"""Inputs of a model: texts cut into windows of tokens, images prepared as the model expects them."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headscape.checks import check_finite
from headscape.errors import InputError
from headscape.storage import foreign_file, read_json

__all__ = [
    "ImagePreparation",
    "Images",
    "Prompts",
    "Windows",
    "as_chat",
    "chosen_of",
    "cut_windows",
    "frame_of",
    "read_images",
    "read_labelled",
    "read_texts",
    "sample_images",
    "sample_text",
    "whole_texts",
]

TEXT_ENDINGS = (".txt", ".md", ".text")
MANY_CLASSES = 100_000
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")


def sample_text(part: Literal["rank", "judge"] = "rank") -> str:
    """English prose shipped with headscape, in two parts that share no sentence: one to rank on, one to judge on.

    >>> rank, judge = hs.sample_text("rank"), hs.sample_text("judge")
    >>> len(rank) > 10_000 and not set(rank.split(". ")) & set(judge.split(". "))
    True
    """
    if part not in ("rank", "judge"):
        raise InputError(f"the sample text has parts 'rank' and 'judge', not {part!r}")
    return (files("headscape") / "data" / "text" / f"{part}.txt").read_text(encoding="utf-8")


def sample_images() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """256 Fashion-MNIST test images (256, 28, 28) with their labels.

    >>> images, labels = hs.sample_images()
    >>> images.shape, images.dtype, len(set(labels))
    ((256, 28, 28), dtype('uint8'), 10)
    """
    with (files("headscape") / "data" / "fashion-mnist-256.npz").open("rb") as file, np.load(file) as loaded:
        return loaded["images"], loaded["labels"].astype(np.int64)


def _files_of(folder: Path, endings: tuple[str, ...], what: str) -> list[Path]:
    found = sorted(p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in endings)
    if not found:
        raise InputError(f"{folder} holds no {what} ({', '.join(endings)})")
    return found


class Prompts(list[str]):
    """Texts that are each shown whole, at their own length."""


def _path_of(text: str | Path) -> Path | None:
    """The file or folder that a string names, None for a text; a missing one is an `InputError`."""
    path = Path(text)
    try:
        if path.exists():
            return path
    except (OSError, ValueError):  # too long to be a file name, or with a zero byte
        return None
    shown = str(text)
    like_a_path = shown.startswith(("/", "./", "../", "~")) or ("/" in shown and not re.search(r"\s", shown))
    if isinstance(text, Path) or like_a_path or path.suffix.lower() in (*TEXT_ENDINGS, *IMAGE_ENDINGS, ".npz"):
        ways = "" if isinstance(text, Path) else ", or the text itself in a list: [text]"
        if ways and len(shown) > 80:  # it may be a text, which can be long; the end of a path names the file
            shown = f"{shown[:38]}...{shown[-38:]}"
        raise InputError(f"no file or folder {shown!r}; give a path that exists{ways}")
    return None


def read_texts(inputs: str | Path | Sequence[str]) -> list[str]:
    """Texts from a sentence, a list of strings, one text file, or a folder of text files.

    A single string is a path when such a file or folder exists, and is refused when it looks like one (a separator, a
    known ending) and does not; any other is a prompt.
    """
    path = _path_of(inputs) if isinstance(inputs, (str, Path)) else None
    if isinstance(inputs, (str, Path)):
        if path is None:
            texts: list[str] = Prompts([str(inputs)])
        else:
            paths = [path] if path.is_file() else _files_of(path, TEXT_ENDINGS, "text files")
            texts = [_read_text(p) for p in paths]
    else:
        texts = inputs if isinstance(inputs, Prompts) else list(inputs)
        for i, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"text {i} is a {type(text).__name__}, not a string")
    if not any(text.strip() for text in texts):
        raise InputError("the text is empty" if path is None else f"the text is empty: {path}")
    return texts


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start}); convert it first") from None


@dataclass(frozen=True)
class Windows:
    """Contexts to run: token ids, and where each came from."""

    ids: list[npt.NDArray[np.int64]]
    origins: list[tuple[int, int]]  # (text, first token within it)
    n_available: int
    sha256: str  # of the token ids of all windows, chosen or not


def as_chat(tokenizer: Any, turns: Sequence[tuple[str, str]]) -> str:
    """Turns (role, text) in the chat template of a model, an untrusted program: `InputError` if it fails."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError("this model has no chat template; leave out --chat")
    messages = [{"role": role, "content": text} for role, text in turns]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # whatever a template does, which runs in a sandbox
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"the chat template of this model fails: {said}; leave out --chat") from None


def frame_of(tokenizer: Any, chat: bool, prefix: Sequence[int]) -> tuple[list[int], list[int]]:
    """Ids the tokenizer (or its chat template) puts before and after a text."""
    probe = "x"
    body = tokenizer.encode(probe, add_special_tokens=False)
    if chat:
        before, _, after = as_chat(tokenizer, [("user", probe)]).rpartition(probe)
        whole = [tokenizer.encode(part, add_special_tokens=False) for part in (before, after)]
        return whole[0], whole[1]
    whole = tokenizer.encode(probe, add_special_tokens=True)
    for start in range(len(whole) - len(body) + 1):
        if whole[start : start + len(body)] == body:
            before, after = whole[:start], whole[start + len(body) :]
            missing = [i for i in prefix if i not in before]
            return [*missing, *before], after
    raise InputError("the tokenizer changes a text when it adds its special tokens; headscape cannot cut windows")


def cut_windows(
    texts: Sequence[str],
    tokenizer: Any,
    tokens: int,
    batches: int | None,
    *,
    seed: int = 0,
    chat: bool = False,
    keep_short: bool = False,
    prefix: Sequence[int] = (),
) -> Windows:
    """Cut texts into disjoint windows of `tokens` tokens, special tokens included, and choose `batches` of them.

    The choice is the beginning of a seeded shuffle; None takes all in reading order. With `keep_short` a text shorter than one window is
    kept at its own length; otherwise only whole windows count. Nothing is padded.
    """
    before, after = frame_of(tokenizer, chat, prefix)
    body = tokens - len(before) - len(after)
    if body < 1:
        raise InputError(f"a window of {tokens} tokens has no room after {len(before) + len(after)} special tokens")
    cut: list[tuple[int, int, list[int]]] = []
    longest = 0
    for number, text in enumerate(texts):
        ids = tokenizer.encode(text, add_special_tokens=False, verbose=False)
        longest = max(longest, len(ids))
        starts = range(0, len(ids) - body + 1, body)
        cut += [(number, start, ids[start : start + body]) for start in starts]
        if keep_short and ids and not starts:
            cut.append((number, 0, ids))
    total = len(before) + len(after)
    if not cut:
        raise InputError(
            f"the longest text has {longest + total} tokens, a window needs {tokens}; lower tokens to "
            f"{longest + total} or less, or give short texts as prompts (--prompt; in Python a list of them)"
        )
    if batches is not None and batches > len(cut):
        raise InputError(
            f"the text gives {len(cut)} windows of {tokens} tokens, {batches} batches were requested; "
            f"lower batches to {len(cut)}, shorten the windows or give more text"
        )
    rows = [cut[i] for i in chosen_of(len(cut), batches, seed)]
    whole = [np.array([*before, *ids, *after], dtype=np.int64) for _, _, ids in rows]
    content = hashlib.sha256(b"".join(np.array(ids, dtype=np.int64).tobytes() for _, _, ids in cut)).hexdigest()
    return Windows(whole, [(number, start) for number, start, _ in rows], len(cut), content)


def whole_texts(
    texts: Sequence[str], tokenizer: Any, tokens: int, *, chat: bool = False, prefix: Sequence[int] = ()
) -> Windows | None:
    """Every text whole, at its own length; None if one has more than `tokens` tokens, refused if these are `Prompts`."""
    before, after = frame_of(tokenizer, chat, prefix)
    ids = [[*before, *tokenizer.encode(t, add_special_tokens=False, verbose=False), *after] for t in texts]
    for i, (text, found) in enumerate(zip(texts, ids, strict=True)):
        if len(found) > tokens:
            if not isinstance(texts, Prompts):
                return None
            raise InputError(f"prompt {i + 1} has {len(found)} tokens, more than {tokens}; raise tokens or shorten it")
        if not text.strip():
            raise InputError(f"prompt {i + 1} is empty")
    arrays = [np.array(found, dtype=np.int64) for found in ids]
    content = hashlib.sha256(b"".join(len(a).to_bytes(8, "big") + a.tobytes() for a in arrays)).hexdigest()
    return Windows(arrays, [(i, 0) for i in range(len(arrays))], len(arrays), content)


def chosen_of(n: int, batches: int | None, seed: int) -> npt.NDArray[np.intp]:
    """Which of n inputs to use, as the first `batches` of a seeded shuffle: more of them extend the choice.

    None takes all, in their own order.

    >>> [int(i) for i in chosen_of(10, 2, 0)] == [int(i) for i in chosen_of(10, 5, 0)][:2]
    True
    """
    return np.arange(n) if batches is None else np.random.default_rng(seed).permutation(n)[:batches]


@dataclass(frozen=True)
class ImagePreparation:
    """How a vision model wants its images: size, channels, scale, mean and standard deviation per channel."""

    height: int
    width: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    rescale: float = 1 / 255
    resize: bool = False  # whether image files of another size are brought to this one

    @classmethod
    def from_folder(cls, folder: Path, config: Any) -> ImagePreparation:
        """Read preprocessor_config.json; what it leaves out comes from the model's config."""
        file = folder / "preprocessor_config.json"
        said = read_json(file) if file.is_file() else {}
        side = config.image_size
        height, width = (side, side) if isinstance(side, int) else side
        channels = config.num_channels
        return cls(
            height,
            width,
            channels,
            tuple(said.get("image_mean", [0.5] * channels)),
            tuple(said.get("image_std", [0.5] * channels)),
            said.get("rescale_factor", 1 / 255),
            bool(said.get("do_resize", True)),
        )

    def read(self, path: Path) -> npt.NDArray[np.uint8]:
        """One image file as (height, width, channels)."""
        from PIL import Image

        with foreign_file(path), Image.open(path) as opened:
            if opened.size != (self.width, self.height) and not self.resize:
                raise InputError(
                    f"{path} is {opened.width} x {opened.height} pixels, the model takes {self.width} x {self.height}"
                )
            image = opened.convert("L" if self.channels == 1 else "RGB")
            if image.size != (self.width, self.height):
                image = image.resize((self.width, self.height), Image.Resampling.BILINEAR)
            return np.asarray(image, dtype=np.uint8).reshape(self.height, self.width, self.channels)

    def prepare(self, images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Images (n, height, width[, channels]) of bytes, or of floats in [0, 1], as (n, channels, height, width)."""
        x = np.asarray(images)
        if x.dtype.kind not in "uif":
            raise InputError(f"images are numbers, bytes or floats in [0, 1], not {x.dtype}")
        if x.ndim == 3:
            x = x[..., None]
        wanted = (self.height, self.width, self.channels)
        if x.ndim != 4 or x.shape[1:] != wanted:
            raise InputError(
                f"images have shape {np.shape(images)}, the model takes (n, {', '.join(map(str, wanted))})"
            )
        check_finite(x, ("image", "row", "column", "channel"))
        scaled = x.astype(np.float32) * (self.rescale if x.dtype.kind in "ui" else 1.0)
        normal = (scaled - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(normal.transpose(0, 3, 1, 2), dtype=np.float32)


@dataclass(frozen=True)
class Images:
    """Prepared images (n, channels, height, width), their originals, and labels where known."""

    pixels: npt.NDArray[np.float32]
    names: list[str]
    labels: npt.NDArray[np.int64] | None = None


def read_labelled(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an .npz file: `images`, where it has them `labels`, and the same that begin with `test_`."""
    with foreign_file(path):
        if not zipfile.is_zipfile(path):
            raise InputError(f"{path} cannot be read: it is not an .npz file")
        with np.load(path, allow_pickle=False) as loaded:
            names = {f"{part}{name}" for part in ("", "test_") for name in ("images", "labels")}
            found = {name: loaded[name] for name in loaded.files if name in names}
            if "images" not in found:
                raise InputError(f"{path} has no array 'images', only {', '.join(loaded.files)}")
    for part in ("", "test_"):
        if f"{part}images" in found:
            _check_labelled(path, found[f"{part}images"], found.get(f"{part}labels"))
    return found


def _check_labelled(path: Path, images: npt.NDArray[Any], labels: npt.NDArray[Any] | None) -> None:
    if images.ndim not in (3, 4) or not images.size or images.dtype.kind not in "uif":
        raise InputError(
            f"{path} needs images (n, height, width[, channels]) of numbers, not {images.shape} {images.dtype}"
        )
    if labels is not None and (labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]):
        raise InputError(f"{path} needs one whole number per image as labels, not {labels.shape} {labels.dtype}")
    if labels is not None and not 0 <= labels.min() <= labels.max() < MANY_CLASSES:
        raise InputError(f"{path} has labels from {labels.min()} to {labels.max()}; they count classes from 0")


def read_images(inputs: Any, preparation: ImagePreparation) -> Images:
    """Images from an array, an (array, labels) pair, one image file, an .npz with images and labels, or a folder."""
    labels = None
    if isinstance(inputs, (str, Path)):
        path = Path(inputs)
        if not path.exists():
            raise InputError(f"no file or folder {str(inputs)!r}")
        if path.suffix == ".npz":
            loaded = read_labelled(path)
            array, labels = loaded["images"], loaded.get("labels")
            names = [f"{path.stem}[{i}]" for i in range(len(array))]
        else:
            paths = [path] if path.is_file() else _files_of(path, IMAGE_ENDINGS, "images")
            array = np.stack([preparation.read(p) for p in paths])
            names = [p.name for p in paths]
    else:
        if isinstance(inputs, tuple) and len(inputs) == 2:
            inputs, labels = inputs[0], np.asarray(inputs[1], dtype=np.int64)
        array = np.asarray(inputs)
        names = [f"image {i}" for i in range(len(array))] if array.ndim else []
    if array.size == 0:
        raise InputError("no images given")
    if labels is not None and len(labels) != len(array):
        raise InputError(f"{len(labels)} labels for {len(array)} images")
    return Images(preparation.prepare(array), names, labels)
