"""models and check, as a user meets them."""

import json

import pytest

from commands import headscape, one_line_error


def test_models_lists_what_is_bundled():
    entries = json.loads(headscape("models", "--json", check=0).stdout)
    assert {e["name"] for e in entries} == {"smollm2-135m", "minilm-l6", "gemma3-270m", "mpnet-base", "vit-fmnist"}


def test_a_model_that_comes_with_headscape_is_there_at_once():
    done = headscape("models", "--get", "vit-fmnist", "--quiet", check=0)
    assert done.stdout.strip().endswith("vit-fmnist") and not done.stderr


def test_check_prints_the_parity_table(tiny):
    done = headscape("check", tiny[0], check=0)
    assert "largest difference" in done.stdout and "ok" in done.stdout and "interface" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "--get", "nope"], "no bundled model"),
        (["check", "missing.gguf"], "no file"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(arguments, message):
    assert message in one_line_error(headscape(*arguments), 2)


@pytest.mark.parametrize("command", ["models", "check"])
def test_help_has_an_example(command):
    assert "Example" in headscape(command, "--help", check=0).stdout
