"""Units for the tests of engines, in a module of their own: workers import it by its name."""

import os
import signal
import time
from pathlib import Path

from headscape.errors import InputError
from headscape.studies.organize import units

organized = units.measure_batch


def waits_to_be_killed(path, source, i, *rest):
    """Batch 1 says who works on it, leaves half a file and waits; the next worker that takes it goes on."""
    marker = Path(source).parent / "marker"
    path.parent.mkdir(parents=True, exist_ok=True)
    if i == 1 and not marker.exists():
        path.with_name(f"{path.name}.feedbeef.partial").write_text("half")
        said = marker.with_suffix(".partial")
        said.write_text(str(os.getpid()))
        said.rename(marker)
        time.sleep(600)
    organized(path, source, i, *rest)


def fails_on_batch_2(path, source, i, *rest):
    if i == 2:
        raise RuntimeError("the disk is on fire\nand so is the rest of this message")
    organized(path, source, i, *rest)


def is_mistaken(path, source, i, *rest):
    raise InputError("capture with more --tokens")


def writes(path, text):
    Path(path).write_text(text)


def kills_its_worker(path, text):
    if text == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    writes(path, text)


# --- to make workers unfit, by Client.run ---------------------------------------------------------------------------


def has_version(version):
    import headscape.studies.work.dask
    import headscape.version

    headscape.version.__version__ = headscape.studies.work.dask.__version__ = version


def is_blind_to(folder):
    """Let reading fail below a folder, as on a machine where it is not mounted; None gives the sight back."""
    sighted = getattr(is_blind_to, "sighted", Path.read_text)
    is_blind_to.sighted = sighted

    def read_text(self, *args, **kwargs):
        if folder is not None and Path(folder) in self.parents:
            raise FileNotFoundError(2, "No such file or directory")
        return sighted(self, *args, **kwargs)

    Path.read_text = read_text if folder is not None else sighted
