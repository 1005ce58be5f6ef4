"""One writer at a time: a lock file that names its holder, and is known to be stale when the holder is gone."""

from __future__ import annotations

import fcntl
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
from headscape.storage import passing, read_json

__all__ = ["HEARTBEAT_SECONDS", "Holder", "locked"]

HEARTBEAT_SECONDS = 5.0
"""How often a holder touches its lock."""
STALE_SECONDS = 60.0
"""A lock of another machine that was not touched for so long has no holder any more."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    pid: int
    host: str
    started: str
    birth: str
    """When the process began, as the system counts: a process id may be given to another process later."""

    @classmethod
    def me(cls) -> Holder:
        """The process that asks."""
        pid = os.getpid()
        return cls(pid, socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds"), _birth(pid))

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


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _facts(pid)[:1] != ["Z"]  # ended, and nobody has asked for its exit code


def _stale(path: Path, holder: Holder | None) -> bool:
    """Whether nobody holds the lock any more."""
    if holder is not None and holder.host == socket.gethostname():
        birth = _birth(holder.pid)
        return not _alive(holder.pid) or (bool(birth and holder.birth) and birth != holder.birth)
    with suppress(OSError):
        return time.time() - path.stat().st_mtime > STALE_SECONDS
    return False  # it was let go a moment ago: try again


def _holder(path: Path) -> Holder | None:
    try:
        return Holder(**read_json(path))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def locked(path: Path, what: str, say: Callable[[str], None], wait: bool = False) -> Iterator[None]:
    """Hold the lock at `path` for the time of a block.

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
    while not _take(path, me):
        holder = _holder(path)
        if _stale(path, holder):
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


def _take(path: Path, me: Holder) -> bool:
    """Make the lock file whole at once, unless it is there."""
    own = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    own.write_text(json.dumps(vars(me)), encoding="utf-8")
    try:
        os.link(own, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            with open(path, "x", encoding="utf-8") as file:
                file.write(own.read_text(encoding="utf-8"))
        except FileExistsError:
            return False
    finally:
        own.unlink(missing_ok=True)
    return True


def _clear(path: Path, holder: Holder | None) -> None:
    """Take the lock of a holder away, unless another process has done so and holds a new one; one process at a time."""
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
