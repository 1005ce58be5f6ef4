"""What networks are trained on: bytes or tokens of a text, or labelled images, in three disjoint parts."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from headscape.attention.inputs import read_labelled, read_texts, sample_text
from headscape.errors import InputError
from headscape.hopfield.networks import NetworkConfig
from headscape.records import load_record
from headscape.storage import foreign_file
from headscape.studies.train.augment import augmented

__all__ = ["PARTS", "Data", "ImageData", "TextData", "check_source", "image_data", "stored_data", "text_data"]

PARTS = ("train", "valid", "test")
SHARES = (0.8, 0.1)  # of a text, from its start, to train and to validate on; the rest is the test
FASHION = Path("/usr/share/datasets/fashion-mnist")  # where Debian's dataset-fashion-mnist installs it
VALID_IMAGES = 5000
Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class TextData:
    """Token ids of each part, one stream each, and the mean number of bytes per token."""

    parts: Arrays
    outputs: int  # the vocabulary
    bytes_a_token: float
    about: dict[str, Any]

    def batch(self, generator: torch.Generator, size: int, config: NetworkConfig) -> tuple[Tensor, Tensor]:
        """Random windows (size, config.tokens) of the training part, and the token after each of theirs."""
        starts = torch.randint(0, len(self.parts["train"]) - config.tokens, (size,), generator=generator).numpy()
        return self._windows("train", starts, config.tokens)

    def segment(self, step: int, size: int, config: NetworkConfig) -> tuple[Tensor, Tensor]:
        """Segment `step` of `size` streams that run through the training part side by side, for a memory."""
        return self._rows("train", size, config.tokens, step)

    def examples(self, part: str, n: int, config: NetworkConfig, size: int = 8) -> list[tuple[Tensor, Tensor]]:
        """For evaluation: n batches of consecutive windows from evenly spread streams, the same for every network."""
        available = (len(self.parts[part]) - 1) // size // config.tokens
        return [self._rows(part, size, config.tokens, i) for i in range(max(1, min(n, available)))]

    def _rows(self, part: str, size: int, tokens: int, i: int) -> tuple[Tensor, Tensor]:
        n = len(self.parts[part])
        length = (n - 1) // size // tokens * tokens
        if length == 0:
            raise InputError(f"the {part} part has {n} tokens, too few for {size} streams of {tokens} each")
        return self._windows(part, np.arange(size) * length + i * tokens % length, tokens)

    def _windows(self, part: str, starts: npt.NDArray[Any], tokens: int) -> tuple[Tensor, Tensor]:
        windows = torch.from_numpy(self.parts[part][starts[:, None] + np.arange(tokens + 1)].astype(np.int64))
        return windows[:, :-1], windows[:, 1:]


@dataclass(frozen=True)
class ImageData:
    """Images (n, height, width[, channel]) and labels of each part; mean and deviation of the training images."""

    images: Arrays
    labels: Arrays
    outputs: int  # the classes
    mean: float
    deviation: float
    about: dict[str, Any]

    def batch(
        self, generator: torch.Generator, size: int, config: NetworkConfig, augment: str = "light"
    ) -> tuple[Tensor, Tensor]:
        """Random training images, changed as `augment` says (`augmented`)."""
        index = torch.randint(0, len(self.labels["train"]), (size,), generator=generator).numpy()
        x, labels = augmented(*self._prepared("train", index), augment, self.outputs, generator)
        return _sized(x, config), labels

    def examples(self, part: str, n: int, config: NetworkConfig, size: int = 100) -> list[tuple[Tensor, Tensor]]:
        """For evaluation: the first n batches of a part."""
        starts = range(0, len(self.labels[part]), size)[:n]
        found = [self._prepared(part, np.arange(start, min(start + size, len(self.labels[part])))) for start in starts]
        return [(_sized(x, config), labels) for x, labels in found]

    def _prepared(self, part: str, index: npt.NDArray[Any]) -> tuple[Tensor, Tensor]:
        """Images (n, channel, height, width), scaled to mean 0 and variance 1 over the training part, and labels."""
        x = torch.from_numpy((self.images[part][index].astype(np.float32) - self.mean) / self.deviation).float()
        labels = torch.from_numpy(self.labels[part][index].astype(np.int64))
        return x[:, None] if x.dim() == 3 else x.permute(0, 3, 1, 2).contiguous(), labels


Data = TextData | ImageData


def stored_data(data: Data | Path, config: NetworkConfig) -> Data:
    """The input of a unit of work: the data, or a folder of `save_record`."""
    return data if not isinstance(data, Path) else _read(data, ImageData if config.kind == "vit" else TextData)


@lru_cache(maxsize=1)
def _read(folder: Path, kind: type[Data]) -> Data:
    return load_record(kind, folder)


def check_source(
    config: NetworkConfig, text: str | Path | None, images: str | Path | None, augment: str | None = None
) -> None:
    """Raise an `InputError` if a network cannot be trained on what is given, before anything is read."""
    if config.kind != "vit":
        if images is not None:
            raise InputError("a language model is trained on text, not on images")
        if augment is not None:
            raise InputError("augment changes images; a language model is trained on text")
        return
    if text is not None:
        raise InputError("a ViT is trained on images, not on text")
    path = FASHION if images is None else Path(images)
    if not path.exists():
        raise InputError(
            f"no images at {path}; a ViT needs labelled images: install Debian's dataset-fashion-mnist, or give --images a "
            "folder with its files or an .npz with images and labels"
        )


def text_data(
    text: str | Path | None, tokenizer: Any = None, tokens: int = 128, tokenizer_name: str = "bytes"
) -> TextData:
    """Cut a text file or folder (by default the packaged prose) into 80 % to train, 10 % to validate, 10 % to test.

    The parts are consecutive, files in the order of their names. Without a tokenizer a token is a byte.

    Raises an `InputError` when a part is shorter than two windows of `tokens` tokens.
    """
    whole = "".join([sample_text("rank"), sample_text("judge")] if text is None else read_texts(text))
    raw = whole.encode()
    ids: npt.NDArray[Any] = np.frombuffer(raw, np.uint8)
    if tokenizer is not None:
        ids = np.array(tokenizer.encode(whole, add_special_tokens=False), dtype=np.int32)
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
    return TextData(parts, 256 if tokenizer is None else len(tokenizer), len(raw) / len(ids), about)


def image_data(source: str | Path | None, config: NetworkConfig) -> ImageData:
    """Fashion-MNIST from a folder of its four .gz files, or any images from an .npz.

    An .npz holds images (n, height, width[, channel]) as bytes, and labels; test_images and test_labels if there are,
    otherwise a tenth is set aside. Of the training images 5,000 (at most a tenth) validate; the choice is always the
    same.

    Raises an `InputError` where nothing is found, or channels or classes do not fit the network.
    """
    check_source(config, None, source)
    path = FASHION if source is None else Path(source)
    arrays = _of_folder(path) if path.is_dir() else _of_npz(path)
    order = np.random.default_rng(0).permutation(len(arrays["images"]))
    if "test_images" not in arrays:
        held, order = order[: len(order) // 10], order[len(order) // 10 :]
        arrays |= {"test_images": arrays["images"][held], "test_labels": arrays["labels"][held]}
    n_valid = min(VALID_IMAGES, len(order) // 10)
    valid, train = order[:n_valid], order[n_valid:]
    if n_valid < 1:
        raise InputError(f"{path} holds {len(arrays['images'])} images, too few to set some aside")
    images, labels = (
        {"train": arrays[name][train], "valid": arrays[name][valid], "test": arrays[f"test_{name}"]}
        for name in ("images", "labels")
    )
    channels = 1 if images["train"].ndim == 3 else images["train"].shape[-1]
    if channels != config.channels:
        raise InputError(f"{path} holds images of {channels} channels, this network takes {config.channels}")
    return ImageData(
        images,
        labels,
        outputs=int(max(part.max() for part in labels.values())) + 1,
        mean=float(images["train"].mean()),
        deviation=max(float(images["train"].std()), 1e-6),
        about={
            "images": path.name,
            "sha256": hashlib.sha256(arrays["images"].tobytes()).hexdigest(),
            "counts": {name: len(part) for name, part in labels.items()},
        },
    )


def _sized(x: Tensor, config: NetworkConfig) -> Tensor:
    if x.shape[-1] == config.image:
        return x
    return F.interpolate(x, (config.image, config.image), mode="bilinear", align_corners=False)


def _of_npz(path: Path) -> Arrays:
    arrays = read_labelled(path)
    if not {"images", "labels"} <= arrays.keys():
        raise InputError(f"{path} holds {', '.join(arrays)}; it needs images and labels")
    return arrays


def _of_folder(folder: Path) -> Arrays:
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
    """Read a gzipped IDX file of bytes, the format of the MNIST family: axes, sizes, values."""
    with foreign_file(path), gzip.open(path) as file:
        raw = file.read()
        shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)
