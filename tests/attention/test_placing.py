"""Models spread over devices, memory and disk: everything equals the model in one piece."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import headscape as hs
from headscape.attention.circuits import copying_scores
from headscape.attention.induction import repeated_sequence_scores
from headscape.attention.loss import loss
from headscape.attention.placing import device_map_of, on_disk
from headscape.attention.sending import named, received
from headscape.attention.stack import stack_of
from headscape.attention.weights import check_weights, parts_of, put, read
from headscape.roles import batch_roles
from tiny import Letters
from zoo import make

TEXT = ["the quick brown fox jumps over the lazy dog and runs away " * 4]
BY_HAND = {
    "model.embed_tokens": "cpu",
    "model.rotary_emb": "cpu",
    "model.layers.0": "cpu",
    "model.layers.1": "disk",
    "model.norm": "cpu",
    "lm_head": "cpu",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    make("llama").save_pretrained(place)
    return place


def loaded(folder, **options):
    model = hs.load_model(folder, device=options.pop("device", "cpu"), **options)
    model.tokenizer = Letters()
    return model


@pytest.fixture(scope="module", params=["disk", "auto", BY_HAND], ids=["disk", "auto", "by hand"])
def spread(request, folder):
    return loaded(folder, device_map=request.param)


@pytest.fixture(scope="module")
def whole(folder):
    return loaded(folder)


def test_capture_interventions_and_losses_are_the_same(spread, whole):
    options = {"tokens": 12, "batches": 2, "dtype": "float32", "keep": ("probs", "hidden")}
    one, two = (hs.capture(model, TEXT, **options) for model in (spread, whole))
    assert np.array_equal(one.tensor(1).values, two.tensor(1).values)
    assert str(batch_roles(one.tensor(1))) == str(batch_roles(two.tensor(1)))
    assert str(repeated_sequence_scores(spread)) == str(repeated_sequence_scores(whole))
    means = hs.mean_outputs(whole, TEXT, tokens=12, batches=2)
    for how in ("zero", "mean"):
        found = []
        for model in (spread, whole):
            with hs.ablate(model, [(0, 1), (1, 3)], how=how, means=means):
                found.append(loss(model, TEXT, tokens=12, batches=2).mean)
        assert found[0] == found[1]
    with hs.scale_scores(spread, [(1, 0)], 2.0), hs.scale_scores(whole, [(1, 0)], 2.0):
        assert loss(spread, TEXT, tokens=12, batches=2).mean == loss(whole, TEXT, tokens=12, batches=2).mean


def test_weights_and_circuits_are_read_wherever_they_lie(spread, whole):
    for part in parts_of(whole)[0]:
        assert np.array_equal(read(spread, part), read(whole, part))
    assert copying_scores(spread) == copying_scores(whole)

    found = []
    for model in (spread, whole):
        with hs.gates(model) as gates:
            ids = torch.arange(10, 22)[None]
            model.module(input_ids=ids, labels=ids).loss.backward()
            found.append(torch.cat([gate.grad for gate in gates.values()]))
    assert torch.equal(*found)


def test_replayed_layers_get_their_own_forward_back(spread):
    stack, ids = stack_of(spread), {"input_ids": torch.arange(10, 22)[None]}
    with torch.no_grad():
        with stack.recorded() as outputs:
            before = spread.module(**ids).logits
        with stack.replayed(outputs, 1):
            assert torch.equal(spread.module(**ids).logits, before)
        assert torch.equal(spread.module(**ids).logits, before)


def test_layers_streamed_are_not_in_memory_and_cannot_be_changed(folder):
    model = loaded(folder, device="disk")
    assert on_disk(model.module) and model.device == "cpu" and model.device_map == "disk"
    layers = [p for name, p in model.module.named_parameters() if ".layers." in name]
    assert layers and all(p.is_meta for p in layers)
    part = parts_of(model)[0][0]
    with pytest.raises(hs.InputError, match="on disk"), put(model, [(part, read(model, part), None)]):
        pass


def test_pruning_and_studies_of_weights_are_the_same(spread, whole, tmp_path):
    text = tmp_path / "judge.txt"
    text.write_text(TEXT[0] * 6)
    found = []
    for model in (spread, whole):
        check_weights(model.module)
        captured = hs.capture(model, TEXT, tokens=16, batches=3)
        pruned = hs.prune(captured, model, text, windows=3, n_heads=2, evaluations=2, threads=1)
        found.append((pruned.proposal, pruned.costs))
    assert found[0][0] == found[1][0]
    pd.testing.assert_frame_equal(found[0][1], found[1][1])


def test_a_worker_loads_it_in_the_same_way(folder):
    name = named(loaded(folder, device_map=BY_HAND))
    hash(name)
    with received(name, 1) as model:
        assert dict(model.device_map) == BY_HAND and on_disk(model.module)


def test_the_map_for_disk_covers_every_parameter_once():
    for kind in ("llama", "t5", "bert", "vit", "gpt2"):
        network = make(kind)
        found = device_map_of("disk", network)
        for name in dict(network.named_parameters()):
            assert sum(f"{name}.".startswith(f"{place}.") for place in found) == 1, (kind, name)
        assert "disk" in found.values() and "cpu" in found.values()


def test_mistakes_are_named(folder):
    with pytest.raises(hs.InputError, match="device_map is"):
        loaded(folder, device_map="everywhere")
    with pytest.raises(hs.InputError, match="random weights"):
        loaded(folder, device_map="disk", random_init=0)


def test_dtype_auto_is_that_of_the_files_and_only_other_types_are_read_into_memory(tmp_path, monkeypatch):
    from transformers import modeling_utils

    ways, opens = [], modeling_utils.safe_open
    monkeypatch.setattr(
        modeling_utils, "safe_open", lambda *at, **how: ways.append(how.get("backend")) or opens(*at, **how)
    )
    saved = make("llama").to(torch.bfloat16)
    saved.save_pretrained(tmp_path)
    for dtype, kept, way in (("auto", "bfloat16", "mmap"), ("float32", "float32", "pread")):
        model = hs.load_model(tmp_path, device="cpu", dtype=dtype)
        assert model.dtype == kept and model.module.dtype == getattr(torch, kept) and ways.pop() == way
        assert all(torch.equal(*pair) for pair in zip(model.module.parameters(), saved.parameters(), strict=True))


def test_a_model_of_twice_the_memory_is_captured():
    """In a process that is ended beyond half the weights: 1 GB of them, or HEADSCAPE_LARGE gigabytes."""
    script, size = (
        Path(__file__).parents[2] / "benchmarks" / "large_model.py",
        float(os.environ.get("HEADSCAPE_LARGE", 1)),
    )
    asked = ["--gigabytes", f"{size}", "--limit", f"{size / 2}", "--whole", "--json"]
    done = subprocess.run([sys.executable, script, *asked], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    streamed, whole = json.loads(done.stdout.splitlines()[-1])
    assert streamed["checksum"] == whole["checksum"]
    assert streamed["weights"] > 0.9e9 * size and streamed["with mapped files"] < 0.5e9 * size
    assert max(one["peak loading"] / one["weights"] for one in (streamed, whole)) < 0.3


def test_studies_that_change_the_model_say_that_it_must_be_whole(folder, tmp_path):
    from headscape.studies.collapse import collapse
    from headscape.studies.gaussian import gaussian

    model = hs.load_model(folder, device_map="disk")
    model.tokenizer = Letters()
    run = tmp_path / "run"
    hs.capture(model, TEXT, tokens=24, batches=3, keep=("probs", "hidden"), out=run)
    for study in (gaussian, collapse):
        with pytest.raises(hs.InputError, match="layers are on disk; load it whole"):
            study(run, model=model, threads=1)
    for options in ({"out": tmp_path / "smaller"}, {"heal": 2}):
        with pytest.raises(hs.InputError, match="layers are on disk; load it whole"):
            hs.prune(run, model, TEXT, windows=3, n_heads=1, threads=1, **options)
    with pytest.raises(hs.InputError, match="layers are on disk; load it whole"):
        hs.export_pruned(model, [(0, 1)], tmp_path / "smaller")
    assert not (tmp_path / "smaller").exists()
    assert {path.name for path in run.iterdir()} == {"attention", "run.json"}
