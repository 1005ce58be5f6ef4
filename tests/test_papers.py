"""The list of claims and the findings of the studies are the same list."""

import ast
from pathlib import Path

import pytest

import headscape
from headscape.hopfield.networks import ARMS
from headscape.papers import claim, claims, sources_of
from headscape.results import Finding
from headscape.verdicts import Judgement

STUDIES = Path(headscape.__file__).parent / "studies"


def strings(study):
    """All strings in the code of a study, and the fixed parts of its f-strings."""
    found = set()
    for file in (STUDIES / study).glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        found |= {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    return found


def used(study):
    """The ids that the code spells out, or makes of its study and a word it spells out."""
    words = strings(study) | (set(ARMS) if study == "train" else set())
    whole = {word for word in words if word.startswith(f"{study}.") and word.removeprefix(f"{study}.").isidentifier()}
    made = {f"{study}.{word}" for word in words if f"{study}." in words and f"{study}.{word}" in claims()}
    if "collapse.work" in words:  # with random weights, too
        made |= {"collapse.work_random"} & {f"collapse.work{word}" for word in words}
    return whole | made


@pytest.mark.parametrize("study", sorted({one.study for one in claims().values()}))
def test_every_claim_of_the_list_is_tested_and_every_tested_claim_is_in_the_list(study):
    listed = {id for id, one in claims().items() if one.study == study}
    assert used(study) == listed


def test_every_claim_says_what_how_and_by_whom():
    for one in claims().values():
        texts = (one.place, one.statement, one.statistic, one.control, one.rule, one.holds, one.fails)
        assert all(texts), one.id
        assert one.statement.endswith(".") and not one.holds.endswith("."), one.id
        assert one.source.authors and one.source.title and 1900 < one.source.year < 2100


def test_every_study_names_paper_authors_and_year():
    for study in {one.study for one in claims().values()}:
        assert sources_of(study)
        for source in sources_of(study):
            assert str(source.year) in str(source) and source.authors in str(source) and source.title in str(source)


def test_a_finding_knows_where_its_claim_is_made():
    found = Finding("Heads are invariant.", None, Judgement("holds", "rule"), "softmax.invariance")
    assert found.citation == "Fasina, Pohle, Su and Coifman 2025, Corollary 1"
    assert Finding("Just so.").citation is None
    opening = claim("compare.apart").opening(Judgement("cannot tell", "few"), a="one", b="two")
    assert opening == "We cannot tell whether one and two are different networks by their heads"
