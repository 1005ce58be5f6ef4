"""Scores as colours."""

import numpy as np
import pytest

from headscape.report.palette import CIVIDIS, PURPLE_ORANGE
from headscape.report.shades import Shades


def test_the_ends_have_the_ends_of_the_palette_and_nan_has_none():
    shades = Shades.of(np.array([2.0, 3.0, np.nan, 4.0]))
    assert [shades.colour(x) for x in (2.0, 4.0, 9.0)] == [CIVIDIS[0], CIVIDIS[-1], CIVIDIS[-1]]
    assert shades.colour(np.nan) is None and shades.said == "from 2 (dark) to 4 (bright)"


def test_signed_scores_meet_at_zero():
    shades = Shades.of(np.array([-1.0, 0.0, 4.0]))
    assert shades.colour(0.0) == PURPLE_ORANGE[4] and shades.colour(4.0) == PURPLE_ORANGE[-1]
    assert shades.said == "from -4 (purple) to 4 (orange)"


def test_a_few_extreme_heads_do_not_use_up_the_colours():
    values = np.append(np.linspace(0, 1, 99), 1e6)
    assert Shades.of(values).high == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("values", [[1.5, 1.5], [1.5]])
def test_scores_that_are_all_equal_have_one_colour(values):
    shades = Shades.of(np.array(values))
    assert shades.colour(1.5) == CIVIDIS[0] and shades.said == "1.5 in all heads"


def test_no_scores_have_no_colour():
    assert Shades.of(np.array([np.nan])).colour(np.nan) is None
