"""How the program ends: versions, mistakes, internal errors, Ctrl-C.

Also tests errors.
"""

import subprocess
import sys
import textwrap
import time

import pytest

import headscape as hs
from commands import headscape, one_line_error
from headscape.cli import main
from killing import hearing


def with_import(body, cwd):
    """Run `headscape import` with another inside."""
    code = (
        "import headscape.imports as c, headscape.cli as cli, sys\n"
        f"def instead(*a, **k):\n{textwrap.indent(body, '    ')}\n"
        "c.import_array = instead\n"
        "sys.argv = ['headscape', 'import', 'a.npy']\n"
        "cli.main()\n"
    )
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, cwd=cwd, preexec_fn=hearing)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["organize"], "Missing argument 'RUN'"),
        (["nosuchcommand"], "No such command"),
        (["capture", "smollm2-135m", "--tokens", "-5"], "'--tokens'"),
        (["capture", "smollm2-135m", "--heads", "3"], "is not a head"),
        (["capture", "smollm2-135m", "--layers", "0-99999999999"], "more than 10,000 layers"),
        (["capture", "smollm2-135m", "--device", "tpu"], "device is one of"),
        (["capture", "smollm2-135m", "--keep", ""], "keep is a selection"),
        (["prune", "x", "--windows", "1000000000"], "'--windows'"),
        (["prune", "x", "--budget", "200%"], "budget"),
        (["prune", "x", "--budget", "nan"], "budget"),
        (["organize", "x", "--seed", "-1"], "'--seed'"),
        (["organize", "x", "--jobs", "1000000000"], "'--jobs'"),
        (["organize", "x", "--iterations", "1001"], "'--iterations'"),
        (["spectra", "x", "--rotations", "-1"], "'--rotations'"),
        (["organize", "x" * 5000], "name too long"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else " ".join(value)[:40],
)
def test_impossible_requests_are_one_line_before_anything_is_loaded(arguments, message, monkeypatch, capsys, tmp_path):
    """F9, F10, F12: exit 2, and no model, run or folder is touched."""
    import headscape.attention.models as models

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "_from_folder", lambda *a, **k: pytest.fail("a model was loaded"))
    monkeypatch.setattr(sys, "argv", ["headscape", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    done = subprocess.CompletedProcess(arguments, stopped.value.code, said.out, said.err)
    assert message in one_line_error(done, 2)
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_used_is_the_users_matter(monkeypatch, capsys, tmp_path):
    """F10: what the system says of a path, such as a read-only folder, is one line and exit 2."""
    monkeypatch.setattr(sys, "argv", ["headscape", "import", "a.npy"])
    denied = PermissionError(13, "Permission denied", "runs/a")
    monkeypatch.setattr("headscape.imports.import_array", lambda *a, **k: (_ for _ in ()).throw(denied))
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and "runs/a: permission denied" in said
