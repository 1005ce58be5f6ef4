"""
A cluster with Dask
===================

Spread a study over processes or machines, and lose nothing when one of them fails.

Every study is cut into units of work: one input, one layer, one pair of runs. Any process that sees the run directory can do a unit, so
all you need is a Dask cluster.
"""

import tempfile
from pathlib import Path

from distributed import LocalCluster

import headscape as hs

# %%
# A run on disk
# -------------
# Workers read what they need from the run directory and write their results there. On several machines it must be on a shared disk.

scratch = tempfile.TemporaryDirectory()
model = hs.load_model("minilm-l6")
run = Path(scratch.name) / "run"
captured = hs.capture(model, [hs.sample_text()], tokens=32, batches=4, out=run)

# %%
# A cluster
# ---------
# Yours may be started by an administrator, by Slurm, or by ``dask scheduler`` on one machine and ``dask worker`` on each. Here two workers
# run within this process. All that headscape needs to know is the address of the scheduler.

local = {"processes": False, "protocol": "tcp", "dashboard_address": None}
with LocalCluster(n_workers=2, threads_per_worker=1, **local) as cluster:
    engine = hs.DaskEngine(scheduler=cluster.scheduler_address)
    spread = hs.organize(captured, model=None, engine=engine)
print(spread.headline())

# %%
# On the command line this is ``headscape organize RUN --engine dask --scheduler tcp://HOST:8786``; without an address,
# ``--engine dask --jobs 8`` starts workers on this machine.
#
# The same bytes
# --------------
# The result does not depend on who did the work: it is the same to the last bit.

in_memory = hs.capture(model, [hs.sample_text()], tokens=32, batches=4)
alone = hs.organize(in_memory, model=None)
print("equal:", bool((spread.affinity == alone.affinity).all()))

# %%
# How sure is this?
# -----------------
# If a worker is lost, its unit goes to another one, and nothing else is done twice. Finished units are on disk, so starting the study
# again resumes it. All workers must have the same version of headscape; this is checked before the study begins.
#
# What next?
# ----------
# :doc:`/scale` says what each study needs in memory and time, and how to start a cluster on several machines. Terms: :doc:`/glossary`.

scratch.cleanup()
