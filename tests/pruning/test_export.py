"""What an export refuses, checks, keeps and reports."""

import json
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers as T

import headscape as hs
from exported import load_ragged, means_of, model_of, relative
from headscape.pruning import export, forms
from headscape.pruning.compensation import fit_compensation
from headscape.pruning.export import export_pruned
from zoo import make


def test_a_ragged_model_is_not_exported_again(tmp_path):
    model = model_of("gpt2")
    export_pruned(model, [(0, 1)], tmp_path / "out", "ragged")
    with pytest.raises(hs.InputError, match="ragged export already"):
        export_pruned(load_ragged(model, tmp_path / "out"), [(0, 0)], tmp_path / "again", "masked")


def test_means_that_do_not_fit(tmp_path):
    model = model_of("gpt2")
    means = means_of(model)
    with pytest.raises(hs.InputError, match=r"the mean of head decoder\.0\.1 has shape \(3,\), its output \(8,\)"):
        export_pruned(
            model, [(0, 1)], tmp_path / "out", "masked", means={**means, hs.HeadId("decoder", 0, 1): np.ones(3)}
        )
    del means[hs.HeadId("decoder", 0, 1)]
    with pytest.raises(hs.InputError, match=r"means lack head decoder\.0\.1"):
        export_pruned(model, [(0, 1)], tmp_path / "out", "masked", means=means)


