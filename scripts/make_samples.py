"""Make the sample inputs in src/headscape/data from two Debian packages.

    apt-get install dataset-fashion-mnist && apt-get download r-cran-janeaustenr
    dpkg -x r-cran-janeaustenr*.deb austen
    python scripts/make_samples.py austen/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb

`rank` is the opening of Persuasion (1817), `judge` that of Northanger Abbey (1817), both in the public domain, cut at a
paragraph. The images are the first 256 of the Fashion-MNIST test set (MIT licence).
"""

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from train_vit_fmnist import read_idx

DATA = Path(__file__).parent.parent / "src" / "headscape" / "data"
SIZE = 230_000  # characters a part, about 52,000 tokens


def r_objects(path: Path) -> list[bytes]:
    """The serialised objects of an R lazy-load file: a length, then a zlib stream, one after the other."""
    raw, found = path.read_bytes(), []
    while raw:
        stream = zlib.decompressobj()
        found.append(stream.decompress(raw[4:]))
        raw = stream.unused_data
    return found


def r_strings(data: bytes) -> list[str]:
    """A character vector in R's XDR serialisation, version 3."""
    at = 14 + 4 + struct.unpack_from(">i", data, 14)[0]  # past the header and the native encoding's name
    _, count = struct.unpack_from(">ii", data, at)
    at += 8
    lines = []
    for _ in range(count):
        size = max(struct.unpack_from(">i", data, at + 4)[0], 0)
        lines.append(data[at + 8 : at + 8 + size].decode())
        at += 8 + size
    return lines


def prose(lines: list[str]) -> str:
    """Paragraphs on one line each, from the first sentence of chapter 1 on, chapter headings left out."""
    paragraphs = [" ".join(p.split()) for p in "\n".join(lines).split("\n\n")]
    body = [p.replace("_", "") for p in paragraphs if len(p) > 40]
    text = ""
    for paragraph in body:
        if len(text) + len(paragraph) > SIZE:
            break
        text += paragraph + "\n\n"
    return text.strip() + "\n"


def main() -> None:
    books = {book[0].lower(): book for book in map(r_strings, r_objects(Path(sys.argv[1])))}
    (DATA / "text").mkdir(parents=True, exist_ok=True)
    (DATA / "text" / "rank.txt").write_text(prose(books["persuasion"]))
    (DATA / "text" / "judge.txt").write_text(prose(books["northanger abbey"]))
    source = Path("/usr/share/datasets/fashion-mnist")
    np.savez_compressed(
        DATA / "fashion-mnist-256.npz",
        images=read_idx(source / "t10k-images-idx3-ubyte.gz")[:256],
        labels=read_idx(source / "t10k-labels-idx1-ubyte.gz")[:256],
    )


if __name__ == "__main__":
    main()
