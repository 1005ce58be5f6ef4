import numpy as np
import pytest
from scipy.integrate import solve_ivp

from headscape.errors import HeadscapeError, InputError
from headscape.hopfield.dynamics import (
    DISCRETIZATIONS,
    Field,
    State,
    alpha_of,
    amplification,
    central_step,
    is_stable,
    step,
    trajectory,
    velocity,
)

TIME, TAU, TAU_HIDDEN = 1.0, 0.8, 0.5


def problem(seed=0, tokens=4, dim=3):
    rng = np.random.default_rng(seed)
    field = Field.of(rng.normal(size=(dim, 2)), rng.normal(size=(dim, 2)), rng.normal(size=(dim, dim)))
    return State(rng.normal(size=(tokens, dim)), rng.normal(size=(tokens, tokens))), field


def solved(state, field):
    """The adaptive solver's state at TIME."""
    shapes = [part.shape for part in state]
    size = state.x.size

    def unpack(y):
        return State(y[:size].reshape(shapes[0]), y[size:].reshape(shapes[1]))

    def slope(_, y):
        return np.concatenate([part.ravel() for part in velocity(unpack(y), field, TAU, TAU_HIDDEN)])

    start = np.concatenate([part.ravel() for part in state])
    return unpack(solve_ivp(slope, (0, TIME), start, method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1])


def errors(visible, hidden, counts, seed=0):
    state, field = problem(seed)
    exact = solved(state, field)
    found = []
    for n in counts:
        dt = TIME / n
        end = trajectory(state, field, n, dt / TAU, dt / TAU_HIDDEN, visible, hidden)[-1]
        found.append(max(np.abs(a - b).max() for a, b in zip(end, exact, strict=True)))
    return np.array(found)


@pytest.mark.parametrize(
    ("visible", "hidden", "order"), [*((v, h, 1) for v, h in DISCRETIZATIONS), ("central", "central", 2)]
)
def test_every_discretisation_tends_to_the_solution_at_its_order(visible, hidden, order):
    counts = np.array([40, 80, 160, 320])
    found = errors(visible, hidden, counts)
    slopes = np.log2(found[:-1] / found[1:])
    assert slopes[-1] == pytest.approx(order, abs=0.15)
    assert found[-1] < 0.02


def test_central_differences_are_unstable_where_the_others_are_not():
    # dx/dt = -x: nothing is attended to, the true solution dies out
    nothing = Field(lambda x: np.zeros((len(x), len(x))), lambda x: np.zeros_like(x))
    start = State(np.ones((2, 2)), np.ones((2, 2)))
    for rho in (0.01, 0.1, 0.5):
        n = int(np.ceil(30 / rho))
        central = trajectory(start, nothing, n, rho, rho, "central", "central")
        sizes = np.array([np.abs(state.x).max() for state in central[-6:]])
        assert sizes[-1] > 1e3
        np.testing.assert_allclose(sizes[1:] / sizes[:-1], rho + np.sqrt(1 + rho**2), rtol=1e-6)
        for visible, hidden in DISCRETIZATIONS:
            end = trajectory(start, nothing, n, rho, rho, visible, hidden)[-1]
            assert np.abs(end.x).max() < 1e-9 and np.abs(end.h).max() < 1e-9


def test_central_differences_blow_up_on_attention_too():
    state, field = problem()
    small = Field(
        field.scores, lambda x: 0.5 * field.values(x) / np.abs(np.linalg.eigvals(field.values(np.eye(3)))).max()
    )
    far = {name: trajectory(state, small, 400, 0.2, 0.2, *name)[-1].x for name in [("central",) * 2, *DISCRETIZATIONS]}
    assert not np.abs(far["central", "central"]).max() < 1e6
    assert all(np.abs(far[name]).max() < 10 for name in DISCRETIZATIONS)


@pytest.mark.parametrize("rho", [0.3, 1.0, 1.9, 2.1, 5.0])
def test_the_stability_region_is_that_of_the_step(rho):
    nothing = Field(lambda x: np.zeros((len(x), len(x))), lambda x: np.zeros_like(x))
    start = State(np.ones((1, 1)), np.ones((1, 1)))
    for method in ("forward", "backward"):
        ends = trajectory(start, nothing, 200, rho, rho, method, method)
        assert (abs(ends[-1].x[0, 0]) < 1e-3) == is_stable(method, -rho)
        assert ends[1].x[0, 0] == pytest.approx(amplification(method, -rho)[0].real)
    assert not is_stable("central", -rho)
    assert not any(is_stable("central", complex(a, b)) for a in (-1, 0, 1) for b in (-0.5, 0, 2))


def test_the_papers_layer_is_the_forward_backward_step():
    state, field = problem(3)
    rho, rho_hidden = 0.4, 0.7
    a, a_hidden = alpha_of(rho, "forward"), alpha_of(rho_hidden, "backward")
    assert (a, a_hidden) == pytest.approx((0.6, 1 / 1.7))
    x = a * state.x + (1 - a) * (np.exp(state.h) / np.exp(state.h).sum(1, keepdims=True)) @ field.values(state.x)
    h = a_hidden * state.h + (1 - a_hidden) * field.scores(x)
    got = step(state, field, rho, rho_hidden)
    np.testing.assert_allclose(got.x, x, rtol=1e-12)
    np.testing.assert_allclose(got.h, h, rtol=1e-12)


def test_delayed_attention_at_full_hidden_step():
    state, field = problem(4)
    got = step(state, field, 0.5, 1.0, "forward", "forward")
    np.testing.assert_allclose(got.h, field.scores(state.x), rtol=1e-12)  # the scores before, not 0


@pytest.mark.parametrize("hidden", ["forward", "backward"])
def test_implicit_steps_solve_their_equation(hidden):
    state, field = problem(5)
    rho, rho_hidden = 0.2, 0.3
    x, h = step(state, field, rho, rho_hidden, "backward", hidden)
    slope = velocity(State(x, h), field)
    np.testing.assert_allclose(x - state.x, rho * slope.x, atol=1e-10)
    at = State(x, h) if hidden == "backward" else State(state.x, state.h)
    np.testing.assert_allclose(h - state.h, rho_hidden * velocity(at, field).h, atol=1e-10)


def test_central_step_has_the_corrected_signs():
    (x, h), field = problem(6)
    before = State(x - 0.1, h + 0.1)
    got = central_step(before, State(x, h), field, 0.3, 0.2)
    probs = np.exp(h) / np.exp(h).sum(1, keepdims=True)
    np.testing.assert_allclose(got.x, before.x + 0.6 * (probs @ field.values(x) - x))
    np.testing.assert_allclose(got.h, before.h + 0.4 * (field.scores(x) - h))


def test_wrong_requests():
    state, field = problem()
    with pytest.raises(InputError, match=r"no one-step method \(central, forward\)"):
        step(state, field, 0.1, 0.1, "central", "forward")
    with pytest.raises(InputError, match="both states or for neither"):
        trajectory(state, field, 2, 0.1, 0.1, "central", "forward")
    with pytest.raises(InputError, match="rho must be finite"):
        step(state, field, -0.1, 0.1)
    with pytest.raises(InputError, match="forward, backward or central"):
        amplification("sideways", 0.1)
    steep = Field(field.scores, lambda x: 50 * field.values(x))
    with pytest.raises(HeadscapeError, match="smaller step"):
        step(state, steep, 5.0, 0.1, "backward", "forward")
