"""What a command imports, imported once for all of them (see killing.py)."""

import contextlib
import importlib
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib.figure  # noqa: F401
import pandas  # noqa: F401
import PIL.Image  # noqa: F401
import plotly  # noqa: F401
import scipy.stats  # noqa: F401
import torch
import transformers
import transformers.models.llama.modeling_llama
import transformers.models.vit.modeling_vit  # noqa: F401

from headscape.studies import STUDIES

for name in ("attention.capture", "cli", "report", *(f"studies.{study}.study" for study in STUDIES)):
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(f"headscape.{name}")

torch.set_num_threads(1)
