"""Parameters checked by name: what is accepted, and what the refusal says."""

import importlib
import importlib.util
import inspect

import numpy as np
import pytest

import headscape as hs
from headscape.attention.samples import samples_of
from headscape.checks import LARGEST, check_finite, finite, integer, one_of, positive, renamed, seed, within
from headscape.errors import InputError
from headscape.studies import STUDIES


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: finite("t", np.nan), "t must be a finite number, not nan"),
        (lambda: finite("t", "two"), "t must be a finite number, not 'two'"),
        (lambda: finite("t", None), "t must be a finite number, not None"),
        (lambda: positive("eps", 0), "eps must be positive, not 0"),
        (lambda: positive("eps", np.nan), "eps must be positive, not nan"),
        (lambda: within("share", 1.5, 0, 1), "share must be a number from 0 to 1, not 1.5"),
        (lambda: within("share", np.nan, 0, 1), "share must be a number from 0 to 1, not nan"),
        (lambda: integer("n", 2.5), "n must be a whole number, not 2.5"),
        (lambda: integer("n", 2.0), "n must be a whole number, not 2.0"),
        (lambda: integer("n", 0, low=1), "n must be at least 1, not 0"),
        (lambda: integer("n", 9, -3, 2), "n must be a whole number from -3 to 2, not 9"),
        (lambda: seed(-1), "random_state must be at least 0, not -1"),
        (lambda: seed(None), "random_state must be a whole number, not None"),
        (lambda: seed(2**64), f"random_state must be a whole number from 0 to {2**63 - 1}, not {2**64}"),
        (lambda: one_of("kind", "x", ("a", "b")), "kind is one of a, b, not 'x'"),
    ],
)
def test_a_refusal_names_parameter_and_value(check, message):
    with pytest.raises(InputError) as error:
        check()
    assert str(error.value) == message


def test_what_is_fine_comes_back():
    assert finite("t", np.float32(0.5)) == 0.5 and positive("eps", np.inf) == np.inf and within("share", 1, 0, 1) == 1
    assert integer("n", np.int64(3), low=3) == 3 and seed(0) == 0
    assert one_of("kind", "a", {"a": 1}) == "a"


def test_entries_are_named_by_axis_and_index():
    X = np.arange(6.0).reshape(2, 3)
    assert check_finite(X, ("row", "column")) == (0.0, 5.0)
    assert check_finite(X.astype(np.float16), ("row", "column")) == (0.0, 5.0)
    assert check_finite(np.zeros((0, 3)), ("row", "column")) == (0.0, 0.0)
    for bad, way_out in ((np.nan, "remove"), (-np.inf, "remove"), (2 * LARGEST, "scale"), (-2 * LARGEST, "scale")):
        X[1, 2] = bad
        with pytest.raises(InputError, match=rf"row 8, column 2 \(1 such entries\); {way_out}"):
            check_finite(X, ("row", "column"), start=7)


def _with_a_seed():
    """Every function of a study that takes `random_state`: found, not listed, so that a new one is held to it too."""
    for study in STUDIES:
        if importlib.util.find_spec(f"headscape.studies.{study}.study") is None:
            continue
        module = importlib.import_module(f"headscape.studies.{study}.study")
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function) and "random_state" in inspect.signature(function).parameters:
                yield pytest.param(function, id=f"{study}.{name}")


@pytest.mark.parametrize("function", list(_with_a_seed()))
@pytest.mark.parametrize("wrong", [-1, 1.5, np.nan, "x", True, 2**64], ids=str)
def test_every_study_checks_its_seed_before_anything_else(function, wrong):
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.name != "how"]
    if function.__module__.endswith("organize.study") and function.__name__ != "organize":
        pytest.skip("works on arrays in memory")
    with pytest.raises(InputError, match="random_state must be"):
        function(*("nowhere" for _ in needed), random_state=wrong)


@pytest.mark.parametrize("wrong", [np.nan, 2.5, "two", 0, True], ids=str)
def test_counts_are_checked_by_name_before_anything_else(wrong):
    for name in ("jobs", "threads"):
        with pytest.raises(InputError, match=f"{name} must be"):
            hs.organize("nowhere", **{name: wrong})
    for name in ("tokens", "batches"):
        with pytest.raises(InputError, match=f"{name} must be"):
            samples_of(None, "a text", **{name: wrong})
    if wrong != 0:  # too few are too few for an interval
        with pytest.raises(InputError, match="windows must be"):
            hs.prune("nowhere", windows=wrong)
    with pytest.raises(InputError, match="a model is given by its name or path, not 3"):
        hs.load_model(3)


def test_a_parameter_that_was_renamed_still_works():
    @renamed("seed", "random_state")
    def draw(n, *, random_state=0):
        return n, random_state

    with pytest.warns(DeprecationWarning, match="random_state="):
        assert draw(3, seed=5) == (3, 5)
    assert draw(3, random_state=5) == (3, 5)
