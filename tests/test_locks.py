"""One writer at a time: who comes second hears who is there, and who is gone holds nothing."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from multiprocessing import Process

import pytest

from headscape import locks
from headscape.errors import InputError
from headscape.locks import Holder, locked

HOLD = """
import sys, pathlib
from headscape.locks import locked
with locked(pathlib.Path(sys.argv[1]), "the study", print):
    print("held", flush=True)
    sys.stdin.read()
"""


def quiet(_):
    pass


@pytest.fixture
def other(tmp_path):
    """A process that holds the lock until its input ends."""
    command = [sys.executable, "-c", HOLD, tmp_path / "a.lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout.readline() == "held\n"
        yield held
        held.kill()


def write(path, **changes):
    """A lock file as its holder would have written it."""
    path.write_text(json.dumps(vars(Holder.me()) | changes))


def test_a_lock_is_there_for_the_time_of_the_block_and_names_its_holder(tmp_path):
    path = tmp_path / "new" / "a.lock"
    with locked(path, "the study", quiet):
        said = json.loads(path.read_text())
        assert said["pid"] == os.getpid() and said["host"] == socket.gethostname()
        assert os.listdir(path.parent) == ["a.lock"]
    assert not path.parent.exists()  # it was made for the lock alone
    with locked(path, "the study", quiet):
        shutil.rmtree(path.parent)  # with all that is in it
    with pytest.raises(RuntimeError, match="inside"), locked(path, "the study", quiet):
        raise RuntimeError("inside")
    assert not path.parent.exists()
    path.parent.mkdir()
    with locked(path, "the study", quiet):
        pass
    assert os.listdir(path.parent) == []  # a folder that was there stays


def test_a_second_process_is_refused_and_hears_who_is_there(tmp_path, other):
    before = (tmp_path / "a.lock").read_bytes()
    words = f"the study is being written by process {other.pid} on {socket.gethostname()}, since 20"
    with pytest.raises(InputError, match=re.escape(words)), locked(tmp_path / "a.lock", "the study", quiet):
        pytest.fail("entered")
    assert (tmp_path / "a.lock").read_bytes() == before and os.listdir(tmp_path) == ["a.lock"]
    other.communicate()
    with locked(tmp_path / "a.lock", "the study", quiet):
        pass


def test_a_second_thread_is_refused(tmp_path):
    def again():
        with locked(tmp_path / "a.lock", "the study", quiet):
            pytest.fail("entered")

    with locked(tmp_path / "a.lock", "the study", quiet), pytest.raises(InputError, match=f"process {os.getpid()} "):
        again()


def test_a_killed_holder_holds_nothing_even_before_its_end_was_asked_for(tmp_path, other):
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
    with locked(tmp_path / "a.lock", "the study", quiet):
        assert json.loads((tmp_path / "a.lock").read_text())["pid"] == os.getpid()


def test_a_process_id_that_is_no_more_holds_nothing(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write(tmp_path / "a.lock", pid=gone.pid)
    with locked(tmp_path / "a.lock", "the study", quiet):
        assert json.loads((tmp_path / "a.lock").read_text())["pid"] == os.getpid()


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only /proc tells when a process began")
def test_a_process_id_given_to_another_process_holds_nothing(tmp_path):
    write(tmp_path / "a.lock", birth="12")
    with locked(tmp_path / "a.lock", "the study", quiet):
        assert json.loads((tmp_path / "a.lock").read_text())["birth"] != "12"


ODD = [{"pid": pid} for pid in (0, -1, 10**30, "a", None)] + [{"birth": 3}, {"space": []}]


@pytest.mark.parametrize("content", [None, "", "null", '{"pid": 1}', *ODD])
def test_a_lock_of_another_machine_or_a_damaged_one_goes_stale_without_heartbeat(tmp_path, content):
    path = tmp_path / "a.lock"
    if content is None:
        write(path, host="elsewhere", pid=7, started="then")
    elif isinstance(content, dict):
        write(path, **content)
    else:
        path.write_text(content)
    named = "process 7 on elsewhere, since then" if content is None else "another process"
    recent = time.time() - locks.STALE_SECONDS + 20
    os.utime(path, (recent, recent))
    with pytest.raises(InputError, match=named), locked(path, "the study", quiet):
        pytest.fail("entered")
    before = path.read_bytes()
    for late in (-locks.STALE_SECONDS - 1, 10**6):  # a clock that went ahead holds nothing for weeks
        path.write_bytes(before)
        os.utime(path, (time.time() + late,) * 2)
        with locked(path, "the study", quiet):
            assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_process_of_another_container_keeps_its_lock_as_long_as_it_touches_it(tmp_path):
    """The same machine by name, where its process id is that of nobody here."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    write(tmp_path / "a.lock", pid=gone.pid, space="pid:[1]")
    with pytest.raises(InputError, match="is being written"), locked(tmp_path / "a.lock", "the study", quiet):
        pytest.fail("entered")


