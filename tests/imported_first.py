"""What a command imports, imported once for all of them (see killing.py)."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib.figure  # noqa: F401
import pandas  # noqa: F401
import PIL.Image  # noqa: F401
import plotly  # noqa: F401
import scipy.stats  # noqa: F401
import torch
import transformers  # noqa: F401

import headscape.attention.capture
import headscape.cli
import headscape.report
import headscape.studies.compare.study
import headscape.studies.organize.study
import headscape.studies.prune.study
import headscape.studies.softmax.study  # noqa: F401

torch.set_num_threads(1)
