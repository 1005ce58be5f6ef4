"""The built wheel works outside the clone."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[1]


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.models
def test_the_wheel_runs_the_demo_in_an_environment_of_its_own(load, tmp_path):
    """The packages it depends on are those of this environment; headscape itself is only the installed wheel."""
    load("smollm2-135m")  # its weights are here
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"OMP_NUM_THREADS": "1"}
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "-w", tmp_path, CLONE, env=clean)
    (wheel,) = tmp_path.glob("headscape-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    run(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel, env=clean)
    place = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", env=clean).strip())
    (place / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")  # .pth files in there are not read
    found = run(python, "-c", "import headscape; print(headscape.__file__)", cwd=tmp_path, env=clean).strip()
    assert Path(found).is_relative_to(place)
    headscape = tmp_path / "env" / "bin" / "headscape"
    assert run(headscape, "--version", cwd=tmp_path, env=clean).startswith("headscape ")
    lines = run(headscape, "demo", "--tokens", "16", "--batches", "1", "-q", cwd=tmp_path, env=clean).splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["found", "look", "next"]
    page = (tmp_path / "runs" / "demo" / "report.html").read_text(encoding="utf-8")
    assert 'id="grid"' in page and "270 heads in 30 layers" in page
