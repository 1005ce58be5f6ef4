"""What the few-shot study says: verdicts by the rule, on the map that is drawn, and none from one prompt."""

from dataclasses import replace

import numpy as np
import pytest

from headscape.intervals import mean_interval
from headscape.papers import claims
from headscape.studies.prompt.maps import MEASURES
from headscape.studies.prompt.study import prompt
from writers import tiny

N_PROMPT = 6


@pytest.fixture(scope="module")
def result():
    """A result of two prompts, with its measures drawn at random for six."""
    found = prompt(
        *(tiny(), None),
        **{"control": tiny(seed=1), "shots": 1, "prompts": 2, "alphas": (0.5, 2.0), "permutations": 3, "threads": 1},
        **{"random_state": 1, "sweep": (0, 1, 3)},
    )
    rng = np.random.default_rng(0)

    def six(array, axis):
        return np.repeat(array.mean(axis=axis, keepdims=True), N_PROMPT, axis=axis) + 1e-4 * rng.normal(
            size=(*array.shape[:axis], N_PROMPT, *array.shape[axis + 1 :])
        )

    return replace(
        found,
        measures=six(found.measures, 1),
        losses=six(found.losses, 1),
        cosine=six(found.cosine, 1),
        targets=[*found.targets] * 3,
        clues={version: [*clues] * 3 for version, clues in found.clues.items()},
        sweep=replace(
            found.sweep,
            losses=six(found.sweep.losses, 2),
            **{n: [row * 3 for row in getattr(found.sweep, n)] for n in ("clues", "maps", "words", "word_shots")},
        ),
        **{name: six(getattr(found, name), 0) for name in ("weighted", "uniform", "distance")},
    )


def with_measure(result, version, measure, values):
    """The result with a measure (n_layer,) of a version, the same for all prompts but for a little noise."""
    measures = result.measures.copy()
    seed = [result.versions.index(version), MEASURES.index(measure)]
    noise = 1e-3 * np.random.default_rng(seed).normal(size=(N_PROMPT, result.n_layers))
    measures[result.versions.index(version), :, :, MEASURES.index(measure)] = np.asarray(values) + noise
    return replace(result, measures=measures)


def by_claim(result):
    return {f.claim.removeprefix("prompt."): f for f in result.findings() if f.claim}


def test_every_claim_has_a_finding_and_the_thesis_is_named(result):
    assert set(by_claim(result)) == {
        id.removeprefix("prompt.") for id, one in claims().items() if one.study == "prompt"
    }
    assert (
        "M. V. Wertich, " in result.findings()[0].text and "Lens of Gaussian Distributions" in result.findings()[0].text
    )
    assert all("nan" not in finding.text and "the thesis" not in finding.text for finding in result.findings())


def test_one_prompt_decides_nothing(result):
    one = replace(
        result,
        measures=result.measures[:, :1],
        losses=result.losses[:, :1],
        cosine=result.cosine[:, :1],
        sweep=replace(result.sweep, losses=result.sweep.losses[..., :1]),
        **{name: getattr(result, name)[:1] for name in ("weighted", "uniform", "distance")},
    )
    verdicts = {name: finding.verdict for name, finding in by_claim(one).items()}
    assert verdicts.pop("law") == "holds"  # needs no prompt at all
    assert set(verdicts.values()) == {"cannot tell"}


def test_attending_to_oneself_is_judged_on_the_map_that_is_drawn(result):
    """Most attention rests on the first token; of what the picture shows, the diagonal may still be most."""
    less = with_measure(result, "alpha 2", "self", result.of("trained", "self").mean(axis=0) - 0.05)
    less = with_measure(less, "trained", "drawn_self", [0.5, 0.3, 0.4])
    found = by_claim(with_measure(less, "alpha 2", "drawn_self", [0.7, 0.3, 0.6]))["upscaled"]
    assert found.holds and found.figure == "self-mass" and "in 2 of 3 layers" in found.text
    assert "from 0.50 to 0.70, 0.30 to 0.30, 0.40 to 0.60" in found.text
    assert by_claim(with_measure(less, "alpha 2", "drawn_self", [0.5, 0.1, 0.4]))["upscaled"].holds is False
    shown = next(f for f in result.figures() if f.id == "self-mass").data["series"]
    drawn = mean_interval(result.of("alpha 2", "drawn_self")[:, 0])
    line = next(one for one in shown if one["name"] == "alpha 2")
    assert (line["y"][0], line["low"][0]) == (drawn.value, drawn.low)
    assert next(one for one in shown if one["name"] == "half")["y"].tolist() == [0.5] * 3


@pytest.mark.parametrize(
    ("by_layer", "verdict"),  # of three layers the first two are the middle half
    [([0.8, 0.2, 0.7], "holds"), ([0.2, 0.8, 0.7], "does not hold"), ([0.8, 0.0, 0.4], "cannot tell")],
)
def test_diagonal_at_both_ends_takes_both(result, by_layer, verdict):
    found = by_claim(with_measure(result, "trained", "drawn_self", by_layer))["depth"]
    assert found.verdict == verdict


def test_flat_and_worse_takes_both(result):
    flat = with_measure(result, "alpha 0.5", "entropy", result.of("trained", "entropy").mean(axis=0) + 0.1)
    v = flat.versions.index("alpha 0.5")
    for change, verdict in ((0.5, "holds"), (-0.5, "does not hold")):
        losses = flat.losses.copy()
        losses[v] = losses[0] + change + 1e-3 * np.arange(N_PROMPT)
        assert by_claim(replace(flat, losses=losses))["downscaled"].verdict == verdict


