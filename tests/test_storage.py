"""Where something can be written is known before anything is, and JSON is read as it was written."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headscape.errors import InputError
from headscape.storage import check_place, read_json, write_json

NUMBER = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
WORD = st.text() | st.sampled_from(["[\n 1\n]", "[ 1 ]", '"[', "]\\"])
CONTENT = st.recursive(
    NUMBER | WORD | st.lists(NUMBER), lambda inside: st.lists(inside) | st.dictionaries(WORD, inside), max_leaves=12
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.dictionaries(WORD, CONTENT))
def test_json_is_read_as_it_was_written_on_few_lines_or_many(tmp_path, content):
    file = tmp_path / "content.json"
    write_json(file, content)
    assert read_json(file) == content
    file.write_text(json.dumps(content, indent=1), encoding="utf-8")
    assert read_json(file) == content


def test_a_list_of_numbers_takes_one_line(tmp_path):
    write_json(tmp_path / "log.json", {"loss": 1.5, "counts": [[0, 12], [-1e-9, None]], "names": ["a", "b"]})
    lines = (tmp_path / "log.json").read_text().splitlines()
    assert lines[2:6] == [' "counts": [', "  [0, 12],", "  [-1e-09, null]", " ],"]
    assert len(lines) == 1 + 1 + 4 + 4 + 1


def test_a_place_is_checked_and_nothing_is_made(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for good in ("new", "new/below", "folder"):
        check_place(tmp_path / good)
        check_place(tmp_path / good, folder=True)
    check_place(tmp_path / "file")
    for name, what in (
        ("file", "file exists"),
        ("file/below", "not a directory"),
        ("loop", "link"),
        ("x" * 300, "long"),
    ):
        with pytest.raises(InputError, match=what):
            check_place(tmp_path / name, folder=True)
    assert sorted(tmp_path.rglob("*")) == before
