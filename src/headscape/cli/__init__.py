"""The command line: parses, calls, prints. Errors are one line; exit code 2 is a mistake in what was asked, 1 ours."""

from __future__ import annotations

import os

from typer.models import CommandInfo

from headscape.cli import collapse, compare, gaussian, models, organize, prompt, prune, runs, softmax, spectra, train
from headscape.cli.shared import app, err
from headscape.errors import HeadscapeError

__all__ = ["main"]
COMMANDS = (collapse, compare, gaussian, models, organize, prompt, prune, runs, softmax, spectra, train)
"""Imported so that each registers its commands."""
ORDER = (  # of the commands in --help: from the first look to the studies
    *("demo", "analyze", "models", "check", "capture", "import", "organize", "report", "softmax", "prune", "compare"),
    *("spectra", "gaussian", "prompt", "collapse", "train", "runs"),
)


def _name(command: CommandInfo) -> str:
    return command.name or (command.callback.__name__ if command.callback else "")


app.registered_commands.sort(key=lambda command: ORDER.index(_name(command)))


def main() -> None:
    """Entry point: turn every failure into one line and an exit code."""
    try:
        app(standalone_mode=True)
    except HeadscapeError as error:
        _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        _fail("stopped; run the same command again to go on where it stopped", 130)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed: pip install 'headscape[models]'", 2)
    except MemoryError:
        _fail("out of memory; take fewer tokens, heads or batches", 1)
    except Exception as error:
        if os.environ.get("HEADSCAPE_DEBUG"):
            raise
        line = (str(error).splitlines() or [""])[0]
        _fail(f"{type(error).__name__}: {line} (a failure of ours; HEADSCAPE_DEBUG=1 shows the trace)", 1)


def _fail(message: str, code: int) -> None:
    err.print(f"error: {' '.join(message.split())}", highlight=False, markup=False, soft_wrap=True)
    raise SystemExit(code)
