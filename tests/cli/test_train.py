"""The options of the command train, as the study takes them."""

from headscape.cli.train import Kinds, Search, Sizes


def test_learning_rates_are_numbers_or_the_networks_own():
    assert Search(rates="1e-3,3e-3").options == {
        "seeds": 3,
        "rates": [1e-3, 3e-3],
        "finalists": 1,
        "search_steps": None,
    }
    assert Search().options["rates"] is None


def test_sizes_that_were_not_given_stay_the_networks_own():
    assert Sizes().given == {} and Sizes(layers=2, tokens=64).given == {"layers": 2, "tokens": 64}


def test_several_alphas_are_a_grid():
    found = Kinds(arms="standard, both", alpha="0.3,0.5").options
    assert list(found["arms"]) == ["standard", "both"]
    assert (found["alpha"], found["alpha_hidden"]) == ([0.3, 0.5], [0.5])
