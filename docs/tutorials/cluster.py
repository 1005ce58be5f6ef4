"""
A cluster with Dask
===================

Studies are cut into units of work: one batch, one layer, one pair of runs. You want to spread them over processes or machines, and to
lose nothing when one of them fails.
"""

import tempfile
from pathlib import Path

from distributed import LocalCluster

import headscape as hs

# %%
# A run on disk
# -------------
# Workers read their unit from the run directory and write its result there, so it must lie where all of them can see it.

scratch = tempfile.TemporaryDirectory()
model = hs.load_model("minilm-l6")
captured = hs.capture(model, [hs.sample_text()], tokens=32, batches=4, out=Path(scratch.name) / "run")

# %%
# A cluster
# ---------
# Yours is started by your administrator, by Slurm, or by ``dask scheduler`` and ``dask worker`` on each machine. Here two workers run
# within this process. All that headscape needs is the address.

with LocalCluster(
    n_workers=2, threads_per_worker=1, processes=False, protocol="tcp", dashboard_address=None
) as cluster:
    engine = hs.DaskEngine(scheduler=cluster.scheduler_address)
    spread = hs.organize(captured, model=None, engine=engine)
print(spread.headline())

# %%
# On the command line this is ``headscape organize RUN --engine dask --scheduler tcp://HOST:8786``; without an address,
# ``--engine dask --jobs 8`` starts workers on this machine.
#
# The same bytes
# --------------
# Whoever does the work, the result is the same to the last bit.

alone = hs.organize(hs.capture(model, [hs.sample_text()], tokens=32, batches=4), model=None)
print("equal:", bool((spread.affinity == alone.affinity).all()))

# %%
# How sure is this?
# -----------------
# A unit that fails, or whose worker is lost, is tried again and costs only that unit; finished units are on disk, and starting the
# study again resumes it. Workers must have the same version of headscape, which is checked when the study begins.
#
# What next?
# ----------
# :doc:`/scale` says what each study needs in memory and time, and how to start a cluster under Slurm or on several machines.

scratch.cleanup()
