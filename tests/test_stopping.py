"""A stop is heard from the first moment of a command on, and not where whoever started it has switched it off."""

import os
import signal
import subprocess
import sys
import time

import pytest

from headscape.stopping import Stopped, stoppable
from killing import hearing


@pytest.fixture(autouse=True)
def spared(monkeypatch):
    """A stop ends all processes below this one: here they belong to other tests."""
    monkeypatch.setattr("headscape.stopping.end_workers", lambda: None)


WHILE_IMPORTING = """
import os, signal, sys
class Import:
    def find_spec(self, name, path, target=None):
        if name == "headscape.cli":
            os.kill(os.getpid(), signal.{})
sys.meta_path.insert(0, Import())
sys.argv = ["headscape", "organize", "my run"]
from headscape.__main__ import main
main()
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_stop_while_the_command_is_imported_is_one_line(name, code):
    words = [sys.executable, "-c", WHILE_IMPORTING.format(name)]
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=hearing)
    assert (done.returncode, done.stderr) == (code, "stopped; to resume, run it again: headscape organize 'my run'\n")


def test_what_was_switched_off_stays_off():
    """`nohup headscape ... &` goes on when the terminal is closed."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stoppable(lambda: None):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(Stopped, match="SIGHUP"), stoppable(lambda: None):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


class _StoppedAsItGoes:
    """Asks for a stop in its destructor, where Python ignores what is raised."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
        sum(range(1000))  # the signal is heard here at the latest


def _lose_it():
    _StoppedAsItGoes()
    time.sleep(1)
    pytest.fail("the stop was not heard")


def test_a_stop_in_a_destructor_is_heard_after_it(capsys):
    hook = sys.unraisablehook
    with pytest.raises(Stopped, match="SIGTERM"), stoppable(lambda: None):
        _lose_it()
    assert "Traceback" not in capsys.readouterr().err
    assert sys.unraisablehook is hook
