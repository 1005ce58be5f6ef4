"""One writer at a time: a lock file that names its holder, and is known to be stale when the holder is gone."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from headscape.errors import InputError
from headscape.storage import PARTIAL, passing, read_json

__all__ = ["HEARTBEAT_SECONDS", "Holder", "locked"]

HEARTBEAT_SECONDS = 5.0
"""How often a holder touches its lock."""
STALE_SECONDS = 60.0
"""A lock of another machine that was not touched for this long is taken to be abandoned."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    pid: int
    host: str
    started: str
    birth: str
    """When the process began, as the system counts: a process id may be given to another process later."""
    space: str = ""
    """The namespace of its process id: containers may share a machine's name but not its processes."""

    @classmethod
    def me(cls) -> Holder:
        """The current process."""
        pid, now = os.getpid(), datetime.now(UTC).isoformat(timespec="seconds")
        return cls(pid, socket.gethostname(), now, _birth(pid), _space())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.started}"


def _facts(pid: int) -> list[str]:
    """What /proc says of a process: its state first, when it began at 19; nothing where there is no /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []


def _birth(pid: int) -> str:
    return "".join(_facts(pid)[19:20])


def _space() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _facts(pid)[:1] != ["Z"]  # ended, and nobody has asked for its exit code


def _stale(path: Path, holder: Holder | None, now: float) -> bool:
    """Whether nobody holds the lock any more; `now` is the time by the clock of its file system."""
    if holder is not None and holder.host == socket.gethostname() and holder.space in ("", _space()):
        birth = _birth(holder.pid)
        return not _alive(holder.pid) or (bool(birth and holder.birth) and birth != holder.birth)
    with suppress(OSError):
        return abs(now - path.stat().st_mtime) > STALE_SECONDS
    return False  # it was let go a moment ago: try again


def _holder(path: Path) -> Holder | None:
    try:
        found = Holder(**read_json(path))
    except (OSError, ValueError, TypeError):
        return None
    words = (found.host, found.started, found.birth, found.space)
    right = all(isinstance(word, str) for word in words) and isinstance(found.pid, int) and 0 < found.pid < 2**31
    return found if right else None


@contextmanager
def locked(path: Path, what: str, say: Callable[[str], None], wait: bool = False) -> Iterator[None]:
    """Hold the lock at `path` during a block.

    Parameters
    ----------
    what
        What is being written, for the message: "the study organize in runs/book".
    wait
        Wait until another holder is done, instead of raising.

    Raises
    ------
    InputError
        When another process holds it; names the process, its machine and since when.
    """
    new = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    told, me = False, Holder.me()
    while (now := _take(path, me)) is not None:
        holder = _holder(path)
        if _stale(path, holder, now):
            _clear(path, holder)
            continue
        if not wait:
            raise InputError(
                f"{what} is being written by {holder or 'another process'}; wait until it is done, or end it first"
            )
        if not told:
            say(f"{what} is being written by {holder or 'another process'}: waiting")
            told = True
        time.sleep(0.2)
    passing.add(path)
    over = threading.Event()
    beat = threading.Thread(target=_beat, args=(path, over), daemon=True)
    beat.start()
    try:
        yield
    finally:
        over.set()
        beat.join()
        _clear(path, me)
        passing.discard(path)
        if new:
            with suppress(OSError):  # a folder made for the lock alone goes with it
                path.parent.rmdir()


def _take(path: Path, me: Holder) -> float | None:
    """Make the lock file in one step; if it exists, return the time by its file system's clock instead."""
    text = json.dumps(vars(me))
    own = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}{PARTIAL}")
    with open(own, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        now = os.fstat(file.fileno()).st_mtime
    try:
        os.link(own, path)
    except FileExistsError:
        return now
    except OSError:  # a file system without hard links
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return now
    finally:
        own.unlink(missing_ok=True)
    for left in path.parent.glob(f"{glob.escape(path.name)}.*{PARTIAL}"):  # of one that was killed a moment before
        left.unlink(missing_ok=True)
    return None


def _clear(path: Path, holder: Holder | None) -> None:
    """Remove the lock of a holder, unless another process has done so and holds a new one; one process at a time."""
    try:
        folder = os.open(path.parent, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        with suppress(OSError):  # a file system without such locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        if _holder(path) == holder:
            path.unlink(missing_ok=True)
    finally:
        os.close(folder)


def _beat(path: Path, over: threading.Event) -> None:
    while not over.wait(HEARTBEAT_SECONDS):
        with suppress(OSError):
            os.utime(path)
