"""headscape compress: planted blocks need few coefficients once organized; controls, rates and the model."""

import numpy as np
import pytest

import headscape as hs
from commands import headscape, one_line_error
from headscape.errors import InputError
from headscape.intervals import mean_interval
from headscape.studies.compress import CompressResult
from headscape.studies.compress.study import as_maps
from planted_runs import make_run
from tiny import captured


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    """Attention that is constant on blocks of tokens in a random order, the same for all heads of a kind."""
    rng = np.random.default_rng(0)
    kinds = [np.kron(rng.gamma(0.3, size=(4, 4)), np.ones((4, 4))) for _ in range(2)]
    rows, columns = rng.permutation(16), rng.permutation(16)
    maps = np.array([[kinds[(layer + head) % 2][np.ix_(rows, columns)] for head in range(4)] for layer in range(2)])
    noisy = maps[None] + 0.01 * rng.uniform(size=(4, *maps.shape))
    return make_run(
        tmp_path_factory.mktemp("compress") / "run", noisy / noisy.sum(axis=-1, keepdims=True), organized=False
    )


@pytest.fixture(scope="module")
def result(blocks):
    return hs.compress(blocks, threads=1, shares=(0.05, 0.1, 1.0))


def test_planted_blocks_need_few_coefficients_once_organized(blocks, result):
    error = {way: result.of(result.error, way, 0.05).mean() for way in ("organized", "natural", "permuted")}
    assert error["organized"] < 0.1 < error["natural"] and error["organized"] < error["permuted"] / 3
    verdicts = {finding.claim: finding.verdict for finding in result.findings()}
    assert verdicts["compress.maps"] == "holds" and "compress.model" not in verdicts
    np.testing.assert_allclose(result.of(result.raw, "organized", 1.0), 0, atol=1e-6)
    again = hs.open_result(blocks, "compress")
    np.testing.assert_array_equal(again.error, result.error)
    assert {figure.id for figure in again.figures()} == {"map-error", "curves"}


def test_rates_are_slopes():
    shares = np.array([0.01, 0.1, 1.0])
    slopes = np.array([0.68, 0.7, 0.72])  # of the three inputs
    raw = np.broadcast_to(shares**-0.4, (3, 5, 3)).copy()
    raw[:, 1] = shares ** -slopes[:, None]

    def rate(alpha, raw=raw):
        exponents = alpha + np.array([[0.0], [0.01], [-0.01]]) * np.ones(2)
        made = CompressResult(shares, raw, raw, exponents, None, "", {"shares": shares.tolist()})
        (found,) = [finding for finding in made.findings() if finding.claim == "compress.rate"]
        return made, found

    made, found = rate(0.6)
    np.testing.assert_allclose(made.rates["organized"], 0.4)
    assert found.verdict == "holds" and found.judgement.statistic.value == pytest.approx(0.1)
    assert f"as k^-a with a = {mean_interval(slopes)}. " in found.text  # one sign, not two
    promised = [
        any("promised" in line["name"] for line in rate(alpha)[0].figures()[0].data["series"]) for alpha in (0.6, 1e-3)
    ]
    assert promised == [True, False]  # as much as the finding says of them
    assert rate(-0.1)[1].verdict == "cannot tell" == rate(1e-3)[1].verdict  # nothing is promised
    raw[2] = raw[0]
    assert "only 2 of 3 inputs are different" in rate(0.6, raw)[1].judgement.why


def test_one_share_has_no_rate_and_says_so(blocks):
    (rate,) = [f for f in hs.compress(blocks, threads=1, shares=(0.05,)).findings() if f.claim == "compress.rate"]
    assert rate.verdict == "cannot tell" and rate.text.endswith(
        "only one share of the numbers was tried, 5%, and a fall takes two."
    )
    assert "nan" not in rate.text + rate.judgement.why


def test_maps_are_probabilities_over_present_keys():
    present = np.tri(3, dtype=bool)
    found = as_maps(np.random.default_rng(0).normal(size=(3, 3, 2)) - 0.5, present)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    assert (found >= 0).all() and not found[~present].any()


def test_all_coefficients_change_nothing_in_the_model_and_few_do():
    model, cap = captured("bert", batches=1)
    found = hs.compress(cap, model=model, shares=(0.02, 1.0), threads=1)
    assert found.unit == "state"
    assert (
        abs(found.of(found.change, "organized", 1.0)).max()
        < 1e-4
        < abs(found.of(found.change, "organized", 0.02)).max()
    )


def test_mistakes_are_said_at_once(blocks):
    with pytest.raises(InputError, match="shares lie above 0"):
        hs.compress(blocks, shares=(0.0,))
    assert "'x'" in one_line_error(headscape("compress", blocks, "--shares", "x%"), 2)
