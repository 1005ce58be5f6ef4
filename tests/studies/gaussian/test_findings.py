"""What the Gaussian study says: verdicts that follow from the table, with enough inputs, and above rounding.

Also tests statistics.thesis.
"""

import dataclasses
import re

import numpy as np
import pytest

import headscape as hs
import zoo
from headscape.attention.models import wrap_module
from headscape.intervals import jackknife, mean_interval
from headscape.papers import claims
from headscape.report.drawing import draw
from headscape.report.gather import gather
from headscape.report.pictures import picture
from headscape.studies.gaussian.findings import findings
from headscape.studies.gaussian.result import over_inputs
from headscape.studies.gaussian.study import gaussian
from watched import captured_by


@pytest.fixture(scope="module")
def result():
    model, control = (wrap_module(zoo.make("llama", seed), name="llama") for seed in (0, 1))
    return gaussian(captured_by(model, 9, 40), model=model, control=control, threads=1)


def by_claim(result):
    return {f.claim.removeprefix("gaussian."): f for f in findings(result) if f.claim}


def changed(result, **fields):
    return type(result)(**vars_of(result) | fields)


def vars_of(result):
    return {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}


def test_every_claim_has_a_finding_with_a_rule(result):
    assert set(by_claim(result)) == {
        id.removeprefix("gaussian.") for id, one in claims().items() if one.study == "gaussian"
    } - {"temperature"}  # only where it is asked for
    ids = {figure.id for figure in result.figures()}
    assert len(ids) == len(result.figures())
    for finding in findings(result):
        assert finding.text.endswith(".") and "nan" not in finding.text
        assert finding.figure is None or finding.figure in ids
        if finding.judgement is not None:
            assert "lies" in finding.judgement.why or finding.verdict == "cannot tell"
    assert "Martin" not in findings(result)[0].text and "M. V. Wertich" in findings(result)[0].text


def test_verdicts_follow_from_the_table(result):
    found, frame = by_claim(result), result.to_frame()
    size = np.maximum(frame["kurtosis"].abs(), frame["skewness"].abs())
    assert f"in {(size <= 0.5).mean():.0%} of heads" in found["normal"].text
    folds = [result.frames["trained"][k]["raised"].quantile(0.1) for k in range(10)]
    raised = jackknife(lambda chosen: folds[0] if len(chosen) == 9 else folds[1 + 36 - chosen.sum()], 9)
    assert found["self"].verdict == "does not hold" and raised.high < 0  # random weights raise half of the heads
    assert str(raised) in found["self"].judgement.why
    assert ("were shrunk" in found["scores"].text) == (frame["score_shrinkage"].max() > 0)
    assert "were shrunk" in found["distance"].text
    assert found["rank"].holds is False and (frame["rank90"] > np.log(40)).mean() > 0.1


def test_an_interval_is_over_inputs():
    values = np.array([-1.0, 4.0, 2.0, 7.0])
    parts = [values.mean(), *(np.delete(values, i).mean() for i in range(4))]
    found, expected = over_inputs(parts, float), mean_interval(values)
    assert (found.value, found.low, found.high, found.n) == pytest.approx(
        (expected.value, expected.low, expected.high, 4)
    )
    assert not over_inputs([1.0], float).known


def test_inputs_that_repeat_decide_nothing(result):
    once = result.settings["inputs"]
    assert len(set(once)) == 9
    twice = by_claim(changed(result, settings={**result.settings, "inputs": [*once[:8], once[3]]}))
    decided = {name for name, finding in by_claim(result).items() if finding.verdict != "cannot tell"}
    assert len(decided) > 5
    for name in decided - {"sphere", "softmax"}:  # n counts tokens of the vocabulary
        assert twice[name].judgement.why.startswith("only 8 of 9 inputs are different")
    assert twice["sphere"] == by_claim(result)["sphere"]


def test_the_same_tokens_are_the_same_input():
    found = hs.gaussian(hs.from_attentions(_maps(), tokens=None), model=None)
    assert [found.settings["inputs"].index(name) for name in found.settings["inputs"]] == [0, 1, 0]


def _maps():
    """One layer of two heads on three inputs, the last being the first again."""
    rows = np.random.default_rng(0).dirichlet(np.ones(24), size=(2, 1, 2, 24)).astype(np.float32)
    return [[rows[i]] for i in (0, 1, 0)]


@pytest.mark.parametrize("n", [1, 7])
def test_fewer_than_eight_inputs_decide_nothing(n):
    model = wrap_module(zoo.make("bert"), name="bert")
    found = by_claim(gaussian(captured_by(model, n, 32), model=model, threads=1))
    tokens = {"sphere", "softmax"}  # about the vocabulary: its tokens are the inputs
    assert {f.verdict for name, f in found.items() if name not in tokens} == {"cannot tell"}
    assert f"{n} of the 8 inputs" in found["rank"].judgement.why
    assert found["softmax"].verdict == "holds"


