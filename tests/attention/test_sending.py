"""A model for other processes: by name where it has files, or else itself in this one."""

import pickle
from dataclasses import replace

import pytest
import torch

import headscape as hs
import zoo
from headscape.attention.sending import Named, named, received
from headscape.attention.threads import torch_threads


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    zoo.make("llama").save_pretrained(place)
    return place


def test_a_model_with_files_is_sent_by_name(folder):
    model = hs.load_model(folder, device="cpu")
    name = named(model)
    assert isinstance(name, Named) and len(pickle.dumps(name)) < 1000
    with received(name, 1) as here, received(name, 1) as again:
        assert here is again and here.fingerprint == model.fingerprint
        assert all(torch.equal(a, b) for a, b in zip(here.module.parameters(), model.module.parameters(), strict=True))
    with pytest.raises(hs.InputError, match="other weights"), received(replace(name, fingerprint="other"), 1):
        pass


def test_random_weights_are_drawn_again(folder):
    model = hs.load_model(folder, device="cpu", random_init=7)
    name = named(model)
    assert isinstance(name, Named) and name.seed == 7
    with received(name, 1) as here:
        assert all(torch.equal(a, b) for a, b in zip(here.module.parameters(), model.module.parameters(), strict=True))


def test_a_model_made_by_hand_has_no_name():
    model = hs.wrap_module(zoo.make("llama"))
    assert named(model) is None
    with received(model, 1) as here:
        assert here is model


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
