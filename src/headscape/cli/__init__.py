"""The command line: parses, calls, prints. Errors are one line; exit code 2 is a mistake in the request, 1 a failure."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated

import typer

from headscape._lazy import EXTRAS
from headscape.cli.help import arrange
from headscape.cli.shared import app, err, out
from headscape.errors import HeadscapeError, about_a_file
from headscape.stopping import Stopped, stop_line, stoppable
from headscape.version import __version__

__all__ = ["main"]
MODULES = (
    "claims collapse compare compress gaussian heads housekeeping laws models organize prompt prune runs series softmax "
    "spectra train"
)
"""Each registers its commands when it is imported."""

for module in MODULES.split():
    import_module(f"headscape.cli.{module}")
arrange(app)


def _version(asked: bool) -> None:
    if asked:
        out.print(f"headscape {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Map the attention heads of a transformer."""


def main() -> None:
    """Entry point: turn every failure into one line and an exit code."""
    try:
        with stoppable(_say_stopped):
            raise SystemExit(app(standalone_mode=False))
    except Stopped as stop:
        _say_stopped()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(stop.code)  # all is cleaned up; the interpreter would take seconds to tear down torch and a model
    except HeadscapeError as error:
        _fail(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0], "models")
        _fail(f"{error.name} is not installed: pip install 'headscape[{extra}]'", 2)
    except typer.Abort:  # no answer to a question
        _fail("nothing was done: no answer was given", 1)
    except MemoryError:
        _fail("out of memory; use fewer tokens, heads or batches", 1)
    except Exception as error:
        mistake = about_a_file(error)
        if mistake is not None:
            _fail(str(mistake), mistake.exit_code)
        usage = getattr(error, "format_message", None)  # typer could not read the command line
        if usage is not None:
            _fail(f"{usage().rstrip('.')}; see --help", 2)
        if os.environ.get("HEADSCAPE_DEBUG"):
            raise
        what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        _fail(f"internal error (please report it; HEADSCAPE_DEBUG=1 shows the trace): {what}", 1)


def _say_stopped() -> None:
    err.print(stop_line(), soft_wrap=True)


def _fail(message: str, code: int) -> None:
    err.print(f"error: {' '.join(message.split())}", soft_wrap=True)
    raise SystemExit(code)
