"""Dataclasses as plain files: facts in JSON, arrays in safetensors, tables in CSV, each found by the field's name."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
import pandas as pd
from safetensors import SafetensorError

from headscape.errors import InputError
from headscape.storage import read_arrays, read_json, replacing, write_arrays, write_json
from headscape.tree import PartitionTree

__all__ = ["FORMAT", "as_records", "load_record", "save_record", "write_table"]

FORMAT = 2
FACTS, ARRAYS = "result.json", "result.safetensors"
T = TypeVar("T")


def save_record(record: Any, folder: Path, **facts: Any) -> None:
    """Write a dataclass into a folder: FIELD.csv for a table, result.safetensors for arrays and trees, result.json last.

    Containers of any depth are walked; what they hold must be arrays, tables, trees, dataclasses, named tuples, or what
    JSON knows. `facts` go into result.json beside the fields.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    taken: set[str] = set()

    def own(name: str) -> str:
        """A name that is not taken: keys of mappings may give two places the same name."""
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    def plain(value: Any, place: str) -> Any:
        if isinstance(value, np.ndarray):
            place = own(place)
            arrays[place] = value
            return {"$array": place}
        if isinstance(value, PartitionTree):
            place = own(place)
            arrays[f"{place}/labels"], arrays[f"{place}/order"] = value.labels, value.order
            return {"$tree": place}
        if isinstance(value, pd.DataFrame):
            name = own(place.replace("/", "-"))
            write_table(folder / f"{name}.csv", value)
            columns = {str(c): str(d) for c, d in value.dtypes.items()}
            return {
                "$table": name,
                "columns": columns,
                "cells": {str(c): plain(value[c].tolist(), "") for c in _mixed(value)},
            }
        if dataclasses.is_dataclass(value):
            return {f.name: plain(getattr(value, f.name), f"{place}/{f.name}") for f in dataclasses.fields(value)}
        if hasattr(value, "_asdict"):
            return {name: plain(each, f"{place}/{name}") for name, each in value._asdict().items()}
        if isinstance(value, Mapping):
            if not all(isinstance(name, (str, int)) for name in value):
                raise TypeError(f"{place}: the keys of a mapping are text or integers, not {next(iter(value))!r}")
            return {str(name): plain(each, f"{place}/{name}") for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(each, f"{place}/{i}") for i, each in enumerate(value)]
        return value.item() if isinstance(value, np.generic) else value

    folder.mkdir(parents=True, exist_ok=True)
    fields = {f.name: plain(getattr(record, f.name), f.name) for f in dataclasses.fields(record)}
    write_arrays(folder / ARRAYS, arrays)
    write_json(folder / FACTS, {"format": FORMAT, **facts, "fields": fields})


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a table as CSV, numbers at full precision."""
    with replacing(path) as partial:
        frame.to_csv(partial, index=False)


def load_record(kind: type[T], folder: str | Path, again: str = "run the study again") -> T:
    """Read back what `save_record` wrote, by the types of the fields of `kind`.

    Raises an `InputError` that says what to do (`again`) where the files are missing, damaged, or of another format.
    """
    folder = Path(folder)
    try:
        said = read_json(folder / FACTS)
        if said.get("format") == FORMAT:
            reader = _Reader(folder, read_arrays(folder / ARRAYS)[0])
            hints = get_type_hints(kind)
            return kind(**{name: reader.typed(value, hints[name]) for name, value in said["fields"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise InputError(f"{folder} cannot be read ({type(error).__name__}: {error}); {again}") from error
    raise InputError(f"{folder} was written by another version of headscape; {again}")


@dataclasses.dataclass(frozen=True)
class _Reader:
    folder: Path
    arrays: Mapping[str, npt.NDArray[Any]]

    def typed(self, value: Any, hint: Any) -> Any:
        """A value of the JSON as the type its field says."""
        if isinstance(value, dict):
            if "$array" in value:
                return self.arrays[value["$array"]]
            if "$tree" in value:
                place = value["$tree"]
                return PartitionTree.from_labels(self.arrays[f"{place}/labels"], order=self.arrays[f"{place}/order"])
            if "$table" in value:
                return _read_table(self.folder / f"{value['$table']}.csv", value["columns"], value["cells"])
        origin, inside = get_origin(hint), get_args(hint)
        if value is not None and origin in (Union, types.UnionType):
            return self.typed(value, next(arm for arm in inside if arm is not type(None)))
        if isinstance(value, dict):
            if isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields")):
                hints = get_type_hints(hint)
                return hint(**{name: self.typed(each, hints[name]) for name, each in value.items()})
            key, of = inside if origin is not None and len(inside) == 2 else (str, Any)
            return {int(name) if key is int else name: self.typed(each, of) for name, each in value.items()}
        if isinstance(value, list):
            if origin is tuple and inside[-1] is not Ellipsis:
                return tuple(self.typed(each, of) for each, of in zip(value, inside, strict=True))
            found = [self.typed(each, inside[0] if inside else Any) for each in value]
            return tuple(found) if origin is tuple or hint is tuple else found
        return value


def _mixed(frame: pd.DataFrame) -> list[Any]:
    """Columns that a CSV file cannot restore: cells of several kinds, and text that may be missing."""
    return [
        c for c, d in frame.dtypes.items() if d == "object" or (pd.api.types.is_string_dtype(d) and frame[c].hasnans)
    ]


def _read_table(path: Path, columns: Mapping[str, str], cells: Mapping[str, Sequence[Any]]) -> pd.DataFrame:
    if not columns:
        return pd.DataFrame()
    numbers = [name for name, dtype in columns.items() if dtype.startswith("float")]
    frame = pd.read_csv(
        path,
        dtype={name: "float64" if name in numbers else dtype for name, dtype in columns.items()},
        keep_default_na=False,
        na_values={name: ["", "nan", "NaN"] for name in numbers},
        lineterminator="\n",  # text may hold a carriage return
    )
    kept = {name: pd.Series(values, dtype=columns[name]) for name, values in cells.items()}
    return frame.astype({name: columns[name] for name in numbers}).assign(**kept)


def as_records(frame: pd.DataFrame) -> Sequence[dict[str, Any]]:
    """The rows of a table for JSON, which has no NaN."""
    return [{str(k): None if v != v else v for k, v in row.items()} for row in frame.to_dict("records")]
