"""Chapters 5 and 6 on draws: formulas that are right, printed ones that are not, and the table of both.

Also tests studies.work.sentences.
"""

import numpy as np
import pytest

from headscape.errors import InputError
from headscape.studies.laws import LawsResult, laws


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    place = tmp_path_factory.mktemp("laws") / "run"
    found = laws(place, n=24, draws=400, random_state=1)
    return found


def verdicts(result):
    return {f.claim: f.verdict for f in result.findings() if f.claim}


def test_what_the_thesis_prints_is_told_from_what_is_right(result):
    found = verdicts(result)
    assert found["laws.slerp"] == found["laws.entropy"] == found["laws.angle_covariance"] == "holds"
    assert found["laws.ratio"] == found["laws.bound"] == found["laws.aligned"] == found["laws.order"] == "does not hold"
    assert found["laws.angle_variance"] == "does not hold"


def test_draws_lie_at_the_formulas(result):
    frame = result.to_frame().set_index("quantity")
    for name in (
        "n Var(x^T C y), x = y",
        "tr(A^T B) / n^2 s^2, unrelated",
        "tr(A^T B) / n^2 s^2, aligned, paired at random",
    ):
        row = frame.loc[name]
        wide = 2 * (row["drawn_high"] - row["drawn_low"]) + 0.02  # the theory is that of large n
        assert row["drawn"] == pytest.approx(row["formula"], abs=wide)
    assert frame.loc["scores beyond ||Wq|| ||Wk|| |x| |y|", "drawn"] == 0
    assert frame.loc["scores beyond that times |cos|", "drawn"] > 0.05


def test_a_null_in_place_of_the_law_earns_no_tick(result):
    arrays = dict(result.arrays)
    arrays["slerp/0/errors"] = arrays["slerp/0/errors"][::-1]
    arrays["angle/products"] = np.random.default_rng(0).permuted(arrays["angle/products"], axis=0)
    found = verdicts(LawsResult(arrays, result.settings))
    assert found["laws.slerp"] == "does not hold" and found["laws.angle_covariance"] == "cannot tell"


def test_what_is_printed_would_earn_its_tick_if_it_were_so(result):
    arrays = dict(result.arrays)
    arrays["angle/squares"] = arrays["angle/squares"] * (arrays["angle/cosines"][:, None] ** 2 + 1)
    arrays["bound"] = arrays["bound"][[1, 0]]  # the right bound in place of the printed one
    found = verdicts(LawsResult(arrays, result.settings))
    assert found["laws.angle_variance"] == found["laws.bound"] == "holds"


def test_it_comes_back_from_disk_and_every_figure_has_its_words(result, tmp_path):
    result.save(tmp_path)
    again = LawsResult.load(tmp_path)
    assert again.to_frame().equals(result.to_frame())
    assert [f.id for f in again.figures()] == ["laws", "slerp", "entropy", "ratio", "angles", "bound", "traces"]
    assert again.figures()[3].read.endswith(" n = 20.")  # bars of formulas rest on no draws


def test_what_cannot_be_drawn_is_refused():
    for options, said in (({"n": 4}, "n must"), ({"draws": 2}, "draws must"), ({"radii": (0.0,)}, "radii must")):
        with pytest.raises(InputError, match=said):
            laws(**options)
