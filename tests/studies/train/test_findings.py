"""What is said of a comparison follows its intervals."""

from dataclasses import replace

import pandas as pd
import pytest

BASE = [2.50, 2.53, 2.47]


@pytest.mark.parametrize(
    ("shift", "kind", "word", "holds"),
    [
        ([-0.10, -0.11, -0.09], "gpt", "better", True),
        ([0.10, 0.11, 0.09], "gpt", "worse", False),
        ([-0.10, 0.10, 0.0], "gpt", "better", None),
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
    opening = f"Modern Hopfield Attention is {word} than standard attention: "
    assert finding.text.startswith(f"{'We cannot tell whether ' if holds is None else ''}{opening}")
    assert finding.holds is holds


def test_the_interval_of_a_share_of_images_ends_where_a_share_does(made_up):
    result = made_up({"standard": [10.0, 14.0], "both": [95.0, 99.0]}, "vit")
    frame = result.to_frame().set_index("arm")
    assert frame.loc["both", "score_high"] == 100 and frame.loc["standard", "score_low"] == 0
    assert "[0, " in result.findings()[0].text


def test_one_seed_has_no_interval(made_up):
    findings = made_up({"standard": [2.5], "both": [2.4]}).findings()
    said = findings[1]
    assert said.verdict == "cannot tell" and "a change of -0.1 (n = 1)" in said.text
    assert not any("nan" in finding.text for finding in findings)  # two seeds cannot be compared


def test_aligned_tokens_are_only_removed_where_there_were_some(made_up):
    scores = dict.fromkeys(("standard", "hidden", "skip", "both"), BASE)
    said = {share: made_up(scores, aligned=share).findings()[5] for share in (0.0, 0.3)}
    assert said[0.0].verdict == "cannot tell" and "no group of aligned tokens" in said[0.0].judgement.why
    assert said[0.3].verdict == "holds" and "is 30 [30, 30.1] (n = 3) with standard" in said[0.3].text
    assert "pairs of different tokens" in said[0.3].text
    assert ") %" not in said[0.0].text  # the sign would stand behind n


@pytest.mark.parametrize(("kind", "baseline"), [("gpt", 2.4), ("gpt", 2.51), ("vit", 3.0)])
def test_nothing_is_said_of_networks_that_do_not_beat_their_baseline(made_up, kind, baseline):
    scores = {"standard": BASE} | {arm: [b - 1 for b in BASE] for arm in ("both", "learned", "longer")}
    found = {f.claim: f for f in made_up(scores, kind, aligned=0.3, baseline=baseline).findings()}
    assert found["train.usable"].verdict != "holds"
    assert {f.verdict for claim, f in found.items() if claim and claim != "train.usable"} == {"cannot tell"}
    assert {"train.both", "train.tokens", "train.entropy", "train.learned", "train.control"} < set(found)
    assert "is not shown to beat the" in found["train.both"].judgement.why
    why = found["train.usable"].judgement.why  # said once
    assert [claim for claim, f in found.items() if claim and why in f.judgement.why] == ["train.usable"]


def test_the_positive_control_and_what_training_wants(made_up):
    scores = {"standard": BASE, "longer": [b - 0.1 - 0.01 * s for s, b in enumerate(BASE)], "learned": BASE}
    found = {f.claim: f for f in made_up(scores).findings()}
    assert found["train.usable"].holds and "trigram 2.8" in found["train.usable"].text
    assert "uniform changes that by 1.01 [0.985, 1.04]" in found["train.usable"].text
    assert found["train.control"].holds and "a known gain is detected" in found["train.control"].text.lower()
    assert found["train.learned"].holds and "mean over layers and heads 0.31" in found["train.learned"].text
    undetected = made_up(scores | {"longer": [2.6, 2.4, 2.5]}).findings()
    assert next(f for f in undetected if f.claim == "train.control").verdict == "cannot tell"


def test_every_point_of_a_grid_is_named_and_has_its_own_skip(made_up):
    both, skip = ("both a=0.3 a'=0.2", "both a=0.5 a'=0.2"), ("skip a=0.3", "skip a=0.5")
    shifted = enumerate((*both, *skip))
    scores = {"standard": BASE} | {arm: [b + 0.1 * k + 1e-3 * k * s for s, b in enumerate(BASE)] for k, arm in shifted}
    found = made_up(scores).findings()
    given = [f.text for f in found if f.claim == "train.hidden_given_skip"]
    assert ["(a=0.3 a'=0.2) is better" in given[0], "by -0.202 " in given[0]] == [True, True]
    assert "(a=0.5 a'=0.2)" in given[1] and len(given) == 2
    against = [f for f in found if f.claim == "train.both"]
    assert against[0].text.startswith("We cannot tell whether Modern Hopfield Attention (a=0.3 a'=0.2) is better than")
    assert against[1].text.startswith(
        "Modern Hopfield Attention (a=0.5 a'=0.2) is worse than standard attention: 2.601 bits"
    )
    assert len([f for f in found if f.claim == "train.tokens"]) == 2


def test_entropy_changes_where_it_differs_by_more_than_seeds_do(made_up):
    scores = dict.fromkeys(("standard", "both"), BASE)
    verdicts = {}
    for shift in (0.0, 0.02, 0.3):
        result = made_up(scores, layers=4)
        heads = result.heads.assign(
            entropy=lambda h, shift=shift: 0.3 + 0.1 * h["layer"] + 0.01 * h["seed"] + shift * (h["arm"] == "both")
        )
        said = next(f for f in replace(result, heads=heads).findings() if f.claim == "train.entropy")
        verdicts[shift] = said.verdict
    assert verdicts == {0.0: "holds", 0.02: "holds", 0.3: "does not hold"}
    assert "0.61 (layer 1) to 0.91 (layer 4)" in said.text and "differ by 0.3 per layer" in said.text


@pytest.mark.parametrize(("gap", "search_score", "said"), [(0.001, 2.4, True), (0.5, 2.4, False), (0.5, 3.4, True)])
def test_a_search_that_cannot_tell_rates_apart_is_said(made_up, gap, search_score, said):
    result = made_up({"standard": BASE})
    row = result.trials.iloc[0].to_dict() | {"kept": False, "chosen": False, "score": search_score}
    search = [row | {"rate": rate, "valid_loss": 1 + k * gap} for k, rate in enumerate((1e-3, 3e-3))]
    trials = pd.concat([result.trials.assign(valid_loss=[1.0, 1.1, 0.9]), pd.DataFrame(search)])
    settings = dict(result.settings) | {"rates": [1e-3, 3e-3], "finalists": 1}
    texts = [f.text for f in replace(result, trials=trials, settings=settings).findings()]
    found = [text for text in texts if text.startswith("Learning rates were chosen by one seed")]
    assert bool(found) is said
    if said:
        assert ("differ by less than seeds do for standard (0.001 and 0.003)" in found[0]) is (gap == 0.001)
        assert ("do not reach the trigram" in found[0]) is (search_score > 2.8)
