"""Every command of the README, killed at renames and at random, resumes to the bytes of one that was left alone.

In the suite a few moments of each command; with HEADSCAPE_FAULTS=1 (`make faults`) every rename by two signals, random
times, and two processes at once.
"""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from headscape.fingerprints import SETTLED_NS
from killing import Command, contents, done
from writers import saved

LONG = bool(os.environ.get("HEADSCAPE_FAULTS"))
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
TIMES = int(os.environ.get("HEADSCAPE_TIMES", 6))  # random moments per command and signal in the long version
WORDS = "the quick brown fox jumps over a lazy dog and runs away from it all day long until the night comes "
TEXT = ["--text", "text.txt"]
NO_MODEL = [] if LONG else ["--no-model"]
STARTS = {"capture": [], "analyze": [], "organize": ["run"], "softmax": ["run"], "report": ["organized"]}
STARTS |= {"prune": ["organized"], "compare": ["organized", "other"]}
COMMANDS = {
    "capture": ["MODEL", *TEXT, "--tokens", "16", "--batches", "3", "--keep", "probs,scores", "--out", "run"],
    "analyze": ["MODEL", *TEXT, "--tokens", "16", "--batches", "2", "--out", "run"],
    "organize": ["run"],
    "softmax": ["run", "--heads", "decoder.0.0,decoder.2.1", "--batches", "2", "--iterations", "1", *NO_MODEL],
    "prune": ["organized", *TEXT, "--heads", "2", "--windows", "3", "--criteria", "l1_all", "--fractions", "30"],
    "compare": ["organized", "other", "--out", "compared", "--draws", "20"],
    "report": ["organized"],
}
COMMANDS["prune"] += ["--criterion", "l1_all", "--compensation", "none", "--out", "small"]
COUNTS = {}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model, text, and runs before and after organizing."""
    place = tmp_path_factory.mktemp("faults")
    saved(place / "model")
    time.sleep(SETTLED_NS / 1e9 + 0.1)  # from then on its hash is kept in the cache, which every trial begins with
    rng = random.Random(0)
    words = WORDS.split()
    (place / "text.txt").write_text(" ".join(rng.choice(words) for _ in range(2000)))
    for name, seed in (("run", 0), ("other", 1)):
        keep = ["--keep", "probs,scores", "--tokens", 16, "--batches", 4, "--seed", seed, "--out", place / name]
        done(["capture", place / "model", "--text", place / "text.txt", *keep], place / "scratch")
    shutil.copytree(place / "run", place / "organized")
    for name in ("organized", "other"):
        done(["organize", place / name], place / "scratch")
    return place


class Trial:
    """A command in a folder of its own that begins as it should."""

    def __init__(self, home, place, name, *more):
        self.place, self.name = place, name
        place.mkdir(parents=True)
        os.symlink(home / "text.txt", place / "text.txt")
        for start in STARTS[name]:
            shutil.copytree(home / start, place / start)
        shutil.copytree(home / "scratch" / "cache", place / "scratch" / "cache")
        words = [home / "model" if word == "MODEL" else word for word in COMMANDS[name]]
        paths = [
            place / word if isinstance(word, str) and (place.parent / word).name in PLACES else word for word in words
        ]
        self.arguments = [name, *paths, "--quiet", *more]

    def command(self, **how):
        return Command(self.arguments, self.place / "scratch", **how)

    def finish(self):
        return done(self.arguments, self.place / "scratch")

    def contents(self):
        return contents(*(p for p in self.place.iterdir() if p.is_dir() and p.name != "scratch"))

    def left(self):
        """What nobody may find after an orderly stop, nor after a command that ended well."""
        folders = [p for p in self.place.iterdir() if p.is_dir() and p.name != "scratch"]
        places = [*self.place.glob(".*"), *(p for f in folders for p in f.rglob("*"))]
        return [p for p in places if p.name.endswith((".partial", ".lock")) or p.name[0] == "."]


PLACES = {"run", "organized", "other", "compared", "small", "text.txt"}


@pytest.fixture(scope="module")
def whole(home, tmp_path_factory):
    """By command: its files when nothing happens, its moments, and how long it takes."""
    found = {}

    def get(name):
        if name not in found:
            trial = Trial(home, tmp_path_factory.mktemp("whole") / name, name)
            began = time.monotonic()
            moments = trial.finish()
            found[name] = (trial.contents(), moments, time.monotonic() - began)
            assert not trial.left()
        return found[name]

    return get


def count(name, what):
    COUNTS[name, what] = COUNTS.get((name, what), 0) + 1


def check_resumed(trial, expected, code, number):
    """After a stop: orderly where it could be, and the same command ends in the same bytes."""
    if number == signal.SIGTERM and code:
        assert code in (143, -15)  # -15: before the command had begun, or when it was over
        assert not trial.left()
    trial.finish()
    assert trial.contents() == expected
    assert not trial.left()


@pytest.mark.parametrize("name", COMMANDS)
def test_where_things_are_on_this_machine_is_only_in_run_json(name, home, whole):
    """A page, a table or an exported model can be given away; run.json and the recipe of a pruning say where inputs are."""
    places = [str(path).encode() for path in (home, home.parent, Path.home(), Path.cwd())]
    files = {n: _without_inputs(n, data) for n, data in whole(name)[0].items() if Path(n).name != "run.json"}
    assert files and not [(n, place) for n, data in files.items() for place in places if place + b"/" in data]


def _without_inputs(name, data):
    """What result.json of a pruning says beside where its model and data are, by which it can be made again."""
    if Path(name).match("prune/*/result.json"):
        kept = json.loads(data)
        for fact in ("source", "inputs", "calibrate", "task"):
            del kept["fields"]["recipe"][fact]
        return json.dumps(kept).encode()
    return data


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_at_a_rename_resumes_to_the_same_bytes(name, home, whole, tmp_path):
    expected, moments, _ = whole(name)
    rng = random.Random(name)
    every = [(at, number) for at in range(1, moments + 1) for number in SIGNALS]
    some = every if LONG else [(rng.randint(1, moments), number) for number in SIGNALS]
    for at, number in some:
        trial = Trial(home, tmp_path / f"{at}-{number.name}", name)
        code, _, _ = trial.command(at=at, number=number).wait()
        check_resumed(trial, expected, code, number)
        count(name, f"renames, {number.name}")
        shutil.rmtree(trial.place)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.skipif(not LONG, reason="part of make faults")
def test_a_command_that_is_killed_at_any_time_resumes_to_the_same_bytes(name, home, whole, tmp_path):
    expected, _, seconds = whole(name)
    rng = random.Random(name)
    for k in range(TIMES):
        for number in SIGNALS:
            trial = Trial(home, tmp_path / f"{k}-{number.name}", name)
            command = trial.command()
            time.sleep(rng.uniform(0, seconds))
            command.end(number)
            check_resumed(trial, expected, command.wait()[0], number)
            count(name, f"random times, {number.name}")
            shutil.rmtree(trial.place)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.skipif(not LONG, reason="part of make faults; test_stops.py has organize")
def test_two_at_once_are_as_one_after_the_other(name, home, whole, tmp_path):
    expected, _, _ = whole(name)
    trial = Trial(home, tmp_path / "same", name)
    ends = [command.wait() for command in [trial.command(), trial.command()]]
    codes = sorted(code for code, *_ in ends)
    assert codes in ([0, 0], [0, 2]), ends
    assert all("is being written by process" in said for code, said, _ in ends if code)
    trial.finish()
    assert trial.contents() == expected
    count(name, "two at once, same settings")
    if name == "report":
        return
    pair, alone = Trial(home, tmp_path / "pair", name), Trial(home, tmp_path / "alone", name, "--seed", "5")
    commands = [pair.command(), Command([*pair.arguments, "--seed", "5"], pair.place / "scratch")]
    codes = [command.wait()[0] for command in commands]
    assert set(codes) <= {0, 2} and 0 in codes
    alone.finish()
    for code, own in zip(codes, (expected, alone.contents()), strict=True):
        if code == 0 and name not in ("capture", "analyze"):  # a run has one seed: the second command is refused
            results = {n: data for n, data in own.items() if n.endswith(("result.json", "result.safetensors"))}
            kept = pair.contents()
            assert results and all(kept.get(n) == data for n, data in results.items())
    count(name, "two at once, other settings")
