"""Make encyclopedic prose to rank and judge heads on, from the shortened Wikipedia dump among the tests of gensim.

    python scripts/make_wiki.py FOLDER

pip fetches the package (it is not installed); FOLDER gets rank.txt and judge.txt, from different articles. The text is
CC BY-SA by the authors of Wikipedia: use it, do not commit it.
"""

from __future__ import annotations

import bz2
import html
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from xml.etree import ElementTree

DUMP = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
PARAGRAPH_WORDS = 40  # a paragraph shorter than this is a list entry or a caption


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, "gensim==4.4.0"]
        subprocess.run(command, check=True)
        wheel = next(Path(scratch).glob("*.whl"))
        dump = bz2.decompress(zipfile.ZipFile(wheel).read(DUMP))
    articles = [prose(text) for text in pages(dump)]
    articles = [article for article in articles if len(article.split()) > 500]
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("rank", articles[0::2]), ("judge", articles[1::2])):
        (folder / f"{name}.txt").write_text("\n\n".join(part), encoding="utf-8")
        print(f"{folder / name}.txt: {len(part)} articles, {sum(len(a.split()) for a in part):,} words")


def pages(dump: bytes) -> list[str]:
    """The wikitext of every article; the dump is cut off, so what is whole is taken."""
    found = []
    parser = ElementTree.XMLPullParser(["end"])
    parser.feed(dump)
    for _, element in parser.read_events():
        if element.tag.endswith("}text") and element.text and not element.text.lower().startswith("#redirect"):
            found.append(element.text)
    return found


def prose(wikitext: str) -> str:
    """Paragraphs of plain sentences: no templates, tables, references, lists and headings."""
    text = re.sub(r"<!--.*?-->|<ref[^>/]*/>|<ref.*?</ref>|<math>.*?</math>", "", wikitext, flags=re.DOTALL)
    for pattern in (r"\{\{[^{}]*\}\}", r"\{\|[^{}]*\|\}"):  # innermost first, they nest
        while True:
            shorter = re.sub(pattern, "", text)
            if shorter == text:
                break
            text = shorter
    text = re.sub(r"\[\[(?:File|Image|Category):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1", text)
    text = re.sub(r"\[https?://\S*\s?([^\]]*)\]", r"\1", text)
    text = html.unescape(re.sub(r"<[^>]+>|'{2,}", "", text))
    lines = (" ".join(line.split()) for line in text.splitlines())
    kept = [
        line for line in lines if line[:1].isalnum() and len(line.split()) >= PARAGRAPH_WORDS and line[-1:] in '.?!"'
    ]
    return "\n".join(re.sub(r"\(\s*[;,]?\s*\)", "", line) for line in kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
