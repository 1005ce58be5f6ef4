"""Names that are imported on first use: `import headscape` stays quick and needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["callable_package", "lazy"]


def lazy(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names live in submodules: {"study": ("organize",), ...}."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"{package} has no name {name!r}")
        try:
            value = getattr(import_module(f"{package}.{home_of[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name in ("torch", "transformers"):
                raise ImportError(f"{package}.{name} needs models: pip install 'headscape[models]'") from error
            raise
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
            return getattr(import_module(home), name)(*args, **options)

    module.__class__ = Callable
    setattr(module, name, module)
