"""What a result holds comes back as it was, whatever the kind of its fields."""

import json
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import hypothesis.extra.numpy as nps
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape.errors import HeadscapeError
from headscape.intervals import Interval
from headscape.records import FORMAT, as_records, load_record, save_record, write_table
from headscape.tree import PartitionTree
from reference import QUICK

DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]


class Pair(NamedTuple):
    name: str
    values: np.ndarray


@dataclass(frozen=True)
class Inner:
    interval: Interval
    maybe: np.ndarray | None = None
    children: "tuple[Inner, ...]" = ()


@dataclass(frozen=True)
class Everything:
    text: str
    number: float
    whole: int
    truth: bool
    nothing: str | None
    array: np.ndarray
    absent: np.ndarray | None
    tree: PartitionTree
    trees: Sequence[PartitionTree]
    table: pd.DataFrame
    inner: Inner
    pair: Pair
    pairs: dict[str, Pair]
    tables: Mapping[str, pd.DataFrame]
    deep: Mapping[str, Sequence[Mapping[str, np.ndarray]]]
    by_number: dict[int, tuple[float, ...]]
    mixed: tuple[int, str, Interval]
    either: Interval | float
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Only:
    value: Any


@dataclass(frozen=True)
class Table:
    frame: pd.DataFrame


def everything():
    tree = PartitionTree.from_labels([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]], order=[2, 0, 1, 3])
    frame = pd.DataFrame({"head": [0, 1], "score": [0.1, np.nan], "role": ["induction", ""]})
    return Everything(
        text="Zürich\r\n\t\"'",
        number=1 / 3,
        whole=2**53 + 1,
        truth=False,
        nothing=None,
        array=np.arange(6.0).reshape(2, 3).T,
        absent=None,
        tree=tree,
        trees=[tree, PartitionTree.dyadic(4)],
        table=frame,
        inner=Inner(Interval(1.0, 0.5, 1.5, 3), np.zeros((0, 2)), (Inner(Interval(2.0)),)),
        pair=Pair("a", np.arange(3)),
        pairs={"x": Pair("b", np.arange(2)), "y": Pair("c", np.array(7.0))},
        tables={"one": frame, "two": frame.iloc[:0]},
        deep={"layers": [{"0": np.eye(2)}, {}, {"1": np.ones(1)}]},
        by_number={3: (0.5, 1.5), -1: ()},
        mixed=(1, "two", Interval(3.0)),
        either=0.25,
        settings={"seed": 0, "list": [1, [2.5, None]], "nested": {"a": True}},
    )


def same(found, truth):
    """Equal in kind and to the last bit; NaN is NaN."""
    if isinstance(truth, np.ndarray):
        assert found.dtype == truth.dtype and found.shape == truth.shape
        np.testing.assert_array_equal(found, truth)
    elif isinstance(truth, PartitionTree):
        np.testing.assert_array_equal(found.labels, truth.labels)
        np.testing.assert_array_equal(found.order, truth.order)
    elif isinstance(truth, pd.DataFrame):
        pd.testing.assert_frame_equal(found, truth, check_exact=True)
    elif hasattr(truth, "__dataclass_fields__"):
        assert type(found) is type(truth)
        for field in fields(truth):
            same(getattr(found, field.name), getattr(truth, field.name))
    elif isinstance(truth, Mapping):
        assert list(found) == list(truth)
        for name in truth:
            same(found[name], truth[name])
    elif isinstance(truth, (list, tuple)):
        assert len(found) == len(truth) and isinstance(found, tuple) == isinstance(truth, tuple)
        for one, other in zip(found, truth, strict=True):
            same(one, other)
    else:
        assert type(found) is type(truth) and (found == truth or (found != found and truth != truth))


def test_every_kind_of_field_comes_back_by_its_type(tmp_path):
    save_record(everything(), tmp_path)
    found = load_record(Everything, tmp_path)
    same(found, everything())
    assert type(found.pair) is Pair and type(found.pairs["y"]) is Pair and type(found.inner.children[0]) is Inner


def test_either_of_two_types_comes_back(tmp_path):
    from dataclasses import replace

    save_record(replace(everything(), either=Interval(1.0, 0.0, 2.0, 4), absent=np.ones(2), nothing="x"), tmp_path)
    found = load_record(Everything, tmp_path)
    assert found.either == Interval(1.0, 0.0, 2.0, 4) and found.nothing == "x"
    np.testing.assert_array_equal(found.absent, np.ones(2))


@QUICK
@given(
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: nps.arrays(dtype, nps.array_shapes(min_dims=0, max_dims=4, min_side=0))
    )
)
def test_arrays_keep_dtype_shape_and_bits(tmp_path_factory, array):
    folder = tmp_path_factory.mktemp("record")
    save_record(Only(array), folder)
    same(load_record(Only, folder).value, array)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(string.ascii_letters), inner, max_size=3),
    max_leaves=8,
)


