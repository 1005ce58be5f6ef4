"""Run headscape as a user does: in a process of its own."""

import subprocess
import sys


def headscape(*arguments, cwd=None, check=None):
    done = subprocess.run(
        [sys.executable, "-c", "from headscape.cli import main; main()", *map(str, arguments)],
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
