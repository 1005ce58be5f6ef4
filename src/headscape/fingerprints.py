"""Fingerprints: the SHA-256 of files and settings, which tell what a result was computed from."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import platformdirs

from headscape.storage import read_json, write_json

__all__ = ["cache_root", "digest", "file_hash", "full_hash", "joint_hash"]

SETTLED_NS = 2 * 10**9
"""Age in ns from which a file's times distinguish it from a later write; clocks of file systems can be that coarse."""


def cache_root() -> Path:
    """Headscape's own cache: $HEADSCAPE_CACHE, else the user's cache folder."""
    return Path(os.environ.get("HEADSCAPE_CACHE") or platformdirs.user_cache_dir("headscape"))


def digest(*facts: Any) -> str:
    """SHA-256 of plain facts, in hexadecimal; the order of the keys of a mapping does not matter.

    >>> digest({"a": 1, "b": [2.5]}) == digest({"b": [2.5], "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def full_hash(path: Path) -> str:
    """SHA-256 of a file's content, read from its first byte to its last."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content; read again only when its size or one of its times has changed.

    Known hashes are kept in headscape's own cache, never beside the file, where a forged one could bring its own.
    """
    path = path.resolve()
    now = _state(path)
    note = cache_root() / "hashes" / f"{digest(str(path))[:32]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = read_json(note)
        if known["path"] == str(path) and known["state"] == now:
            return str(known["sha256"])
    found = full_hash(path)
    if _state(path) == now and time.time_ns() - max(now[1:3]) > SETTLED_NS:  # not written to meanwhile, or just before
        with suppress(OSError):  # a cache that cannot be written costs time, nothing else
            write_json(note, {"path": str(path), "state": now, "sha256": found})
    return found


def _state(path: Path) -> list[int]:
    """What changes when a file is written to or exchanged."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def joint_hash(paths: Iterable[Path]) -> str:
    """One fingerprint for several files: that of the only one, or a hash of all their hashes."""
    found = [file_hash(path) for path in paths]
    return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()
