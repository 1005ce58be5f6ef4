"""What is published is complete: the wheel and the source distribution that `python -m build` makes."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import headscape as hs

CLONE = Path(__file__).parents[1]
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"OMP_NUM_THREADS": "1"}


def run(*command, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, which is made from the source distribution, and that."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", out, CLONE, env=CLEAN)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_both_distributions_are_complete(built):
    wheel, source = built
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    kept = {file.relative_to(CLONE / "src") for file in (CLONE / "src" / "headscape").rglob("*") if file.is_file()}
    kept = {file.as_posix() for file in kept if "__pycache__" not in file.parts}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == kept
        facts = archive.read(f"headscape-{hs.__version__}.dist-info/METADATA").decode()
    assert set(re.findall("^Provides-Extra: (.*)$", facts, re.M)) == {"models", "report", "scale", "all", "docs", "dev"}
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= {f"src/{name}" for name in kept}
    assert names >= {
        "CHANGELOG.md",
        "CITATION.cff",
        "LICENSE",
        "Makefile",
        "README.md",
        "constraints.txt",
        "docs/conf.py",
    }
    assert not [name for name in names if name.startswith(("docs/_build", "docs/made", "runs", ".venv"))]


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {hs.__version__}\n" in (CLONE / "CITATION.cff").read_text()
    assert (CLONE / "CHANGELOG.md").read_text().split("\n## ")[1].startswith(hs.__version__ + " ")


@pytest.mark.models
def test_the_wheel_runs_the_demo_in_an_environment_of_its_own(load, built, tmp_path):
    """The packages it depends on are those of this environment; headscape itself is only the installed wheel."""
    load("smollm2-135m")  # its weights are here
    clean = CLEAN
    pip = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
    wheel = built[0]
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
