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
    if kind == "vit":
        scores = {a: [v + 60 for v in values] for a, values in scores.items()}
    result = made_up(scores, kind)
    finding = next(f for f in result.findings() if f.claim == "train.both")
    assert f"is {word}" in finding.text and finding.holds is holds


def test_one_seed_has_no_interval(made_up):
    said = made_up({"standard": [2.5], "both": [2.4]}).findings()[1]
    assert said.verdict == "cannot tell" and "a change of -0.1 (n = 1)" in said.text


def test_aligned_tokens_are_only_removed_where_there_were_some(made_up):
    scores = dict.fromkeys(("standard", "hidden", "skip", "both"), BASE)
    said = {share: made_up(scores, aligned=share).findings()[5] for share in (0.0, 0.3)}
    assert said[0.0].verdict == "cannot tell" and "no group of aligned tokens" in said[0.0].judgement.why
    assert said[0.3].verdict == "holds" and "at most 30 [30, 30.1] (n = 3) %" in said[0.3].text
    assert "pairs of different tokens" in said[0.3].text


@pytest.mark.parametrize(("kind", "baseline"), [("gpt", 2.4), ("gpt", 2.51), ("vit", 3.0)])
def test_nothing_is_said_of_networks_that_do_not_beat_their_baseline(made_up, kind, baseline):
    scores = {"standard": BASE, "both": [b - 1 for b in BASE], "longer": [b - 1 for b in BASE]}
    found = {f.claim: f for f in made_up(scores, kind, aligned=0.3, baseline=baseline).findings()}
    assert found["train.usable"].verdict != "holds"
    assert {found[c].verdict for c in ("train.both", "train.tokens")} == {"cannot tell"}
    assert "is not shown to beat the" in found["train.both"].judgement.why


def test_the_positive_control_and_what_training_wants(made_up):
    scores = {"standard": BASE, "longer": [b - 0.1 - 0.01 * s for s, b in enumerate(BASE)], "learned": BASE}
    found = {f.claim: f for f in made_up(scores).findings()}
    assert found["train.usable"].holds and "trigram 2.8" in found["train.usable"].text
    assert "uniform changes that by 1.01 [0.985, 1.04]" in found["train.usable"].text
    assert found["train.control"].holds and "a known gain is detected" in found["train.control"].text.lower()
    assert found["train.learned"].holds and "mean over layers and heads 0.31" in found["train.learned"].text
    undetected = made_up(scores | {"longer": [2.6, 2.4, 2.5]}).findings()
    assert next(f for f in undetected if f.claim == "train.control").verdict == "cannot tell"
