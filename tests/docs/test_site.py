"""The site has a place for everything that is public."""

import re
from pathlib import Path

import headscape as hs

DOCS = Path(__file__).parents[2] / "docs"


def test_every_public_name_is_in_the_api_reference():
    listed = re.findall(r"^   (\w+)$", (DOCS / "api.md").read_text(), re.M)
    assert sorted(listed) == sorted(set(hs.__all__) - {"__version__"})


def test_every_public_name_says_what_it_is():
    for name in set(hs.__all__) - {"__version__"}:
        assert (getattr(hs, name).__doc__ or "").strip().split("\n")[0].endswith((".", "?", ":", ")")), name


def test_every_page_has_a_place():
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    pages = {page for page in pages if not page.startswith(("_build", "made", "results"))}
    placed = {"index"}
    for index in (DOCS / "index.md", DOCS / "theory" / "index.md"):
        for tree in re.findall(r"```{toctree}\n(.*?)```", index.read_text(), re.S):
            lines = [line for line in tree.splitlines() if line and not line.startswith(":")]
            placed |= {(index.parent / line).relative_to(DOCS).as_posix() for line in lines}
    assert pages <= placed
