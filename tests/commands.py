"""Run headscape as a user does: in a process of its own, forked from a server that has imported everything."""

import os
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

from killing import FORKS, LIMIT


def _run(arguments, folder, cwd, environment, said):
    """In the child: the command, with what it is told and what it says in files."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    Path(folder, "in").write_text(said)
    os.dup2(os.open(Path(folder, "in"), os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["headscape", *arguments]
    from headscape.cli import main

    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def headscape(*arguments, cwd=None, check=None, said=""):
    """Run a command to its end, with `said` on its standard input."""
    with tempfile.TemporaryDirectory() as folder:
        given = ([str(a) for a in arguments], folder, str(cwd or Path.cwd()), dict(os.environ), said)
        process = FORKS.Process(target=_run, args=given)
        process.start()
        process.join(LIMIT)
        words = [(Path(folder) / name).read_text(encoding="utf-8") for name in ("out", "err")]
    done = CompletedProcess(arguments, process.exitcode, *words)
    if check is not None:
        assert done.returncode == check, done.stderr
    return done


def one_line_error(done, code):
    assert done.returncode == code, (done.stdout, done.stderr)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return lines[0]


def closing(said):
    """What was found, where to look and what to do next: the last three lines of a command."""
    lines = said.splitlines()[-3:]
    assert [line[:7] for line in lines] == ["found  ", "look   ", "next   "], said
    return [line[7:] for line in lines]
