"""Where something can be written is known before anything is."""

import pytest

from headscape.errors import InputError
from headscape.storage import check_place


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
