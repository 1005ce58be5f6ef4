"""Texts, images and arrays that are damaged, absurd or not there."""

import io
import os
import pickle
import struct
import zipfile
from functools import partial

import numpy as np

from spoiling import SHORT, TRAINED, looped, write


def _texts():
    return {
        "binary": bytes(range(256)) * 40,
        "empty": b"",
        "blank": b" \n\t " * 100,
        "one huge line": b"word " * 400_000,
        "not utf-8": b"abc \xff\xfe" * 500,
        "zeros": b"\0" * 4000,
        "zeros between words": b"a word\0and " * 500,
        "byte order mark": b"\xef\xbb\xbf" + b"a word and " * 500,
        "lone surrogates": "a word \ud800".encode("utf-8", "surrogatepass") * 300,
        "control characters": "".join(map(chr, range(1, 32))).encode() * 200,
        "right to left and joined": "‮abc ‍👩‍👩‍👧 é ".encode() * 300,
        "too short": b"word",
    }


def _text_case(content, place):
    write(place / "text.txt", content)
    yield ["capture", "model", "--text", "text.txt", *SHORT]
    yield ["analyze", "model", "--text", "text.txt", "--tokens", "8", "--batches", "1", "--out", "new"]
    yield ["prune", "organized", "--text", "text.txt", "--heads", "2", "--windows", "3", "--criterion", "l1_all"]
    yield ["collapse", "model", "--text", "text.txt", "--tokens", "8", "--batches", "2", "--no-cells", "--out", "new2"]
    yield ["train", "gpt", "--text", "text.txt", *TRAINED]


def _text_places():
    def folder(place):
        (place / "text.txt").unlink()
        (place / "text.txt").mkdir()

    def nothing_in(place):
        folder(place)
        write(place / "text.txt" / "a.bin", b"x")

    def binary_in(place):
        folder(place)
        write(place / "text.txt" / "a.txt", b"\xff" * 300)

    return {
        "folder empty": folder,
        "folder without text": nothing_in,
        "folder with a binary": binary_in,
        "loop": lambda place: looped(place / "text.txt"),
        "unreadable": lambda place: (place / "text.txt").chmod(0),
        "gone": lambda place: (place / "text.txt").unlink(),
        "pipe": lambda place: ((place / "text.txt").unlink(), os.mkfifo(place / "text.txt")),
    }


def _text_place_case(act, place):
    act(place)
    yield ["capture", "model", "--text", "text.txt", *SHORT]
    yield ["prune", "organized", "--text", "text.txt", "--heads", "2", "--windows", "3"]
    yield ["train", "gpt", "--text", "text.txt", *TRAINED]


def _png(width=28, height=28):
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (width, height), 100).save(file, "PNG")
    return file.getvalue()


def _bomb():
    import zlib

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


class Evil:
    def __reduce__(self):
        return os.mkdir, ("EVIL",)


def _images():
    good = np.zeros((4, 28, 28), np.uint8)
    pickled = np.empty(1, object)
    pickled[0] = Evil()
    damaged = bytearray(_npz(images=np.arange(3136, dtype=np.uint8).reshape(4, 28, 28)))
    damaged[200:400] = b"x" * 200
    return {
        "cut.png": _png()[:40],
        "empty.png": b"",
        "text.png": b"no picture",
        "bomb.png": _bomb(),
        "tiny.png": _png(1, 1),
        "long.png": _png(5000, 1),
        "none.npz": _npz(images=np.zeros((0, 28, 28), np.uint8)),
        "flat.npz": _npz(images=np.zeros((4, 0, 0), np.uint8)),
        "complex.npz": _npz(images=good.astype(complex)),
        "words.npz": _npz(images=np.array(["a", "b"])),
        "pickled.npz": _npz(images=pickled),
        "nan.npz": _npz(images=np.full((4, 28, 28), np.nan)),
        "infinite.npz": _npz(images=np.full((4, 28, 28), np.inf)),
        "five axes.npz": _npz(images=np.zeros((1, 2, 3, 4, 5), np.uint8)),
        "one axis.npz": _npz(images=np.zeros(5, np.uint8)),
        "no axis.npz": _npz(images=np.uint8(3)),
        "other name.npz": _npz(x=good),
        "labels short.npz": _npz(images=good, labels=np.zeros(2, int)),
        "labels words.npz": _npz(images=good, labels=np.array(["a"] * 4)),
        "labels nan.npz": _npz(images=good, labels=np.full(4, np.nan)),
        "labels wild.npz": _npz(images=good, labels=np.array([-5, 99, 0, 10**12])),
        "cut.npz": _npz(images=good)[:100],
        "damaged.npz": bytes(damaged),
        "no zip.npz": b"x" * 300,
        "pickle.npz": pickle.dumps(Evil()),
        "other.xyz": b"x",
    }


