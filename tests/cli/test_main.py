"""How the program ends: versions, mistakes, internal errors, Ctrl-C."""

import subprocess
import sys
import textwrap
import time

import pytest

import headscape as hs
from commands import headscape, one_line_error


def with_import(body, cwd):
    """Run `headscape import` with another inside."""
    code = (
        "import headscape.imports as c, headscape.cli as cli, sys\n"
        f"def instead(*a, **k):\n{textwrap.indent(body, '    ')}\n"
        "c.import_array = instead\n"
        "sys.argv = ['headscape', 'import', 'a.npy']\n"
        "cli.main()\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=cwd)


def test_version():
    assert headscape("--version", check=0).stdout.strip() == f"headscape {hs.__version__}"


def test_an_internal_error_is_one_line_and_exit_code_one(tmp_path):
    line = one_line_error(with_import("raise KeyError('inner')", tmp_path), 1)
    assert line == "error: internal error (please report it; HEADSCAPE_DEBUG=1 shows the trace): KeyError: 'inner'"


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_stop_says_how_to_resume_and_has_its_exit_code(tmp_path, name, code):
    done = with_import(f"import os, signal; os.kill(os.getpid(), signal.{name})", tmp_path)
    assert done.returncode == code, done.stderr
    assert done.stderr.strip().startswith("stopped; to resume, run it again: headscape ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_code_that_does_not_hear_is_ended_from_beside(tmp_path):
    deaf = """
import ctypes, os, signal
try:
    os.kill(os.getpid(), signal.SIGTERM)
finally:
    ctypes.CDLL(None).sleep(60)
"""
    began = time.monotonic()
    done = with_import(deaf, tmp_path)
    assert done.returncode == 143 and "to resume" in done.stderr
    assert time.monotonic() - began < 40  # far below the 60 s it would have slept


@pytest.mark.parametrize(("module", "extra"), [("torch", "models"), ("matplotlib.axes", "report"), ("dask", "scale")])
def test_a_missing_module_names_the_extra_that_has_it(tmp_path, module, extra):
    done = with_import(f"raise ModuleNotFoundError('x', name={module!r})", tmp_path)
    assert f"{module} is not installed: pip install 'headscape[{extra}]'" in one_line_error(done, 2)


def test_usage_errors_end_with_two():
    assert headscape("organize").returncode == headscape("nosuchcommand").returncode == 2
    done = headscape("capture", "smollm2-135m", "--tokens", "-5")  # refused before a model is loaded
    assert done.returncode == 2 and "--tokens" in done.stderr
