"""Run headscape as a user does: in a process of its own."""

import subprocess
import sys


def headscape(*arguments, cwd=None, check=None):
    done = subprocess.run(
        [sys.executable, "-m", "headscape", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
    )
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
