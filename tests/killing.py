"""Run headscape in processes that end themselves, or are ended, at a chosen point.

Processes are forked from a server that has imported everything: a command costs what it does, not what Python does.
"""

import io
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path

LIMIT = 300  # seconds, on a very busy machine
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["imported_first"])


def _command(arguments, said, at, number, cache):
    """In the child: run the command, and stop it by a signal before (odd) or after (even) a rename."""
    os.environ["HEADSCAPE_CACHE"] = cache
    os.environ["HF_HUB_OFFLINE"] = "1"
    seen = 0

    def watched(rename):
        def renaming(*places, **options):
            nonlocal seen
            for moment in ("before", "after"):
                seen += 1
                if seen == at:
                    os.kill(os.getpid(), number)
                if moment == "before":
                    done = rename(*places, **options)
            return done

        return renaming

    os.replace, os.rename = watched(os.replace), watched(os.rename)
    sys.argv = ["headscape", *arguments]
    from headscape.cli import main, shared

    words = io.StringIO()
    for console in (shared.out, shared.err):
        console.file = words
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    finally:
        Path(said).write_text(json.dumps({"said": words.getvalue(), "moments": seen}))
    sys.exit(code)


class Command:
    """One command in a process of its own; `at` is the moment (see `_command`) at which `number` ends it."""

    def __init__(self, arguments, place, at=0, number=signal.SIGKILL):
        place.mkdir(exist_ok=True)
        self._said = place / f"said-{time.monotonic_ns()}.json"
        told = ([str(a) for a in arguments], str(self._said), at, int(number), str(place / "cache"))
        self.process = FORKS.Process(target=_command, args=told)
        self.process.start()

    def end(self, number):
        """Send a signal, unless it is over."""
        if self.process.is_alive():
            os.kill(self.process.pid, number)

    def wait(self):
        """Exit code, what it said, and how many moments there were."""
        self.process.join(LIMIT)
        assert self.process.exitcode is not None, "the command goes on and on"
        found = json.loads(self._said.read_text()) if self._said.exists() else {"said": "", "moments": 0}
        return self.process.exitcode, found["said"], found["moments"]


def done(arguments, place, code=0):
    """Run a command to its end; how many moments there were."""
    found, said, moments = Command(arguments, place).wait()
    assert found == code, (arguments, found, said)
    return moments


def contents(*folders):
    """What files hold, without when they were made."""
    return {
        f"{folder.name}/{file.relative_to(folder)}": _timeless(file)
        for folder in folders
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def _timeless(file):
    data = file.read_bytes()
    if file.suffix in (".json", ".html"):
        data = re.sub(rb'"created": "[^"]*"|&quot;created&quot;: &quot;[^&]*&quot;', b"", data)
    return data
