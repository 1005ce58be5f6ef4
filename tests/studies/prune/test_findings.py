"""Sentences and verdicts follow from the curves, and controls can make them fail."""

from dataclasses import replace

import numpy as np
import pytest

from headscape.studies.prune.findings import findings
from headscape.studies.prune.judging import Curve
from headscape.verdicts import judge

CHEAP, DEAR = [[[0.01, 0.02, 0.01]]], [[[0.05, 0.06, 0.07]]]


def made_up(criterion, costs, compensation="mean", proposal=False):
    costs = np.array(costs, dtype=float)
    return Curve(criterion, compensation, "text", tuple(range(1, costs.shape[1] + 1)), costs, costs, proposal)


def claims(result):
    return {finding.claim: finding for finding in findings(result) if finding.claim}


@pytest.mark.parametrize(
    ("own", "rival", "verdict", "words"),
    [
        (CHEAP, DEAR, "holds", "beats gradient importance"),
        (DEAR, CHEAP, "does not hold", "does not beat gradient importance"),
        (
            [[[0.01, 0.06, 0.03]]],
            [[[0.02, 0.05, 0.04]]],
            "cannot tell",
            "We cannot tell whether the chosen criterion novelty (",
        ),
        ([[[0.01, 0.02, 0.01], [0.09, 0.09, 0.1]]], [[[0.05, 0.06, 0.07]] * 2][0], "does not hold", "does not beat"),
    ],
)
def test_a_criterion_beats_gradients_only_at_every_share(result, own, rival, verdict, words):
    rival = np.broadcast_to(np.array(rival), np.shape(own))
    curves = [made_up("novelty", own), made_up("gradient", rival)]
    found = claims(replace(result, criterion="novelty", compensation="mean", curves=curves, budget={}))
    assert found["prune.gradients"].verdict == verdict and words in found["prune.gradients"].text


def test_the_best_criterion_without_gradients_is_chosen_before_it_is_judged(result):
    choice = result.choice.iloc[:3].assign(criterion=["gradient+l1_all", "output_norm", "l1_all"], compensation="mean")
    curves = [made_up("gradient+l1_all", CHEAP), made_up("output_norm", DEAR), made_up("l1_all", CHEAP)]
    curves.append(made_up("gradient", [[[0.03, 0.03, 0.03]]]))
    found = replace(result, criterion="gradient+l1_all", compensation="mean", curves=curves, choice=choice, budget={})
    assert claims(found)["prune.gradients"].holds is True
    free = claims(found)["prune.gradient_free"]
    assert (
        free.text.startswith(
            "The best criterion without gradients, output_norm (norm of the mean contribution after W_O), does not beat"
        )
        and free.holds is False
    )


def test_findings_point_to_figures_that_are_drawn(result):
    alone = [c for c in result.curves if not c.proposal or c.criterion == "proposal"]  # no rivals at as many heads
    for found in (result, replace(result, curves=alone)):
        drawn = {figure.id for figure in found.figures()}
        assert {f.figure for f in findings(found) if f.figure} <= drawn and claims(found)[
            "prune.budget"
        ].figure in drawn


def test_the_papers_criterion_has_to_beat_random_draws(result):
    even = [[[0.01, 0.012, 0.01]]]
    cases = (
        (even, 1e-3, "holds"),
        (DEAR, 1e-3, "does not hold"),
        (even, 0.02, "cannot tell"),
        (even, 0, "cannot tell"),
    )
    for costs, spread, verdict in cases:
        draws = np.full((3, 1, 3), 0.03) + spread * np.array([-1, 0, 1])[:, None, None]
        curves = [made_up("l1_top", costs), made_up("random", draws)]
        found = claims(replace(result, criterion="novelty", compensation="mean", curves=curves, budget={}))
        assert found["prune.l1_top"].verdict == verdict
        assert ("worse than choosing heads at random" in found["prune.l1_top"].text) is (verdict == "does not hold")