@QUICK
@given(plain)
def test_plain_values_of_any_depth_come_back(tmp_path_factory, value):
    folder = tmp_path_factory.mktemp("record")
    save_record(Only(value), folder)
    same(load_record(Only, folder).value, value)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=6)
cells = {
    "float64": st.floats(),
    "float32": st.floats(width=32),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
    "str": texts | st.none(),
    "object": texts | st.integers(-9, 9) | st.none() | st.booleans(),
    "Int64": st.integers(-9, 9) | st.none(),
}


@st.composite
def frames(draw):
    n = draw(st.integers(0, 4))
    kinds = draw(st.lists(st.sampled_from(sorted(cells)), min_size=1, max_size=4))
    columns = {}
    for i, kind in enumerate(kinds):
        values = draw(st.lists(cells[kind], min_size=n, max_size=n))
        columns[f"{kind} {i}"] = pd.Series(values, dtype=kind)
    return pd.DataFrame(columns)


@QUICK
@given(frames())
def test_tables_come_back_to_the_last_digit_and_letter(tmp_path_factory, frame):
    folder = tmp_path_factory.mktemp("record")
    save_record(Table(frame), folder)
    pd.testing.assert_frame_equal(load_record(Table, folder).frame, frame, check_exact=True)


def test_a_table_without_columns_is_an_empty_one(tmp_path):
    save_record(Table(pd.DataFrame()), tmp_path)
    assert load_record(Table, tmp_path).frame.empty


def test_what_people_read_lies_beside_by_the_fields_name(tmp_path):
    save_record(everything(), tmp_path, study="all of it")
    names = {"result.json", "result.safetensors", "table.csv", "tables-one.csv", "tables-two.csv"}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert pd.read_csv(tmp_path / "table.csv")["head"].tolist() == [0, 1]
    facts = json.loads((tmp_path / "result.json").read_text())
    assert facts["study"] == "all of it" and facts["format"] == FORMAT and facts["fields"]["whole"] == 2**53 + 1


def test_result_json_is_written_last(tmp_path, monkeypatch):
    """So that what was killed on the way is not taken for a result."""

    def full(path, arrays):
        raise OSError("no space")

    monkeypatch.setattr("headscape.records.write_arrays", full)
    with pytest.raises(OSError, match="no space"):
        save_record(everything(), tmp_path)
    assert not (tmp_path / "result.json").exists() and (tmp_path / "table.csv").exists()


def test_keys_that_make_two_places_read_alike_do_not_mix_them_up(tmp_path):
    frames = [pd.DataFrame({"x": [i]}) for i in range(2)]
    value = {"a/b": np.zeros(1), "a": {"b": np.ones(1), "c-d": frames[0]}, "a-c": {"d": frames[1]}}
    save_record(Only(value), tmp_path)
    same(load_record(Only, tmp_path).value, value)


def test_keys_that_json_would_change_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"value: the keys of a mapping are text or integers, not \(1, 2\)"):
        save_record(Only({(1, 2): 3.0}), tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "result.json").unlink(), "FileNotFoundError"),
        (lambda folder: (folder / "result.json").write_text("{"), "JSONDecodeError"),
        (lambda folder: (folder / "result.json").write_text("[]"), "AttributeError"),
        (lambda folder: (folder / "result.json").write_text('{"format": 1}'), "written by another version"),
        (lambda folder: (folder / "result.safetensors").write_bytes(b"no"), "is damaged"),
        (lambda folder: (folder / "table.csv").unlink(), "FileNotFoundError"),
        (lambda folder: (folder / "result.safetensors").unlink(), "cannot be read"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(tmp_path, damage, message):
    save_record(everything(), tmp_path)
    damage(tmp_path)
    with pytest.raises(HeadscapeError, match=f"{message}.*; draw it again") as caught:
        load_record(Everything, tmp_path, again="draw it again")
    assert str(tmp_path) in str(caught.value)


def test_a_field_that_the_class_does_not_have_is_another_version(tmp_path):
    save_record(Only(1), tmp_path)
    with pytest.raises(HeadscapeError, match="cannot be read"):
        load_record(Table, tmp_path)


def test_rows_for_machines_hold_no_nan():
    frame = pd.DataFrame({"a": [1.5, np.nan], "b": ["x", None], 3: [True, False]})
    assert as_records(frame) == [{"a": 1.5, "b": "x", "3": True}, {"a": None, "b": None, "3": False}]


def test_a_table_replaces_the_one_before_whole(tmp_path):
    write_table(tmp_path / "a.csv", pd.DataFrame({"x": [1, 2, 3]}))
    write_table(tmp_path / "a.csv", pd.DataFrame({"y": [0.1]}))
    assert (tmp_path / "a.csv").read_text() == "y\n0.1\n" and len(list(tmp_path.iterdir())) == 1