def test_random_weights_say_what_is_not_learnt(result):
    found = by_claim(result)
    assert found["neighbours"].holds and "not learned" in found["neighbours"].text
    alone = by_claim(changed(result, control=None, control_folds=None))
    assert alone["neighbours"].holds and "not learned" not in alone["neighbours"].text


@pytest.mark.parametrize(("change", "verdict"), [(0.5, "holds"), (-0.5, "does not hold")])
def test_neighbours_share_more_whatever_the_gain(result, change, verdict):
    frame = result.heads.assign(information_measured=result.heads["information_values"] + change)
    columns = list(frame.columns.drop(["block", "layer", "head", "note"]))
    folds = np.repeat(frame[columns].to_numpy(dtype=float)[None], 9, axis=0)
    folds[1:, :, columns.index("information_measured")] += 1e-6 * np.arange(8)[:, None]
    alone = changed(result, heads=frame, folds=folds, control=None, control_folds=None)
    assert by_claim(alone)["neighbours"].verdict == verdict


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_a_random_model_earns_no_tick_about_what_is_learnt(name, result):
    if name != "llama":
        model = wrap_module(zoo.make(name), name=name)
        result = gaussian(captured_by(model, 8, 32), model=model, threads=1)
    found = by_claim(result)
    assert not any(found[claim].holds for claim in ("self", "next", "sphere") if claim in found)


def test_what_queries_are_read_from_is_told_only_by_an_interval(result):
    """Without one, or with inputs that repeat, "about as much as in random ones" would be an answer."""

    def said(found):
        return next(f.text for f in findings(found) if "along the leading singular vectors of a head" in f.text)

    def with_ratio(ratio):
        frames = [frame.assign(data_query=ratio + 1e-3 * i) for i, frame in enumerate(result.frames["trained"])]
        return with_frames(result.frames | {"trained": frames})

    def with_frames(frames, **fields):
        found = changed(result, **fields)
        vars(found)["frames"] = frames
        return found

    assert said(with_ratio(1.5)).startswith("Queries are read from directions in which a layer's inputs vary more")
    assert said(with_ratio(0.5)).startswith("Queries are read from directions in which a layer's inputs vary less")
    unsure = "We cannot tell whether queries are read from directions"
    one = {name: parts[:1] for name, parts in result.frames.items()}
    again = dict(result.settings) | {"inputs": ["a", *result.settings["inputs"][1:-1], "a"]}
    for found in (with_ratio(1.0), with_frames(one), with_frames(with_ratio(1.5).frames, settings=again)):
        assert said(found).startswith(unsure)


def test_few_heads_are_in_order_by_chance(result):
    """Two heads are in the predicted order every other time, whatever the weights say."""
    for n, decided in ((2, False), (3, False), (8, True)):
        frame = result.heads.iloc[:n].assign(row_variance=np.arange(n) + 1.0, row_variance_predicted=np.arange(n) + 2.0)
        columns = list(frame.columns.drop(["block", "layer", "head", "note"]))
        folds = np.repeat(frame[columns].to_numpy(dtype=float)[None], 9, axis=0)
        few = by_claim(changed(result, heads=frame, folds=folds, control=None, control_folds=None))["chain_variance"]
        assert re.search(r"rank correlation 1 \[[-0-9.]+, 1\] \(n = 9\)", few.text)
        assert few.verdict == ("holds" if decided else "cannot tell"), n


def test_what_is_below_rounding_has_no_interval(result):
    """Spreads of some 1e-16: tokens are one, and how far alpha matters cannot be told."""
    arrays = dict(result.arrays)
    rng = np.random.default_rng(0)
    for name in ("no skip", "no skip, alpha = 1/2", "no skip, alpha = 2"):
        arrays[f"depth/{name}"] = arrays[f"depth/{name}"].copy()
        arrays[f"depth/{name}"][:, -1, 0] = rng.uniform(1e-16, 9e-16, 8)
    found = by_claim(changed(result, arrays=arrays))
    assert "to less than 6e-14, the numerical precision," in found["mixture-alone"].text
    assert "e-16" not in found["mixture-alone"].text and found["mixture-alone"].holds
    assert found["mixture-alone"].judgement.why.startswith("5.68e-14 lies below 0.1")  # a bound, not an interval
    assert found["spectra"].verdict == "cannot tell" and "numerical precision" in found["spectra"].judgement.why
    assert found["spectra"].text.count("less than 6e-14") == 3 and "e-16" not in found["spectra"].text
    figure = next(f for f in changed(result, arrays=arrays).figures() if f.id == "mixture-spread")
    lines = {line["name"]: line for line in figure.data["series"]}
    assert lines["no skip"]["y"][-1] == lines["numerical precision"]["y"][-1] == 256 * 2**-52