def test_no_share_has_an_interval_beyond_1(result):
    nearly = result.measures.copy()
    nearly[0] = np.array([0.7, *[0.999] * (N_PROMPT - 1)])[:, None, None]
    assert all(replace(result, measures=nearly).mean("trained", name).high == 1 for name in MEASURES)
    nearly[0, :, :, MEASURES.index("cross")] = 1 - nearly[0, :, :, MEASURES.index("within")]
    text = by_claim(replace(result, measures=nearly))["shots"].text
    assert ", 1] (n = 6) stays within the shot" in text


def test_shots_must_beat_what_being_near_gives(result):
    def gain(size):
        distance = result.measures[0].copy()
        share = result.within_share()[..., None] - size
        total = distance[..., [MEASURES.index("within")]] + distance[..., [MEASURES.index("cross")]]
        distance[..., [MEASURES.index("within")]] = share * total
        distance[..., [MEASURES.index("cross")]] = (1 - share) * total
        return by_claim(replace(result, distance=distance))["shots"]

    assert gain(0.02 + 1e-3 * np.arange(6)[:, None, None]).holds
    assert gain(-0.02 + 1e-3 * np.arange(6)[:, None, None]).holds is False


def test_what_was_learnt_needs_random_weights(result):
    """Words attend within their shot and examples help: no tick without random weights, nor where these do as much."""
    near = replace(result, distance=result.measures[0].copy())
    within, cross = MEASURES.index("within"), MEASURES.index("cross")
    near.distance[..., within] = 0.5 * near.distance[..., cross] + 1e-3 * np.arange(N_PROMPT)[:, None]
    version, measures = result.versions.index("random weights"), near.measures.copy()
    measures[0, ..., within], measures[version, ..., within] = (
        measures[0, ..., cross],
        (0.1 + 1e-3 * np.arange(N_PROMPT)[:, None]) * measures[version, ..., cross],
    )
    learnt = replace(near, measures=measures)
    assert by_claim(learnt)["shots"].holds
    as_much = measures.copy()
    as_much[version] = as_much[0]
    assert not by_claim(replace(learnt, measures=as_much))["shots"].holds
    kept = [v for v, name in enumerate(result.versions) if name != "random weights"]
    alone = replace(
        learnt,
        measures=measures[kept],
        losses=result.losses[kept],
        versions=[result.versions[v] for v in kept],
        cosine=result.cosine[:1],
        sweep=replace(result.sweep, losses=np.array([4.0, 3.0, np.nan])[:, None, None] - np.zeros((3, 3, N_PROMPT))),
    )
    alone.sweep.losses[0] -= np.arange(3)[:, None] * (1 + 1e-3 * np.arange(N_PROMPT))
    for name in ("shots", "more"):
        found = by_claim(alone)[name]
        assert found.verdict == "cannot tell" and "control missing" in found.judgement.why


def test_a_law_that_does_not_hold_says_why(result):
    found = by_claim(replace(result, law_error=0.4, law_exception="QK-norm (q_norm, k_norm) undoes any scaling"))["law"]
    assert found.holds is False and "QK-norm" in found.text and "Scores were multiplied" in found.text
    unknown = by_claim(replace(result, law_error=float("nan"), law_exception="no query and key maps are understood"))[
        "law"
    ]
    assert unknown.verdict == "cannot tell"


@pytest.mark.parametrize(
    ("own", "exchanged", "random", "more", "style"),  # loss after 0, 1 and 3 examples
    [
        ((4, 3, 2), (4, 3.5, 2.5), (6, 6, 6), "holds", "holds"),
        ((4, 3, 2), (4, 4, 3.8), (6, 6, 6), "holds", "does not hold"),
        ((4, 3, 2), (4, 3.5, 2.5), (6, 5, 3.9), "does not hold", "holds"),  # a longer prompt does as much
        ((4, 4, 4), (4, 4, 4), (6, 6, 7), "cannot tell", "cannot tell"),  # random weights that get worse prove nothing
        ((4, 3, 3.5), (4, 3.9, 3.9), (6, 6, 6), "does not hold", "does not hold"),
        ((4, 5, 6), (4, 5, 6), (6, 6, 6), "does not hold", "does not hold"),  # what does not help teaches nothing
    ],
)
def test_examples_must_help_beyond_random_weights_and_by_their_pairs(result, own, exchanged, random, more, style):
    noise = 1e-3 * np.random.default_rng(2).normal(size=(3, 3, N_PROMPT))
    planted = np.array([own, exchanged, random], dtype=float)[..., None] + noise
    found = by_claim(replace(result, sweep=replace(result.sweep, losses=planted)))
    assert (found["more"].verdict, found["style"].verdict) == (more, style)
    assert found["more"].figure == "sweep-loss"


def test_without_a_sweep_nothing_is_said_of_it(result):
    assert not {"more", "style"} & set(by_claim(replace(result, sweep=None)))
    alone = replace(result.sweep, losses=np.where(np.arange(3)[:, None, None] == 2, np.nan, result.sweep.losses))
    assert "random weights" not in by_claim(replace(result, sweep=alone))["more"].text
    assert not alone.loss("random weights")
