"""How the program ends: versions, mistakes, internal errors, Ctrl-C."""

import subprocess
import sys

import pytest

import headscape as hs
from commands import headscape, one_line_error


def with_import(body, cwd):
    """Run `headscape import` with another inside."""
    code = (
        "import headscape.captures as c, headscape.cli as cli, sys\n"
        f"def instead(*a, **k): {body}\n"
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


def test_ctrl_c_says_how_to_resume_and_ends_with_130(tmp_path):
    done = with_import("raise KeyboardInterrupt", tmp_path)
    assert (done.returncode, done.stderr.strip()) == (130, "stopped; run the same command again to resume")


@pytest.mark.parametrize(("module", "extra"), [("torch", "models"), ("matplotlib.axes", "report"), ("dask", "scale")])
def test_a_missing_module_names_the_extra_that_has_it(tmp_path, module, extra):
    done = with_import(f"raise ModuleNotFoundError('x', name={module!r})", tmp_path)
    assert f"{module} is not installed: pip install 'headscape[{extra}]'" in one_line_error(done, 2)


def test_usage_errors_end_with_two():
    assert headscape("organize").returncode == headscape("nosuchcommand").returncode == 2
    done = headscape("capture", "smollm2-135m", "--tokens", "-5")  # refused before a model is loaded
    assert done.returncode == 2 and "--tokens" in done.stderr