def _image_case(name, content, place):
    write(place / name, content)
    short = ["--batches", "2", "--keep", "probs", "--out", "new"]
    yield ["capture", "vit-fmnist", "--images", name, *short]
    yield ["prune", "seen", "--images", name, "--heads", "2", "--windows", "3", "--criterion", "l1_all"]
    yield ["train", "vit", "--images", name, *TRAINED]


def _npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _npy_header(shape, descr="<f4"):
    text = str({"descr": descr, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def _arrays():
    good = np.tril(np.ones((4, 6, 6))) / np.arange(1, 7)[:, None]
    pickled = np.empty(1, object)
    pickled[0] = Evil()
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("a.npy", _npy(pickled))
    return {
        "cut.npy": _npy(good)[:200],
        "pickled.npy": _npy(pickled),
        "pickled.npz": inner.getvalue(),
        "zip without arrays.npz": b"PK\x05\x06" + b"\0" * 18,
        "no zip.npz": b"xx",
        "claims terabytes.npy": _npy_header((10**6, 10**6, 10**3)),
        "claims overflow.npy": _npy_header((2**62, 2**62, 4)),
        "claims negative.npy": _npy_header((-1, 4, 4)),
        "claims objects.npy": _npy_header((3,), "|O") + pickle.dumps(Evil()),
        "no axis.npy": _npy(np.float64(1)),
        "empty.npy": _npy(np.zeros((0, 6, 6))),
        "no tokens.npy": _npy(np.zeros((4, 0, 0))),
        "two axes.npy": _npy(good[0]),
        "complex.npy": _npy(good.astype(complex)),
        "words.npy": _npy(np.array([["a"] * 3] * 3)),
        "dates.npy": _npy(np.zeros((4, 6, 6), "datetime64[s]")),
        "nan.npy": _npy(np.full((4, 6, 6), np.nan)),
        "large.npy": _npy(np.full((4, 6, 6), 1e300)),
        "negative.npy": _npy(-good),
        "above one.npy": _npy(3 * good),
        "cut.safetensors": b"\x10\0\0\0\0\0\0\0{}",
        "empty.safetensors": b"",
        "other.txt": b"1 2 3",
    }


def _array_case(name, content, place):
    write(place / name, content)
    for more in ([], ["--dtype", "float32"], ["--kind", "scores"], ["--name", "nosuch"]):
        yield ["import", name, "--layout", "head,query,key", "--out", f"new{len(more)}{more[-1:]}", *more]
    yield ["import", name, "--layout", "head,head,key", "--out", "new"]
    yield ["import", name, "--mask", "none", "--layout", "head,query,key", "--out", "new"]


def families():
    """By family and name, a function of the folder in which the commands will run."""
    return {
        "text": {name: partial(_text_case, content) for name, content in _texts().items()}
        | {name: partial(_text_place_case, act) for name, act in _text_places().items()},
        "image": {name: partial(_image_case, name, content) for name, content in _images().items()},
        "array": {name: partial(_array_case, name, content) for name, content in _arrays().items()},
    }
