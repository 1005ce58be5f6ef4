"""A small trained ViT through the collapse study, once for all tests of it."""

import pytest

import headscape as hs
from headscape.studies.collapse import collapse


@pytest.fixture(scope="session")
def vit_run(tmp_path_factory, load):
    folder = tmp_path_factory.mktemp("collapse") / "run"
    hs.capture(load("vit-fmnist"), hs.sample_images(), batches=8, keep=("probs", "hidden"), dtype="float32", out=folder)
    return folder


@pytest.fixture(scope="session")
def random_vit():
    return hs.load_model("vit-fmnist", device="cpu", random_init=1)


@pytest.fixture(scope="session")
def vit(vit_run, load, random_vit):
    return collapse(vit_run, model=load("vit-fmnist"), control=random_vit)
