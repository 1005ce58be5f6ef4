"""Orderly stops: Ctrl-C, SIGTERM and SIGHUP end a command and its workers within two seconds and leave no half file."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["Stopped", "end_workers", "stop_line", "stop_while_importing", "stoppable"]

GRACE_SECONDS = 1.5
"""What is left of the two seconds for Python to unwind; then the process is killed."""
AGAIN_SECONDS = 0.05
"""Seconds until a stop is raised again, after it was raised where Python ignores exceptions."""
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class Stopped(BaseException):
    """The command was asked to stop; `code` is its exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def stop_line() -> str:
    """What a user reads after a stop."""
    return f"stopped; to resume, run it again: headscape {shlex.join(sys.argv[1:])}"


def _catch(stop: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Let a function handle the signals that stop a command; returns the earlier handlers.

    Signals that were already ignored when the command started stay ignored: nohup does that with SIGHUP.
    """
    numbers = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
    heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, stop) for number in heard}


def stop_while_importing() -> None:
    """End at a signal at once, with the one line: for the seconds in which a command is imported and has written nothing."""

    def stop(number: int, frame: FrameType | None) -> None:
        os.write(2, f"{stop_line()}\n".encode(errors="replace"))
        os._exit(128 + number)

    _catch(stop)


@contextmanager
def stoppable(say: Callable[[], None]) -> Iterator[None]:
    """Turn the first signal into `Stopped`; if that does not end the command in time, clean up and exit from a thread.

    `say` prints the line for the user when the exit comes from that thread. Only in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from headscape.storage import new_command, remove_partials

    new_command()
    asked = threading.Event()

    def leave(number: int) -> None:
        if not over.wait(GRACE_SECONDS):
            end_workers()
            remove_partials()
            with suppress(Exception):
                say()
            os._exit(128 + number)

    def stop(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            return
        asked.set()
        threading.Thread(target=leave, args=(number,), daemon=True).start()
        raise Stopped(number)

    def again(number: int) -> None:
        if not over.wait(AGAIN_SECONDS):
            asked.clear()
            os.kill(os.getpid(), number)

    def ignored(unraisable: Any) -> None:
        """Nothing can be raised in a destructor or a callback of the garbage collector: raise again outside of it."""
        if isinstance(unraisable.exc_value, Stopped):
            number = unraisable.exc_value.code - 128
            threading.Thread(target=again, args=(number,), daemon=True).start()
        else:
            hook(unraisable)

    over = threading.Event()
    before = _catch(stop)
    hook, sys.unraisablehook = sys.unraisablehook, ignored
    try:
        yield
    except Stopped:
        end_workers()
        remove_partials()
        raise
    finally:
        over.set()
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


def end_workers() -> None:
    """Kill the processes this one has started, and theirs."""
    for pid in _descendants(os.getpid()):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _descendants(root: int) -> list[int]:
    """Process ids below a process, youngest last; found in /proc, or nothing where there is none."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*") if sys.platform == "linux" else ():
        with suppress(OSError, ValueError, IndexError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found: list[int] = []
    for pid in sorted(parents):
        above = pid
        while above in parents and above != root:
            above = parents[above]
        if above == root and pid != root:
            found.append(pid)
    return found
