"""Whatever a file, a folder or an option says: exit code 0 or 2, one line, no traceback, and no byte of a result changed.

In the suite some cases of each family; with HEADSCAPE_FAULTS=1 (`make faults`) all of tests/hostile.py.
"""

import os
import random
import re
import shutil
import stat
import sys
import traceback
import warnings

import numpy as np
import pytest

import headscape as hs
from hostile import families
from killing import Command
from writers import saved

LONG = bool(os.environ.get("HEADSCAPE_FAULTS"))
FIRST = int(os.environ.get("HEADSCAPE_FIRST", 99)) if LONG else 1  # commands per case
CASES = families()
SUITE = {  # in the suite: what was found to fail, each by its first command
    "model": ["weights cut", "config deep", "architectures a number", "headscape notes cut", "hidden_size nan"],
    "text": ["not utf-8", "loop"],
    "image": ["cut.png", "bomb.png", "pickled.npz", "labels words.npz", "nan.npz", "damaged.npz"],
    "array": ["claims terabytes.npy", "pickled.npz", "cut.npy"],
    "run": [
        "run.json deep",
        "batch nan",
        "batch other tokens",
        "batch one layer gone",
        "header blocks empty",
        "units cut",
    ],
    "target": ["a file", "a folder of mine"],
    "number": ["softmax tolerance", "prune budget"],
}
COUNTS = {}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model, text, an array, and runs before and after organizing."""
    place = tmp_path_factory.mktemp("hostile")
    model = saved(place / "model")
    words = [
        "the",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "a",
        "lazy",
        "dog",
        "and",
        "runs",
        "away",
        "from",
        "it",
        "all",
        "day",
        "long",
        "until",
        "night",
        "comes",
    ]
    rng = random.Random(0)
    (place / "text.txt").write_text(" ".join(rng.choice(words) for _ in range(2000)))
    np.save(place / "good.npy", np.tril(np.ones((4, 6, 6))) / np.arange(1, 7)[:, None])
    for name, seed in (("run", 0), ("other", 1)):
        options = {"tokens": 16, "batches": 4, "random_state": seed, "keep": ("probs", "scores", "hidden")}
        hs.capture(model, place / "text.txt", out=place / name, **options)
    shutil.copytree(place / "run", place / "organized")
    for name in ("organized", "other"):
        hs.organize(place / name, model=model)
    if LONG:
        hs.capture(hs.load_model("vit-fmnist"), hs.sample_images(), batches=3, out=place / "seen")
    return place


def state(place):
    """Every file, link and folder below a place, whatever its rights are, and what it holds."""
    found = {}
    for folder, folders, names in os.walk(place):
        if os.path.basename(folder) == "scratch":
            folders.clear()
            continue
        found[folder] = None
        for name in [*names, *(n for n in folders if os.path.islink(os.path.join(folder, n)))]:
            path = os.path.join(folder, name)
            kind = os.lstat(path).st_mode
            if stat.S_ISREG(kind):
                with open(path, "rb") as file:
                    found[path] = file.read()
            else:
                found[path] = os.readlink(path) if stat.S_ISLNK(kind) else kind
    return found


WRITES = {"capture": ("attention", "run.json")}  # in a run; a study writes its own folder


def _repaired(command, path, after, place, home):
    """Whether a change is the command's own work: a stale lock is gone, the page drawn anew, or a file as it was made."""
    run, _, file = os.path.relpath(path, place).partition(os.sep)
    if path.endswith(".lock") or (command, file) == ("report", "report.html"):
        return True
    if file.partition(os.sep)[0] not in WRITES.get(command, (command,)):
        return False
    made = home / run / file
    return made.is_file() and _timeless(after.get(path)) == _timeless(_moved(made.read_bytes(), home, place))


def _moved(data, home, place):
    return data.replace(str(home).encode(), str(place).encode())


def _timeless(data):
    return None if data is None else re.sub(rb'"created": "[^"]*"', b"", data)


def inside(arguments, place, monkeypatch, capfd):
    """Run a command in this process: exit code and standard error."""
    from headscape.cli import main

    monkeypatch.chdir(place)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "argv", ["headscape", *arguments])
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:
            traceback.print_exc()
            code = 1
    return code, capfd.readouterr().err


def complaint(place, arguments, run, home):
    """What is wrong with how a command ended, None if nothing is."""
    before = state(place)
    code, said = run(arguments)
    after = state(place)
    lines = [line for line in said.splitlines() if line.strip()]
    changed = [path for path in before if after.get(path, 0) != before[path]]
    if code == 0:
        changed = [path for path in changed if not _repaired(arguments[0], path, after, place, home)]
    new = [path for path in after if path not in before]
    checks = {
        f"exit code {code}": code not in (0, 2),
        "a traceback": "Traceback" in said,
        "not one line": code == 2 and (len(lines) != 1 or not lines[0].startswith("error: ") or len(lines[0]) > 1000),
        "foreign code ran": (place / "EVIL").exists(),
        f"changed {changed[:3]}": bool(changed),
        f"refused, and left {new[:3]}": code == 2 and bool(new),
    }
    found = [what for what, wrong in checks.items() if wrong]
    return f"{' '.join(arguments)}: {found[0]}: {said[-600:]}" if found else None


def cases():
    for family, found in CASES.items():
        for name in found if LONG else SUITE[family]:
            yield pytest.param(family, name, id=f"{family}: {name}")


@pytest.mark.parametrize(("family", "name"), list(cases()))
def test_a_hostile_input_is_one_line(family, name, home, tmp_path, monkeypatch, capfd):
    place = tmp_path / "place"
    shutil.copytree(home, place, symlinks=True)
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    for run in ("run", "organized", "other"):
        meta = place / run / "run.json"
        meta.write_text(meta.read_text().replace(str(home), str(place)))
    apart = any(word in name for word in ("unreadable", "read-only"))  # there it may do less than a superuser may

    def run(arguments):
        if apart:
            return Command(arguments, tmp_path / "scratch", cwd=place).wait()[:2]
        return inside(arguments, place, monkeypatch, capfd)

    found = []
    for arguments, _ in zip(CASES[family][name](place), range(FIRST), strict=False):
        quiet = [] if arguments[0] in ("heads", "runs") else ["--quiet"]
        found.append(complaint(place, [*arguments, *quiet], run, home))
        COUNTS[family] = COUNTS.get(family, 0) + 1
    for folder, _, _ in os.walk(place):
        os.chmod(folder, 0o755)
    shutil.rmtree(place)
    assert not any(found), "\n".join(filter(None, found))