def test_bad_requests_write_nothing(tmp_path):
    model = model_of("llama")
    every = [head for site in model.sites for head in site.heads]
    for heads, kind, message in [
        ([], "masked", "no heads to remove"),
        (every, "masked", "all 8 heads"),
        (every, "ragged", "at least one must stay"),
        ([(0, 9)], "masked", r"no head decoder\.0\.9"),
        ([(0, 0)], "smaller", "kind is one of auto, gguf, masked, ragged, uniform, not 'smaller'"),
    ]:
        with pytest.raises(hs.InputError, match=message):
            export_pruned(model, heads, tmp_path / "out", kind)
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for place in ("full", "full/mine.txt"):
        with pytest.raises(hs.InputError, match="exists and is not an empty folder"):
            export_pruned(model, [(0, 0)], tmp_path / place, "masked")
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine.txt"]
    example = torch.ones(1, 3, 8), torch.ones(1, 3, 8), torch.ones(1, 3, 8)
    plain = hs.wrap_module(torch.nn.MultiheadAttention(8, 2, batch_first=True), example=example)
    with pytest.raises(hs.InputError, match="plain module"):
        export_pruned(plain, [(0, 0)], tmp_path / "out", "masked")


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    export_pruned(model_of("gpt2"), [(0, 0)], tmp_path / "out", "masked")
    assert hs.load_model(tmp_path / "out", device="cpu").family == "gpt2"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_export_again_is_accepted_and_left_alone(tmp_path):
    model, out = model_of("gpt2"), tmp_path / "out"
    first = export_pruned(model, [(0, 0), (1, 2)], out, "ragged", recipe={"study": "abc"})
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    again = export_pruned(model, ["decoder.1.2", "decoder.0.0"], out, "ragged", recipe={"study": "abc"})
    assert again == first and {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    means = means_of(model)
    for heads, kind, options in (
        ([(0, 0)], "ragged", {"recipe": {"study": "abc"}}),
        ([(0, 0), (1, 2)], "masked", {"recipe": {"study": "abc"}}),
        ([(0, 0), (1, 2)], "ragged", {"recipe": {"study": "abd"}}),
        ([(0, 0), (1, 2)], "ragged", {"recipe": {"study": "abc"}, "means": means}),
    ):
        with pytest.raises(hs.InputError, match="exists and is not an empty folder"):
            export_pruned(model, heads, out, kind, **options)
    with pytest.raises(hs.InputError, match="exists and is not an empty folder"):
        export_pruned(hs.wrap_module(make("gpt2", seed=1)), [(0, 0), (1, 2)], out, "ragged", recipe={"study": "abc"})
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


def test_a_finished_export_whose_weights_were_changed_is_not_believed(tmp_path):
    model = model_of("gpt2")
    export_pruned(model, [(0, 0)], tmp_path / "out", "masked")
    other = make("gpt2", seed=1)
    other.save_pretrained(tmp_path / "out")
    weights = tmp_path / "out" / "model.safetensors"
    for damaged in (weights.read_bytes(), weights.read_bytes()[:1000]):
        weights.write_bytes(damaged)
        with pytest.raises(hs.InputError, match="was changed after it was written.*; remove it"):
            export_pruned(model, [(0, 0)], tmp_path / "out", "masked")
        assert weights.read_bytes() == damaged


def test_an_export_that_was_killed_is_made_again(tmp_path, monkeypatch):
    model, out = model_of("gpt2"), tmp_path / "out"

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(export, "_compared", stopped)
        with pytest.raises(KeyboardInterrupt):
            export_pruned(model, [(0, 0)], out, "masked")
    assert not list(tmp_path.iterdir())
    # what kill -9 leaves: half a folder, and the lock of a process that is no more
    killed = subprocess.Popen([sys.executable, "-c", "pass"])
    killed.wait()
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "model.safetensors").write_bytes(b"half")
    holder = {"pid": killed.pid, "host": socket.gethostname(), "started": "", "birth": ""}
    for _ in range(2):  # in the export, and after its rename
        (tmp_path / ".out.lock").write_text(json.dumps(holder))
        export_pruned(model, [(0, 0)], out, "masked")
        assert not (tmp_path / ".out.lock").exists()
    export_pruned(model, [(0, 0)], tmp_path / "whole", "masked")
    assert contents(out) == contents(tmp_path / "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"out", "whole"}


def test_a_network_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    def wrong(model, removed):
        return forms.masked(model, fit_compensation(model, {name: [0] for name in removed}, None))

    monkeypatch.setitem(export.KINDS, "masked", wrong)
    with pytest.raises(hs.HeadscapeError, match="away from the ablated model's .*nothing was written"):
        export_pruned(model_of("gpt2"), [(0, 1)], tmp_path / "out", "masked")

    def broken(model, removed):
        copied = forms.ragged(model, removed)
        return forms.PrunedCopy(copied.module)  # without its plan

    monkeypatch.setitem(export.KINDS, "masked", broken)
    with pytest.raises(hs.HeadscapeError, match="does not run: .*nothing was written"):
        export_pruned(model_of("gpt2"), [(0, 1)], tmp_path / "out", "masked")
    assert not list(tmp_path.iterdir())


def test_what_is_known_of_the_model_goes_along(tmp_path):
    model = model_of("llama")
    model.licence, model.prefix, model.tokenizer = "apache-2.0", (1,), None
    export_pruned(model, ["decoder.0.3"], tmp_path / "out", "masked")
    loaded = hs.load_model(tmp_path / "out", device="cpu")
    assert (loaded.licence, loaded.prefix) == ("apache-2.0", (1,))
    assert loaded.fingerprint != model.fingerprint  # the new weights have their own
    origin = json.loads((tmp_path / "out" / "headscape.json").read_text())["pruned_from"]
    assert origin["heads"] == ["decoder.0.3"] and origin["fingerprint"] == model.fingerprint


def test_images_are_prepared_as_before(load, tmp_path):
    model = load("vit-fmnist")
    heads = [(n, h) for n in range(6) for h in (n % 6, (n + 1) % 6)]
    for kind in ("masked", "uniform", "ragged"):
        export_pruned(model, heads, tmp_path / kind, kind)
        loaded = hs.load_model(tmp_path / kind, device="cpu")
        assert loaded.images == model.images and loaded.task == "image-classifier"
        with hs.ablate(model, heads):
            expected = hs.loss(model, hs.sample_images())
        found = hs.loss(loaded, hs.sample_images())
        np.testing.assert_allclose(found.values, expected.values, atol=1e-4)


@pytest.mark.parametrize("kind", ["masked", "uniform", "ragged"])
def test_half_precision(kind, tmp_path):
    network = make("llama").to(torch.bfloat16)
    heads = [(n, h) for n in range(2) for h in (0, 3)]
    report = export_pruned(network, heads, tmp_path / "out", kind)
    loaded = hs.load_model(tmp_path / "out", device="cpu", dtype="bfloat16")
    weight = loaded.module.model.layers[0].self_attn.o_proj.weight
    assert weight.dtype == torch.bfloat16 and report.bytes.after < 1.2 * 2 * report.parameters.after + 10_000
    stays = slice(8, 24) if kind != "masked" else slice(0, 32)
    own = network.model.layers[0].self_attn.o_proj.weight.clone()
    own[:, :8] = own[:, 24:] = 0
    assert torch.equal(weight, own[:, stays])


SMOL = [(n, h) for n in range(30) for h in range(9) if (7 * n + 3 * h) % 5 == 0] + [(4, h) for h in range(9)]


def test_smollm2_masked_ragged_and_uniform(load, tmp_path):
    model = load("smollm2-135m")
    ids = model.tokenizer("Most of the water that falls as rain", return_tensors="pt").input_ids
    heads = sorted(set(SMOL))
    with hs.ablate(model, heads), torch.no_grad():
        expected = model.module(ids).logits
    sizes = {}
    for kind in ("masked", "ragged"):
        report = export_pruned(model, heads, tmp_path / kind, kind)
        loaded = hs.load_model(tmp_path / kind, device="cpu")
        with torch.no_grad():
            assert relative(loaded.module(ids).logits, expected) < 1e-5
        assert loaded.tokenizer("rain").input_ids == model.tokenizer("rain").input_ids
        sizes[kind] = report.bytes
    assert sizes["ragged"].after < sizes["masked"].after
    with hs.ablate(model, heads), torch.no_grad():
        options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
        slow = model.module.generate(ids, use_cache=False, **options)
    assert torch.equal(loaded.module.generate(ids, **options), slow)
    thirds = [(n, 3 * g + (n + g) % 3) for n in range(30) for g in range(3)]
    report = export_pruned(model, thirds, tmp_path / "uniform", "uniform")
    found = T.AutoModelForCausalLM.from_pretrained(tmp_path / "uniform", dtype=torch.float32)
    with torch.no_grad():
        with hs.ablate(model, thirds):
            expected = model.module(ids).logits
        assert relative(found(ids).logits, expected) < 1e-5
    assert found.config.num_attention_heads == 6 and found.config.head_dim == 64
