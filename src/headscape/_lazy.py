"""Names that are imported on first use: `import headscape` stays quick and needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["EXTRAS", "callable_package", "lazy"]
EXTRAS = {
    **dict.fromkeys(("torch", "transformers"), "models"),
    **dict.fromkeys(("matplotlib", "plotly"), "report"),
    **dict.fromkeys(("dask", "distributed"), "scale"),
}
"""Modules that are not always installed, and the extra that brings them."""


@contextmanager
def _needing(name: str) -> Iterator[None]:
    """Say which extra a public name needs if a module of it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        message = f"{name} needs {error.name}: pip install 'headscape[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from error


def lazy(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names live in submodules: {"study": ("organize",), ...}."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"{package} has no name {name!r}")
        with _needing(f"{package}.{name}"):
            value = getattr(import_module(f"{package}.{home_of[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(home_of)


def callable_package(package: str, home: str) -> None:
    """Make a package callable as the public function of the same name, defined in `home`: `hs.report(RUN)`.

    Importing a subpackage sets its name on the parent package, which would hide the function.
    """
    name, module = package.rpartition(".")[2], sys.modules[package]

    class Callable(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            with _needing(package):
                return getattr(import_module(home), name)(*args, **options)

    module.__class__ = Callable
    setattr(module, name, module)
