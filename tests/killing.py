"""Run headscape in processes that end themselves, or are ended, at a chosen point.

Processes are forked from a server that has imported everything: a command costs what it does, not what Python does.
"""

import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path

LIMIT = 300  # seconds, on a very busy machine
# the server imports what it is to import only from this variable: Python before 3.12 does not hand its own path on
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["imported_first"])


def hearing():
    """In a child: hear every stop, though the tests may run under nohup, which switches some off for all below it."""
    for number in STOPS:
        signal.signal(number, signal.SIG_DFL)


def _command(arguments, said, at, number, cache, cwd):
    """In the child: run the command, and stop it by a signal before (odd) or after (even) a rename."""
    os.environ["HEADSCAPE_CACHE"] = cache
    os.environ["HF_HUB_OFFLINE"] = "1"
    for stream, ending in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{said}.{ending}", os.O_WRONLY | os.O_CREAT), stream)
    if cwd is not None:
        os.chdir(cwd)
        _as_anyone()
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
    from headscape.cli import main

    try:
        main()
    finally:
        Path(said).write_text(str(seen))


def _as_anyone():
    """Give up what the superuser may do with files that forbid it."""
    import ctypes

    if os.geteuid() == 0 and sys.platform == "linux":
        forbidden = ~0b111  # CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        sets = (ctypes.c_uint32 * 6)()
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.capget(header, sets) == 0
        sets[0] &= forbidden
        assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())


class Command:
    """One command in a process of its own; `at` is the moment (see `_command`) at which `number` ends it.

    With `cwd` it runs there, and without the rights of a superuser.
    """

    def __init__(self, arguments, place, at=0, number=signal.SIGKILL, cwd=None):
        place.mkdir(exist_ok=True)
        self._said = place / f"said-{time.monotonic_ns()}"
        told = ([str(a) for a in arguments], str(self._said), at, int(number), str(place / "cache"), cwd)
        self.process = FORKS.Process(target=_command, args=told)
        self.process.start()

    def end(self, number):
        """Send a signal, unless it is over."""
        if self.process.is_alive():
            os.kill(self.process.pid, number)

    def wait(self):
        """Exit code, what it said on standard error, and how many moments there were."""
        self.process.join(LIMIT)
        assert self.process.exitcode is not None, "the command goes on and on"
        said = Path(f"{self._said}.err").read_text(errors="replace") if Path(f"{self._said}.err").exists() else ""
        return self.process.exitcode, said, int(self._said.read_text()) if self._said.exists() else 0


def done(arguments, place, code=0):
    """Run a command to its end; how many moments there were."""
    found, said, moments = Command(arguments, place).wait()
    assert found == code, (arguments, found, said)
    return moments


def captures(out):
    """In the child: a capture of forty batches."""
    import headscape as hs
    from tiny import Letters
    from zoo import make

    model = hs.wrap_module(make("llama"), tokenizer=Letters())
    text = "the quick brown fox jumps over the lazy dog " * 400
    hs.capture(model, [text], tokens=64, batches=40, keep=("probs", "hidden"), out=out)


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