def test_what_a_killed_process_left_while_taking_the_lock_goes(tmp_path):
    (tmp_path / "a.lock.12.34.partial").write_text("{}")
    with locked(tmp_path / "a.lock", "the study", quiet):
        assert os.listdir(tmp_path) == ["a.lock"]


def test_a_process_of_this_machine_keeps_its_lock_without_heartbeat(tmp_path, other):
    os.utime(tmp_path / "a.lock", (0, 0))
    with pytest.raises(InputError), locked(tmp_path / "a.lock", "the study", quiet):
        pytest.fail("entered")


def test_the_holder_touches_its_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.01)
    path = tmp_path / "a.lock"
    with locked(path, "the study", quiet):
        os.utime(path, (0, 0))
        limit = time.monotonic() + 20
        while path.stat().st_mtime == 0 and time.monotonic() < limit:
            time.sleep(0.01)
        assert time.time() - path.stat().st_mtime < 30
    assert not any(thread.is_alive() and thread._target is locks._beat for thread in threading.enumerate())


def test_who_waits_says_so_once_and_goes_on_when_the_holder_is_done(tmp_path, other):
    said = []

    def hear(line):
        said.append(line)
        threading.Timer(0.5, other.stdin.close).start()

    with locked(tmp_path / "a.lock", "the study", hear, wait=True):
        assert other.wait() == 0
        assert json.loads((tmp_path / "a.lock").read_text())["pid"] == os.getpid()
    assert len(said) == 1 and said[0].startswith(f"the study is being written by process {other.pid} on ")


def test_who_waits_takes_over_from_the_dead(tmp_path, other):
    with locked(tmp_path / "a.lock", "the study", lambda _: other.kill(), wait=True):
        assert json.loads((tmp_path / "a.lock").read_text())["pid"] == os.getpid()


def test_a_lock_that_was_taken_over_is_left_to_its_new_holder(tmp_path):
    path = tmp_path / "a.lock"
    with locked(path, "the study", quiet):
        write(path, host="elsewhere")  # thought us dead
    assert json.loads(path.read_text())["host"] == "elsewhere"


def test_a_file_system_without_hard_links_has_locks_too(tmp_path, monkeypatch):
    def no_links(*_):
        raise OSError("not supported")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "a.lock"
    with locked(path, "the study", quiet):
        assert json.loads(path.read_text())["pid"] == os.getpid()
        with pytest.raises(InputError), locked(path, "the study", quiet):
            pytest.fail("entered")
    assert os.listdir(tmp_path) == []


def _count(path, counter, n):
    for _ in range(n):
        with locked(path, "the counter", quiet, wait=True):
            before = int(counter.read_text())
            time.sleep(0.001)
            counter.write_text(str(before + 1))


def test_processes_that_find_a_stale_lock_together_enter_one_by_one(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    write(tmp_path / "a.lock", birth="12")
    several = [Process(target=_count, args=(tmp_path / "a.lock", counter, 3)) for _ in range(4)]
    for each in several:
        each.start()
    for each in several:
        each.join()
    assert counter.read_text() == "12"
