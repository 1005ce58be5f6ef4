"""Shared set-up: one thread per test process, and models that are loaded once."""

import os

import pytest
from hypothesis import settings

settings.register_profile("headscape", deadline=None)  # a busy machine is not a failure
settings.load_profile("headscape")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def load():
    """Load a bundled model once a session."""
    import headscape as hs

    loaded = {}

    def get(name):
        if name not in loaded:
            loaded[name] = hs.load_model(name, device="cpu")
        return loaded[name]

    return get
