"""A fingerprint is that of the content: as hashlib gives it, at once and from memory."""

import hashlib
import json
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headscape import fingerprints
from headscape.fingerprints import cache_root, digest, file_hash, full_hash, joint_hash
from reference import QUICK


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def counted(monkeypatch):
    """Paths of the files that were read whole."""
    read = []

    def count(path):
        read.append(path.name)
        return full_hash(path)

    monkeypatch.setattr(fingerprints, "full_hash", count)
    return read


def sha(content):
    return hashlib.sha256(content).hexdigest()


def aged(path, content):
    """A file that was last written long ago, as far as its date can say."""
    path.write_bytes(content)
    os.utime(path, (1e9, 1e9))
    return path


@pytest.fixture
def later(monkeypatch):
    """Let an hour pass."""
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 3600 * 10**9)


def test_it_is_the_sha_of_the_content(tmp_path):
    for n in (0, 1, 2**20 + 1):
        content = os.urandom(n)
        (tmp_path / "a").write_bytes(content)
        assert full_hash(tmp_path / "a") == file_hash(tmp_path / "a") == sha(content)


def test_a_file_is_read_once_until_it_changes(tmp_path, counted, later):
    path = aged(tmp_path / "a", b"one")
    assert [file_hash(path) for _ in range(3)] == [sha(b"one")] * 3 and counted == ["a"]
    (tmp_path / "link").symlink_to(path)
    assert file_hash(tmp_path / "link") == sha(b"one") and counted == ["a"]
    time.sleep(0.02)  # a tick of the clock of files
    aged(path, b"two")  # its size and date are the same: the time of the change of its node is not
    assert file_hash(path) == sha(b"two") and counted == ["a", "a"]
    exchanged = aged(tmp_path / "b", b"six")
    exchanged.replace(path)
    assert file_hash(path) == sha(b"six")


def test_a_file_written_a_moment_ago_is_read_again(tmp_path, cache, monkeypatch):
    """A write within the same tick of the clock would leave size and times as they are."""
    path = tmp_path / "a"
    path.write_bytes(b"one")
    state = fingerprints._state(path)
    monkeypatch.setattr(fingerprints, "_state", lambda _: state)
    assert file_hash(path) == sha(b"one")
    path.write_bytes(b"two")
    assert file_hash(path) == sha(b"two")


def test_a_note_for_another_path_or_a_damaged_one_is_not_believed(tmp_path, cache, counted, later):
    path = aged(tmp_path / "a", b"one")
    file_hash(path)
    note = next((cache / "hashes").iterdir())
    said = json.loads(note.read_text())
    for forged in (said | {"path": "/elsewhere"}, said | {"state": [0, 0, 0, 0]}, {}, []):
        note.write_text(json.dumps(forged | {"sha256": "0" * 64} if forged else forged))
        assert file_hash(path) == sha(b"one")
    note.write_text("{")
    assert file_hash(path) == sha(b"one") and len(counted) == 6


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch, later):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "file"))
    assert file_hash(aged(tmp_path / "a", b"one")) == sha(b"one")


def test_a_file_that_changes_while_it_is_read_is_not_remembered(tmp_path, cache, monkeypatch, later):
    path = aged(tmp_path / "a", b"one")

    def slowly(path):
        found = full_hash(path)
        aged(path, b"longer")
        return found

    monkeypatch.setattr(fingerprints, "full_hash", slowly)
    assert file_hash(path) == sha(b"one")
    assert not list(cache.rglob("*.json"))


def test_several_files_have_one_fingerprint_in_their_order(tmp_path):
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_text(path.name)
    assert joint_hash(paths[:1]) == sha(b"a")
    assert joint_hash(paths) == sha((sha(b"a") + sha(b"b") + sha(b"c")).encode())
    assert len({joint_hash(paths), joint_hash(paths[::-1]), joint_hash(paths[:2]), joint_hash([])}) == 4


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@QUICK
@given(plain, plain)
def test_digests_are_equal_where_facts_are(one, other):
    text = [json.dumps(each, sort_keys=True) for each in (one, other)]
    assert (digest(one) == digest(other)) == (text[0] == text[1])
    assert digest(one, other) == digest(*json.loads(json.dumps([one, other]))) != digest([one, other])


def test_the_digest_of_facts_is_the_same_on_every_machine():
    assert digest("organize", {"seed": 0, "ü": None}, (1, 2.5)) == sha(
        b'["organize", {"seed": 0, "\\u00fc": null}, [1, 2.5]]'
    )


def test_the_cache_is_where_the_user_says(tmp_path, monkeypatch):
    assert cache_root() == tmp_path / "cache"
    monkeypatch.setenv("HEADSCAPE_CACHE", "")
    assert cache_root().name == "headscape"
