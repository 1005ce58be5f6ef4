"""What networks are trained on: bytes or tokens of a text, or labelled images, in three parts that share nothing."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from headscape.attention.inputs import read_texts, sample_text
from headscape.errors import InputError
from headscape.hopfield.networks import NetworkConfig

__all__ = ["PARTS", "ImageData", "TextData", "image_data", "text_data"]

PARTS = ("train", "valid", "test")
SHARES = (0.8, 0.1)  # of a text, from its start, to train and to validate on; the rest is the test
FASHION = Path("/usr/share/datasets/fashion-mnist")  # where Debian's dataset-fashion-mnist puts it
VALID_IMAGES = 5000


@dataclass(frozen=True)
class TextData:
    """Token ids of each part, one stream each, and how many bytes a token stands for."""

    parts: dict[str, npt.NDArray[np.int64]]
    vocabulary: int
    bytes_a_token: float
    about: dict[str, Any]

    def batch(self, generator: torch.Generator, size: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Random windows of the training part (size, tokens), and the token after each of theirs."""
        ids = self.parts["train"]
        starts = torch.randint(0, len(ids) - tokens, (size,), generator=generator).numpy()
        windows = torch.from_numpy(ids[starts[:, None] + np.arange(tokens + 1)])
        return windows[:, :-1], windows[:, 1:]

    def segment(self, step: int, size: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Segment `step` of `size` streams that run through the training part side by side, for a memory."""
        return self._rows("train", size, tokens, step)

    def windows(self, part: str, size: int, tokens: int, n: int) -> list[tuple[Tensor, Tensor]]:
        """Evaluation: n times `size` consecutive windows, evenly spread streams, the same for every network."""
        available = (len(self.parts[part]) - 1) // size // tokens
        return [self._rows(part, size, tokens, i) for i in range(max(1, min(n, available)))]

    def _rows(self, part: str, size: int, tokens: int, i: int) -> tuple[Tensor, Tensor]:
        ids = self.parts[part]
        length = (len(ids) - 1) // size // tokens * tokens
        if length == 0:
            raise InputError(f"the {part} part has {len(ids)} tokens, too few for {size} streams of {tokens} each")
        starts = np.arange(size) * length + i * tokens % length
        windows = torch.from_numpy(ids[starts[:, None] + np.arange(tokens + 1)])
        return windows[:, :-1], windows[:, 1:]


def text_data(
    text: str | Path | None, tokenizer: Any = None, tokens: int = 128, tokenizer_name: str = "bytes"
) -> TextData:
    """Cut a text file or folder (by default the packaged prose) into 80 % to train, 10 % to validate, 10 % to test.

    The parts are consecutive, files in the order of their names. Without a tokenizer a token is a byte.

    Raises an `InputError` when a part is shorter than two windows of `tokens` tokens.
    """
    whole = "".join([sample_text("rank"), sample_text("judge")] if text is None else read_texts(text))
    raw = whole.encode()
    if tokenizer is None:
        ids, vocabulary = np.frombuffer(raw, np.uint8).astype(np.int64), 256
    else:
        ids = np.array(tokenizer.encode(whole, add_special_tokens=False), dtype=np.int64)
        vocabulary = len(tokenizer)
    ends = [round(sum(SHARES[:k]) * len(ids)) for k in range(3)] + [len(ids)]
    parts = {name: ids[a:b] for name, a, b in zip(PARTS, ends[:-1], ends[1:], strict=True)}
    for name, part in parts.items():
        if len(part) < 2 * tokens + 1:
            raise InputError(f"the {name} part of the text has {len(part)} tokens, fewer than two windows of {tokens}")
    about = {
        "text": "packaged prose" if text is None else Path(text).name,
        "sha256": hashlib.sha256(raw).hexdigest(),
        "bytes": len(raw),
        "tokenizer": tokenizer_name,
        "tokens": {name: len(part) for name, part in parts.items()},
    }
    return TextData(parts, vocabulary, len(raw) / len(ids), about)


@dataclass(frozen=True)
class ImageData:
    """Images (n, channel, height, width) scaled to mean 0 and variance 1, and labels, of each part."""

    images: dict[str, Tensor]
    labels: dict[str, Tensor]
    classes: int
    about: dict[str, Any]

    def batch(self, generator: torch.Generator, size: int, config: NetworkConfig) -> tuple[Tensor, Tensor]:
        """Random training images, half of them flipped, each shifted by up to one pixel."""
        index = torch.randint(0, len(self.labels["train"]), (size,), generator=generator)
        x = self.images["train"][index]
        flip = torch.rand(size, generator=generator) < 0.5
        x = torch.where(flip[:, None, None, None], x.flip(-1), x)
        height, width = x.shape[-2:]
        dy, dx = torch.randint(0, 3, (2, size), generator=generator)
        rows, columns = dy[:, None] + torch.arange(height), dx[:, None] + torch.arange(width)
        padded = F.pad(x, (1, 1, 1, 1), mode="replicate").permute(0, 2, 3, 1)
        x = padded[torch.arange(size)[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        return _sized(x, config), self.labels["train"][index]

    def examples(self, part: str, size: int, n: int, config: NetworkConfig) -> list[tuple[Tensor, Tensor]]:
        """Evaluation: the first n batches of a part."""
        pairs = zip(torch.split(self.images[part], size), torch.split(self.labels[part], size), strict=True)
        return [(_sized(x, config), y) for _, (x, y) in zip(range(n), pairs, strict=False)]


def _sized(x: Tensor, config: NetworkConfig) -> Tensor:
    if x.shape[-1] == config.image:
        return x
    return F.interpolate(x, (config.image, config.image), mode="bilinear", align_corners=False)


def image_data(source: str | Path | None, config: NetworkConfig) -> ImageData:
    """Fashion-MNIST from a folder of its four .gz files, or any images from an .npz.

    An .npz holds images (n, height, width[, channel]) as bytes and labels; test_images and test_labels if there are,
    else a tenth is set aside. Of the training images 5,000 (at most a tenth) validate; the choice is the same for all.

    Raises an `InputError` where nothing is found, or channels or classes do not fit the network.
    """
    path = FASHION if source is None else Path(source)
    if not path.exists():
        raise InputError(
            f"no images at {path}; install Debian's dataset-fashion-mnist, or give --images a folder with its files or "
            "an .npz with images and labels"
        )
    arrays = _of_folder(path) if path.is_dir() else _of_npz(path)
    order = np.random.default_rng(0).permutation(len(arrays["images"]))
    if "test_images" not in arrays:
        held, order = order[: len(order) // 10], order[len(order) // 10 :]
        arrays |= {"test_images": arrays["images"][held], "test_labels": arrays["labels"][held]}
    n_valid = min(VALID_IMAGES, len(order) // 10)
    valid, train = order[:n_valid], order[n_valid:]
    if n_valid < 1:
        raise InputError(f"{path} holds {len(arrays['images'])} images, too few to set some aside")
    images = {"train": arrays["images"][train], "valid": arrays["images"][valid], "test": arrays["test_images"]}
    labels = {"train": arrays["labels"][train], "valid": arrays["labels"][valid], "test": arrays["test_labels"]}
    classes = int(max(part.max() for part in labels.values())) + 1
    channels = 1 if images["train"].ndim == 3 else images["train"].shape[-1]
    if channels != config.channels:
        raise InputError(f"{path} holds images of {channels} channels, this network takes {config.channels}")
    mean, std = float(images["train"].mean()), max(float(images["train"].std()), 1e-6)
    return ImageData(
        {name: _tensor((part.astype(np.float32) - mean) / std) for name, part in images.items()},
        {name: torch.from_numpy(part.astype(np.int64)) for name, part in labels.items()},
        classes,
        {
            "images": path.name,
            "sha256": hashlib.sha256(arrays["images"].tobytes()).hexdigest(),
            "counts": {name: len(part) for name, part in labels.items()},
        },
    )


def _tensor(images: npt.NDArray[np.float32]) -> Tensor:
    x = torch.from_numpy(np.ascontiguousarray(images, dtype=np.float32))
    return x[:, None] if x.dim() == 3 else x.permute(0, 3, 1, 2).contiguous()


def _of_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not an .npz of images ({error})") from None
    if not {"images", "labels"} <= arrays.keys():
        raise InputError(f"{path} holds {', '.join(arrays)}; it needs images and labels")
    return arrays


def _of_folder(folder: Path) -> dict[str, npt.NDArray[Any]]:
    files = {
        "images": "train-images-idx3-ubyte.gz",
        "labels": "train-labels-idx1-ubyte.gz",
        "test_images": "t10k-images-idx3-ubyte.gz",
        "test_labels": "t10k-labels-idx1-ubyte.gz",
    }
    missing = [name for name in files.values() if not (folder / name).is_file()]
    if missing:
        raise InputError(f"{folder} holds no {missing[0]}; it should hold the four files of Fashion-MNIST")
    return {name: _read_idx(folder / file) for name, file in files.items()}


def _read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """A gzipped IDX file of bytes, the format of the MNIST family: axes, sizes, values."""
    with gzip.open(path) as file:
        raw = file.read()
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