@pytest.mark.parametrize(
    ("ends", "value", "verdict"),
    [
        (np.full(8, 0.5), 0.5, "does not hold"),
        (np.full(8, 0.01), 0.01, "holds"),
        (np.geomspace(1e-12, 0.05, 8), 6.7e-7, "holds"),
        (np.array([0.5, *np.full(7, 0.01)]), 0.01, "cannot tell"),
        (np.array([1e-6, *np.full(7, 1e-17)]), 256 * 2**-52, "holds"),
        (np.array([0.9, *np.full(7, 1e-17)]), 256 * 2**-52, "cannot tell"),
    ],
)
@pytest.mark.parametrize(("claim", "name"), [("mixture", "trained"), ("mixture-alone", "no skip")])
def test_tokens_are_one_by_the_median_whatever_the_spreads(result, claim, name, ends, value, verdict):
    """One statistic for all: the mean of spreads over many orders of magnitude is that of one input."""
    spread = result.arrays[f"depth/{name}"].copy()
    spread[:, -1, 0] = ends * np.linspace(0.99, 1.01, len(ends))
    arrays = result.arrays | {f"depth/{name}": spread}
    if name == "trained":
        arrays["floor/trained"] = arrays["floor/no skip"]
    changing = changed(result, arrays=arrays)
    found = by_claim(changing)[claim]
    span = found.judgement.statistic
    assert span.value == pytest.approx(value, rel=0.05) and found.verdict == verdict
    assert f"to {span}, mean cosine" in found.text or "the numerical precision, mean cosine" in found.text
    lines = {line["name"]: line for f in changing.figures() if f.id == "mixture-spread" for line in f.data["series"]}
    assert lines[name]["y"][-1] == pytest.approx(value, rel=0.05)


def test_bands_of_cosines_and_spreads_stay_where_these_can_be(result):
    """Inputs of which one is far less alike than the rest: the interval for skewed ones ends beyond 1."""
    arrays = dict(result.arrays)
    wide = arrays["depth/no skip"].copy()
    wide[:, -1] = np.r_[np.full(len(wide) - 1, 0.99), 0.05][:, None]
    figures = {f.id: f for f in changed(result, arrays=arrays | {"depth/no skip": wide}).figures()}
    for figure, least in (("mixture", -1.0), ("mixture-spread", 0.0)):
        banded = [line for line in figures[figure].data["series"] if "high" in line]
        assert "no skip" in {line["name"] for line in banded}
        assert all((line["low"] >= least).all() and (line["high"] <= 1).all() for line in banded)


def test_bands_of_ratios_do_not_fall_below_zero(result):
    folds = result.folds.copy()
    k = list(result.heads.columns.drop(["block", "layer", "head", "note"])).index("trace_ratio")
    folds[1:, :, k] *= np.r_[np.ones(len(folds) - 2), 9.0][:, None]  # without the last input it is far larger
    figure = next(f for f in changed(result, folds=folds).figures() if f.id == "propagated")
    banded = [line for line in figure.data["series"] if "low" in line]
    assert banded and all((line["low"] >= 0).all() for line in banded)


def test_larger_spectra_are_judged_by_pairs_of_inputs(result):
    arrays = dict(result.arrays)
    base = np.geomspace(1e-6, 1e-2, 8)  # inputs differ by far more than alpha does
    for name, factor in (("no skip, alpha = 1/2", 1.0), ("no skip, alpha = 2", 1.0)):
        arrays[f"depth/{name}"] = arrays[f"depth/{name}"].copy()
        more = np.linspace(0.9e-3, 1.1e-3, 8) if name.endswith("2") and "/" not in name else 0
        arrays[f"depth/{name}"][:, -1, 0] = factor * base + more
    assert by_claim(changed(result, arrays=arrays))["spectra"].holds


def test_figures_draw_what_their_captions_speak_of(result):
    figures = {figure.id: figure for figure in result.figures()}
    for name in ("score-sd", "score-kurtosis", "score-self"):
        data = figures[name].data
        (line,) = data["lines"]
        assert "diagonal" in figures[name].read and line["name"] == "equal" and np.array_equal(line["x"], line["y"])
        others = np.concatenate([data["x"], data["y"]])
        assert min(others) == pytest.approx(line["x"][0]) and max(others) == pytest.approx(line["x"][-1])
    levels = {name: {s["name"]: s["y"] for s in figures[name].data["series"]} for name in ("propagated", "rank")}
    assert set(levels["propagated"]["equal"]) == {1.0} and set(levels["rank"]["log n"]) == {np.log(40)}
    section = gather([result]).sections[0]
    assert not section.problems
    for spec in section.figures:
        if spec.kind not in ("table", "head_grid"):
            assert draw(spec, section) is not None and picture(spec, section)
