"""How --help looks: commands in groups, flags without a type, and numbers without bounds that nobody reaches."""

from __future__ import annotations

from typing import Any

from typer import Typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandInfo

from headscape.cli.options import MANY

__all__ = ["arrange", "name_of"]

GROUPS = {
    "Start here": ("demo", "analyze", "heads", "report", "claims"),
    "Models, attention and runs": ("models", "check", "capture", "import", "runs"),
    "Questions about heads": ("organize", "prune", "compare", "compress", "softmax"),
    "Questions about weights and tokens": ("spectra", "gaussian", "collapse", "prompt", "laws"),
    "Training": ("train", "series"),
}
"""The commands, from the first look to the studies."""


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:
        """Its options."""
        return _shown(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        """Its options."""
        return _shown(super().get_params(ctx))


def _shown(options: list[Any]) -> list[Any]:
    """As the help shows them; how they are read does not change."""
    for option in options:
        if getattr(option, "is_flag", False):
            option.metavar = ""  # instead of <bool>, as if one were to be given
        elif getattr(option, "min", None) is not None and option.metavar is None:
            option.metavar = "N"
            option.max = None if (option.max or 0) >= MANY else option.max
    return options


def name_of(command: CommandInfo) -> str:
    """What a command is called."""
    return command.name or (command.callback.__name__ if command.callback else "")


def arrange(app: Typer) -> None:
    """Put the registered commands into their groups, in their order."""
    app.info.cls = _Group
    order = [name for names in GROUPS.values() for name in names]
    app.registered_commands.sort(key=lambda command: order.index(name_of(command)))
    for command in app.registered_commands:
        command.cls = _Command
        command.rich_help_panel = next(group for group, names in GROUPS.items() if name_of(command) in names)
    for below in app.registered_groups:
        below.rich_help_panel = next(group for group, names in GROUPS.items() if below.name in names)
        if below.typer_instance is not None:
            for command in below.typer_instance.registered_commands:
                command.cls = _Command