def test_a_lucky_draw_is_not_better_than_chance(result):
    """Twenty draws say well what they cost on average; a criterion must lie where none of them would."""
    draws = np.random.default_rng(0).normal(0.03, 0.005, (20, 1, 1)) * np.ones((1, 1, 3))
    lucky = [[[0.0249, 0.025, 0.0251]]]  # one standard deviation below the mean
    curves = [made_up("l1_top", lucky), made_up("random", draws)]
    found = claims(replace(result, criterion="novelty", compensation="mean", curves=curves, budget={}))
    assert found["prune.l1_top"].verdict == "cannot tell"


def test_curves_say_how_many_inputs_their_intervals_rest_on(result):
    curves = [made_up("novelty", CHEAP), made_up("gradient", DEAR), made_up("random", np.ones((4, 1, 5)))]
    found = replace(result, criterion="novelty", compensation="mean", curves=curves, budget={})
    words = {figure.id: figure.read for figure in found.figures()}
    assert all(words[name].endswith(" n = 3.") for name in ("curves", "compensation"))  # of draws there is a range
    assert words["correlations"].endswith(" n = 2.")


def test_organization_has_to_beat_both_controls(result):
    unknown = [[[0.010000001, 0.0201, 0.51]]]  # dearer every time, by so many orders of magnitude that none is told
    for natural, verdict in ((DEAR, "holds"), ([[[0.0, 0.01, 0.001]]], "does not hold"), (unknown, "cannot tell")):
        curves = [
            made_up(name, costs, "none")
            for name, costs in (("l1_all", CHEAP), ("l1_all_random", DEAR), ("l1_all_natural", natural))
        ]
        found = claims(replace(result, criterion="novelty", curves=curves, budget={}))
        assert found["prune.organization"].verdict == verdict


def test_the_budget_is_judged_on_held_out_inputs(result):
    for costs, verdict, words in (
        (
            [0.01, 0.012, 0.011],
            "holds",
            "can be removed within the budget of 2.00%: on held-out inputs they cost +1.10%",
        ),
        ([0.05, 0.06, 0.07], "does not hold", "costs more than the budget of 2.00%"),
        (
            [0.0, 0.03, 0.04],
            "cannot tell",
            "We cannot tell whether 7 of 8 heads (88%) can be removed within the budget of 2.00%: ",
        ),
        ([0.01], "cannot tell", "+1.00% (rise of the loss, n = 1)"),
    ):
        curve = made_up("proposal", [[costs]], proposal=True)
        one = claims(replace(result, compensation="mean", curves=[curve], budget={"text": 0.02}))["prune.budget"]
        assert one.verdict == verdict and words in one.text
    none = findings(replace(result, curves=[], budget={"text": 0.02}))[0]
    assert none.text.startswith("We cannot tell whether heads can be removed within the budget of text 2.00%: ")
    assert (none.claim, none.verdict) == ("prune.budget", "cannot tell") and "found no heads" in none.judgement.why


def test_an_ability_that_few_items_show_is_not_called_absent(result):
    """The intact model is better than chance at copying, by less than the interval over a few windows."""
    row = result.abilities.set_index("ability").loc["copy.text"]
    assert row["intact"] < row["chance"] and not row["binds"]
    said = next(f.text for f in findings(result) if "copying of text" in f.text)
    assert said.startswith("The intact model is not shown to beat chance in copying of text, so no budget applies")
    assert result.costs.set_index("ability").loc["copy.text", "budget"] == "none: not shown to beat chance"


def test_a_drop_of_accuracy_that_nobody_saw_is_not_known_to_be_nothing():
    """Of 123 images none changes: up to 2 in 100 could, so 1 % is no budget that was kept for sure."""
    none = replace(made_up("proposal", np.zeros((1, 1, 123))), answers=True)
    assert none.cost(0).low == -none.cost(0).high < -0.02 and none.cost(0).n == 123
    assert judge(none.cost(0), below=0.01).verdict == "cannot tell"
    assert judge(none.cost(0), below=0.05).verdict == "holds"
    assert none.minus(none).low < 0 < none.area.high
