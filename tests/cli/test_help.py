"""The help: every command in a group, and no type or bound that tells a reader nothing.

Also tests cli.options.
"""

import pytest
from typer.testing import CliRunner

from headscape.cli import app
from headscape.cli.help import GROUPS, name_of

COMMANDS = [name_of(command) for command in app.registered_commands]


def shown(*arguments):
    done = CliRunner().invoke(app, [*arguments, "--help"], env={"COLUMNS": "150"})
    assert done.exit_code == 0
    return done.output


def test_every_command_stands_in_one_group():
    listed = [name for names in GROUPS.values() for name in names]
    assert sorted(listed) == sorted([*COMMANDS, "runs"])
    text = shown()
    places = [text.index(f"{group} ─") for group in GROUPS] + [len(text)]
    for (group, names), start, stop in zip(GROUPS.items(), places, places[1:], strict=False):
        assert all(f"│ {name} " in text[start:stop] for name in names), group


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_take_no_value_and_numbers_have_only_real_bounds(command):
    text = shown(command)
    assert "<bool>" not in text and "int range" not in text and "9223372036854775807" not in text
    assert "1000000" not in text


def test_bounds_that_are_not_shown_hold():
    done = CliRunner().invoke(app, ["organize", "x", "--seed", str(2**63)])
    assert done.exit_code == 2 and "--seed" in done.output
