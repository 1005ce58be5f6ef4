"""Files that are complete or absent: atomic writes, and safetensors written one tensor at a time."""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from headscape.errors import HeadscapeError, InputError, about_a_file

__all__ = [
    "LOCK",
    "PARTIAL",
    "ArrayWriter",
    "check_place",
    "foreign_file",
    "new_command",
    "read_arrays",
    "read_json",
    "remove_partials",
    "replacing",
    "write_arrays",
    "write_json",
    "writes_to",
]

PARTIAL, LOCK = ".partial", ".lock"
_NUMBERS = re.compile(r'\[\n[^][{}"]+\n *\]')
"""A list of numbers in indented JSON; strings hold no line break there, so none is taken for one."""
_DTYPE_NAMES = {
    **{"float16": "F16", "float32": "F32", "float64": "F64"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
}


_folders: set[Path] = set()  # where this process, or a worker it was told of, writes
passing: set[Path] = set()
"""Files that must not outlive this command, such as the locks it holds."""


def _command() -> str:
    """A token of the command at work, the same in its worker processes."""
    return os.environ.setdefault("HEADSCAPE_COMMAND", secrets.token_hex(4))


def new_command() -> None:
    """Begin a separate command, which does not remove the half-written files of another one."""
    os.environ["HEADSCAPE_COMMAND"] = secrets.token_hex(4)


def writes_to(folder: Path) -> None:
    """Register a folder into which workers will write, so that `remove_partials` looks there too."""
    _folders.add(folder)


def remove_partials() -> None:
    """Remove what must not outlive this command: half-written files (also those of ended workers) and locks."""
    for path in [*passing]:
        path.unlink(missing_ok=True)
    for folder in _folders:
        for left in folder.glob(f"*.{_command()}????????{PARTIAL}"):
            left.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; rename it over `path` only when the block ends well.

    A failing block leaves `path` as it was and removes what it had written. Several writers of one file do not collide:
    each writes under its own name, and the one that finishes removes what killed or late writers left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{_command()}{secrets.token_hex(4)}{PARTIAL}")
    _folders.add(path.parent)
    try:
        yield partial
        try:
            os.replace(partial, path)
        except FileNotFoundError:  # removed by another writer of the same file that finished first
            if not path.exists():
                raise
        for left in path.parent.glob(f"{glob.escape(path.name)}.*{PARTIAL.lstrip('.')}"):
            left.unlink(missing_ok=True)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise HeadscapeError(
                f"no space left while writing {path.name} in {path.parent}; free some and run the same command again, "
                "finished parts are kept"
            ) from error
        raise


def check_place(path: Path, folder: bool = False) -> None:
    """Raise an `InputError` unless a file or folder can be made at `path` (with `folder`: or exists). Makes nothing."""
    try:
        place = path.resolve()
        if folder and place.exists() and not place.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        above = next(p for p in (place, *place.parents) if p.exists() and (folder or p != place))
        if not above.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(above))
        if not os.access(above, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(above))
    except (OSError, RuntimeError) as error:
        raise about_a_file(error) or error from None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small JSON file atomically, with each list of numbers on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    text = _NUMBERS.sub(lambda found: f"[{' '.join(found[0][1:-1].split())}]", text)
    with replacing(path) as partial:
        partial.write_text(text + "\n", encoding="utf-8")


@contextmanager
def foreign_file(path: Path) -> Iterator[None]:
    """Read an untrusted file in the block: whatever goes wrong is an `InputError` of one line that names the file."""
    try:
        yield
    except HeadscapeError:
        raise
    except MemoryError:
        raise InputError(f"{path} cannot be read: it claims to hold more than fits into memory") from None
    except Exception as error:  # of many types: zip, numpy, safetensors, pictures
        said = next(iter(str(error).splitlines()), "")
        if "pickle" in said.lower() or "object array" in said.lower():
            said = "it is damaged, or holds pickled objects, which can run code when read; save plain arrays"
        mistake = about_a_file(error)
        raise mistake or InputError(f"{path} cannot be read: {said or type(error).__name__}") from None


def read_json(path: Path) -> Any:
    """The content of a small JSON file; `ValueError` if it is not JSON, or nested too deeply to read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None


class ArrayWriter:
    """Write a safetensors file one array at a time, so that no more than one is ever held.

    The format puts a JSON header with all offsets first; room for it is reserved and the rest padded with blanks, as
    the format allows. The file appears under its name only when the block ends well.

    >>> import tempfile; from safetensors.numpy import load_file
    >>> path = Path(tempfile.mkdtemp()) / "a.safetensors"
    >>> with ArrayWriter(path, n_arrays=1) as writer:
    ...     writer.add("x", np.arange(3, dtype=np.float32))
    >>> load_file(path)["x"]
    array([0., 1., 2.], dtype=float32)
    """

    def __init__(self, path: Path, n_arrays: int, metadata: Mapping[str, str] | None = None) -> None:
        self.path = path
        self._metadata = dict(metadata or {})
        self._header: dict[str, Any] = {}
        self._offset = 0
        meta_size = len(json.dumps(self._metadata).encode())
        self._reserved = -(-(meta_size + 256 * (n_arrays + 1)) // 8) * 8

    def __enter__(self) -> ArrayWriter:
        self._replacing = replacing(self.path)
        self._file: BinaryIO = open(self._replacing.__enter__(), "wb")
        self._file.seek(8 + self._reserved)
        return self

    def add(self, name: str, array: npt.NDArray[Any]) -> None:
        """Append one array under a name not used before."""
        if name in self._header:
            raise HeadscapeError(f"{self.path.name} already holds {name}")
        data = np.ascontiguousarray(array)
        self._header[name] = {
            "dtype": _DTYPE_NAMES[data.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [self._offset, self._offset + data.nbytes],
        }
        self._file.write(data.data)
        self._offset += data.nbytes

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                header = json.dumps({"__metadata__": self._metadata, **self._header}, ensure_ascii=True).encode()
                if len(header) > self._reserved:
                    raise HeadscapeError(f"{self.path.name}: header of {len(header)} bytes, {self._reserved} reserved")
                self._file.seek(0)
                self._file.write(self._reserved.to_bytes(8, "little") + header.ljust(self._reserved))
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
        except BaseException as late:
            self._file.close()
            self._replacing.__exit__(type(late), late, late.__traceback__)
            raise
        self._replacing.__exit__(kind, error, trace)


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays as one safetensors file, whole or not at all."""
    with ArrayWriter(path, len(arrays), metadata or {}) as writer:
        for name in sorted(arrays):
            writer.add(name, arrays[name])


def read_arrays(
    path: Path, wanted: Callable[[str], bool] = lambda name: True
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """The arrays of a file whose names are wanted, and its metadata; `InputError` where the file is damaged."""
    try:
        with safe_open(path, framework="np") as file:
            names = [name for name in file.keys() if wanted(name)]  # noqa: SIM118 - not a dict
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except SafetensorError as error:
        raise InputError(f"{path} is damaged ({error}); delete it and run the same command again") from None
