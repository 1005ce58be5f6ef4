"""What an export saves, counted by hand on tiny networks."""

import time
from types import SimpleNamespace

import numpy as np
import torch
from safetensors.torch import save_file

import headscape as hs
from exported import model_of
from headscape.pruning.export import export_pruned
from headscape.pruning.savings import Change, _in_turns, gguf_sizes, kv_bytes, sizes, source_bytes


def test_bytes_of_the_intact_network_are_those_of_the_file_and_what_the_copy_lacks(tmp_path):
    intact, copy = torch.nn.Linear(10, 6, bias=False), torch.nn.Linear(10, 4, bias=False)
    save_file(copy.state_dict(), tmp_path / "model.safetensors")
    written = (tmp_path / "model.safetensors").stat().st_size
    assert sizes(tmp_path, intact, copy) == (written + 4 * 20, written)
    tied = torch.nn.Sequential(intact, torch.nn.Linear(10, 6, bias=False))
    tied[1].weight = intact.weight  # stored once, counted once
    assert sizes(tmp_path, tied, copy) == (written + 4 * 20, written)


def test_a_gguf_file_lacks_the_removed_weights_in_its_number_type(tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(bytes(1000))
    found = {numbers: gguf_sizes(file, Change(960, 640), numbers) for numbers in ("f16", "q8_0", "q4_1")}
    assert found == {"f16": (1640, 1000), "q8_0": (1340, 1000), "q4_1": (1200, 1000)}  # 16, 8.5 and 5 bits a weight


def test_a_token_keeps_a_key_and_a_value_per_group_and_layer(tmp_path):
    model = model_of("llama-nine")  # 2 layers of 3 key/value heads
    written = hs.load_model(export_pruned(model, [(0, 0), (0, 1), (0, 2)], tmp_path / "small", "ragged").path)
    dim = model.config.head_dim
    assert kv_bytes(model, written) == (2 * 2 * 6 * dim, 2 * 2 * 5 * dim)  # float16, keys and values
    assert kv_bytes(model_of("bert"), model_of("bert")) is None  # an encoder keeps nothing


def test_bytes_of_the_files_a_model_came_from(tmp_path):
    model = model_of("gpt2")
    model.module.save_pretrained(tmp_path / "folder")
    loaded = hs.load_model(tmp_path / "folder", device="cpu")
    assert source_bytes(loaded) == (tmp_path / "folder" / "model.safetensors").stat().st_size
    assert source_bytes(model) == 0  # in memory only
    assert np.isclose(Change(200, 150).change, -0.25)


def test_time_that_others_take_is_not_counted():
    """On a busy machine a pass waits; seconds of the processor do not grow with that."""
    models = (SimpleNamespace(device="cpu"),) * 2
    assert max(_in_turns(lambda _: time.sleep(0.005), models, 1)) < 0.004


def test_times_are_measured_when_asked(tmp_path):
    report = export_pruned(model_of("gpt2"), [(0, 0)], tmp_path / "lm", "ragged", timed=1)
    assert report.forward.before > 0 and report.generation.after > 0 and "generation" in str(report)
    report = export_pruned(model_of("vit"), [(0, 0)], tmp_path / "vit", "ragged", timed=1)
    assert report.forward.after > 0 and report.generation is None
    assert "s of CPU time" in str(report) and "cache" not in str(report)  # it has none
    assert export_pruned(model_of("vit"), [(0, 0)], tmp_path / "no", "ragged").forward is None
