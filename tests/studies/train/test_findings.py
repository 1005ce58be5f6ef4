"""What is said of a comparison follows its intervals."""

import pytest

BASE = [2.50, 2.53, 2.47]


@pytest.mark.parametrize(
    ("shift", "kind", "word", "holds"),
    [
        ([-0.10, -0.11, -0.09], "gpt", "better", True),
        ([0.10, 0.11, 0.09], "gpt", "worse", False),
        ([-0.10, 0.10, 0.0], "gpt", "not shown to differ", None),
        ([0.10, 0.11, 0.09], "vit", "better", True),
        ([-0.10, -0.11, -0.09], "vit", "worse", False),
    ],
)
def test_the_verdict_follows_the_interval(made_up, shift, kind, word, holds):
    scores = dict.fromkeys(("standard", "hidden", "skip"), BASE) | {
        "both": [b + s for b, s in zip(BASE, shift, strict=True)]
    }
    finding = made_up(scores, kind).findings()[0]
    assert f"is {word}" in finding.text and finding.holds is holds


def test_one_seed_has_no_interval(made_up):
    said = made_up({"standard": [2.5], "both": [2.4]}).findings()[0]
    assert said.verdict == "cannot tell" and "a change of -0.1 (n = 1)" in said.text


def test_aligned_tokens_are_only_removed_where_there_were_some(made_up):
    scores = dict.fromkeys(("standard", "hidden", "skip", "both"), BASE)
    said = {share: made_up(scores, aligned=share).findings()[4] for share in (0.0, 0.3)}
    assert said[0.0].verdict == "cannot tell" and "no group of aligned tokens" in said[0.0].judgement.why
    assert said[0.3].verdict == "holds" and "at most 30 [30, 30] (n = 3) %" in said[0.3].text
    assert "pairs of different tokens" in said[0.3].text
