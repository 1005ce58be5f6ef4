"""Attention from elsewhere: files, transformers' outputs, caches of hooks."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import headscape as hs
from tiny import Letters, attention, captured
from zoo import eager_reference, make


class ActivationCache:
    """Like TransformerLens' class of that name: keys and items, and no Mapping."""

    def __init__(self, arrays):
        self.arrays, self.keys = arrays, arrays.keys

    def __getitem__(self, key):
        return self.arrays[key]


@pytest.mark.parametrize("form", ["tuple", "output", "arrays", "cache", "own cache", "five axes"])
def test_attention_in_memory_is_what_capture_would_keep(form):
    model, cap = captured("gpt2")
    ids = torch.from_numpy(cap.input_ids(0))[None]
    own, _ = eager_reference(model.module, {"input_ids": ids})
    layers = tuple(own[""])  # (batch, head, query, key) each
    cache = {f"blocks.{n}.attn.hook_pattern": layer for n, layer in enumerate(layers)} | {"hook_embed": ids}
    given = {
        "tuple": layers,
        "output": SimpleNamespace(attentions=layers, logits=None),
        "arrays": [layer[0].numpy() for layer in layers],
        "cache": cache,
        "own cache": ActivationCache(cache),
        "five axes": torch.stack(layers),
    }[form]
    X, ours = hs.from_attentions(given, tokens=cap.tensor(0).query_tokens).tensor(0), cap.tensor(0)
    np.testing.assert_allclose(X.values, ours.values, atol=1e-6)
    assert X.mask == ours.mask == "causal" and X.query_tokens == ours.query_tokens
    assert [(h.layer, h.head) for h in X.heads] == [(h.layer, h.head) for h in ours.heads]


@pytest.mark.parametrize("key", ["blocks.{}.attn.hook_pattern", "layer_{}", "{}", int])
def test_some_layers_keep_their_numbers(tmp_path, key):
    maps = {key(n) if key is int else key.format(n): attention(n, (3, 5, 5)) for n in (10, 3)}
    X = hs.from_attentions(maps).tensor(0)
    assert [head.layer for head in X.heads] == [3, 3, 3, 10, 10, 10]
    np.testing.assert_array_equal(X.head(10, 2).values, attention(10, (3, 5, 5))[2])
    np.savez(tmp_path / "a.npz", **{str(name): layer for name, layer in maps.items()})
    of_file = hs.import_array(tmp_path / "a.npz", tmp_path / "run", dtype="float32").tensor(0)
    assert of_file.heads == X.heads
    np.testing.assert_array_equal(of_file.values, X.values)


def test_scores_come_with_their_future_masked_as_transformerlens_keeps_them(tmp_path):
    scores = np.random.default_rng(0).normal(size=(2, 3, 5, 5)).astype(np.float32)
    masked = np.where(np.tri(5, dtype=bool), scores, -np.inf)
    cache = {f"blocks.{n}.attn.hook_attn_scores": torch.from_numpy(layer)[None] for n, layer in enumerate(masked)}
    cache |= {f"blocks.{n}.attn.hook_pattern": layer.softmax(-1) for n, layer in enumerate(cache.values())}
    X = hs.from_attentions(cache, kind="scores").tensor(0, kind="scores")
    assert X.mask == "causal" and X.kind == "scores"
    np.testing.assert_array_equal(X.head(1, 2).values, np.tril(scores[1, 2]))
    np.save(tmp_path / "a.npy", masked)
    options = {"layout": "layer,head,query,key", "kind": "scores", "dtype": "float32"}
    of_file = hs.import_array(tmp_path / "a.npy", tmp_path / "run", **options).tensor(0, kind="scores")
    np.testing.assert_array_equal(of_file.values, X.values)
    refused([np.where(np.eye(5), -np.inf, scores[0])], "NaN or infinite", kind="scores")


def test_an_encoder_decoder_keeps_its_three_blocks_and_their_tokens():
    rng = np.random.default_rng(0)

    def maps(n_query, n_key):
        return tuple(rng.dirichlet(np.ones(n_key), size=(2, 3, n_query)) for _ in range(2))

    output = SimpleNamespace(encoder_attentions=maps(5, 5), decoder_attentions=maps(4, 4), cross_attentions=maps(4, 5))
    cap = hs.from_attentions(output, tokens={"encoder": list("abcde"), "decoder": list("wxyz")})
    assert cap.blocks == ["encoder", "decoder", "decoder.cross"] and len(cap) == 2
    cross = cap.tensor(1, "decoder.cross")
    assert cross.query_tokens == list("wxyz") and cross.key_tokens == list("abcde")
    np.testing.assert_allclose(cross.values[:, :, 4], output.cross_attentions[1][1, 1], rtol=1e-6)


def test_prompts_of_different_lengths_are_batches_of_their_own():
    short, long = ([attention(seed, (3, n, n)) for seed in (0, 1)] for n in (4, 6))
    cap = hs.from_attentions([short, long], tokens=[list("abcd"), list("abcdef")])
    assert [X.shape for X in cap] == [(4, 4, 6), (6, 6, 6)] and cap.tensor(1).key_tokens == list("abcdef")


def test_memory_can_become_a_run(tmp_path):
    maps = [attention(seed, (3, 5, 5)) for seed in (0, 1)]
    cap = hs.from_attentions(maps, tokens=list("abcde"), out=tmp_path / "run")
    again = hs.open_capture(tmp_path / "run")
    np.testing.assert_array_equal(again.tensor(0).values, cap.tensor(0).values)
    assert again.tensor(0).query_tokens == list("abcde")
    with pytest.raises(hs.InputError, match="was made with inputs sha256"):
        hs.from_attentions(maps[::-1], tokens=list("abcde"), out=tmp_path / "run")


def refused(given, match, **options):
    with pytest.raises(hs.InputError, match=match):
        hs.from_attentions(given, **options)


def test_what_is_no_attention_is_refused_by_name():
    maps = attention(0, (3, 5, 5))
    refused((None, None), "load it with attn_implementation='eager'")
    refused({"hook_embed": maps}, "no attention in a mapping with keys hook_embed")
    refused("text", "not as a str|comes as arrays")
    refused((), "call it with output_attentions=True")  # what fused attention returns
    refused(None, "load it with attn_implementation='eager'")
    refused({"logits": maps, "attentions": ()}, "returned no attention")
    refused([maps[0]], r"has shape \(5, 5\)")
    refused([maps - 1], "not probabilities")
    refused([maps * np.nan], "NaN or infinite")
    refused([maps, attention(0, (3, 4, 4))], "differ in batch, queries or keys")
    refused([[maps], [maps[:2]]], "different blocks, layers or heads")
    refused([maps], "5 queries, 2 tokens were given", tokens=["a", "b"])
    refused([maps], "mask is one of causal, full", mask="none")


@pytest.mark.parametrize("take", [hs.find_heads, hs.report, hs.organize, lambda given: hs.import_array(given, "run")])
def test_a_tuple_in_memory_is_sent_to_the_function_that_takes_it(take):
    given = (attention(0, (3, 5, 5)),)
    with pytest.raises(hs.InputError, match=r"hs\.from_attentions"):
        take(given)


def saved(tmp_path, values, **options):
    np.save(tmp_path / "a.npy", values)
    return hs.import_array(tmp_path / "a.npy", tmp_path / "run", **({"layout": "layer,head,query,key"} | options))


@pytest.mark.parametrize(
    ("values", "options", "match"),
    [
        (attention().astype(np.float64) * 1e300, {"dtype": "float32", "kind": "scores"}, "beyond the range of float32"),
        (-attention(), {}, "not probabilities"),
        (attention()[:, :, :0], {}, "empty"),
        (attention(), {"mask": "none"}, "mask is one of"),
        (attention(), {"layout": "head,head,query,key"}, "once each"),
        (attention(), {"layout": "query,key"}, "must name query, key and head"),
        (attention().astype(complex), {}, "attention is real numbers"),
        (attention().astype(complex), {"kind": "scores"}, "attention is real numbers"),
    ],
)
def test_a_refused_import_leaves_nothing(tmp_path, values, options, match):
    with pytest.raises(hs.InputError, match=match):
        saved(tmp_path, values.astype(np.float64) if values.dtype != complex else values, **options)
    assert not (tmp_path / "run").exists()


def test_a_changed_file_is_not_mixed_into_its_run(tmp_path):
    saved(tmp_path, attention(0))
    saved(tmp_path, attention(0))  # the same again is fine
    before = (tmp_path / "run" / "attention" / "batch-0000.safetensors").read_bytes()
    with pytest.raises(hs.InputError, match="was made with inputs sha256"):
        saved(tmp_path, attention(1))
    assert (tmp_path / "run" / "attention" / "batch-0000.safetensors").read_bytes() == before


def test_one_array_per_layer_is_put_in_order(tmp_path):
    layers = {f"layer_{n}": attention(n, (3, 5, 5)) for n in range(11)}
    np.savez(tmp_path / "a.npz", **layers)
    X = hs.import_array(tmp_path / "a.npz", tmp_path / "run", dtype="float32").tensor(0)
    np.testing.assert_array_equal(X.values[:, :, 3 * 10], layers["layer_10"][0])
    by_batch = {name: np.stack([maps, maps[::-1]]) for name, maps in layers.items()}
    np.savez(tmp_path / "c.npz", **by_batch)
    captured = hs.import_array(tmp_path / "c.npz", tmp_path / "batches", dtype="float32")
    assert len(captured) == 2
    np.testing.assert_array_equal(captured.tensor(1).values[:, :, 3 * 10], layers["layer_10"][2])
    np.savez(tmp_path / "b.npz", probs=layers["layer_0"], other=layers["layer_1"])
    with pytest.raises(hs.InputError, match="choose one with --name"):
        hs.import_array(tmp_path / "b.npz", tmp_path / "other")


def test_pickles_and_broken_files_are_one_line(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "a.pt")
    (tmp_path / "a.npz").write_bytes(b"PK no zip")
    (tmp_path / "a.safetensors").write_bytes(b"\x00" * 20)
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY")
    for name, match in (
        ("a.pt", r"python -c \"import torch, safetensors.torch as s; "),
        ("a.npz", "cannot be read"),
        ("a.npy", "cannot be read"),
    ):
        with pytest.raises(hs.InputError, match=match) as error:
            hs.import_array(tmp_path / name, tmp_path / "run")
        assert "\n" not in str(error.value)
    with pytest.raises(hs.InputError, match="cannot be read"):
        hs.import_array(tmp_path / "a.safetensors", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("form", ["tensor", "list", "dict", "cache"])
def test_the_line_that_converts_a_pickle_does_it(tmp_path, form):
    maps = torch.from_numpy(np.stack([attention(seed, (3, 5, 5)) for seed in (0, 1)]))
    named = {f"blocks.{n}.attn.hook_pattern": layer for n, layer in enumerate(maps)} | {"hook_embed": maps[0, 0]}
    held = {"tensor": maps, "list": list(maps), "dict": {f"layer_{n}": m for n, m in enumerate(maps)}, "cache": named}
    torch.save(held[form], tmp_path / "a.pt")
    with pytest.raises(hs.InputError) as error:
        hs.import_array(tmp_path / "a.pt", tmp_path / "run")
    exec(re.search('python -c "(.*)"$', str(error.value))[1])
    X = hs.import_array(tmp_path / "a.safetensors", tmp_path / "run", dtype="float32").tensor(0)
    np.testing.assert_array_equal(X.values, maps.flatten(0, 1).permute(1, 2, 0))


def test_the_first_address_still_works():
    from headscape.captures import import_array

    assert import_array is hs.import_array


def test_letters_and_runs_agree(tmp_path):
    """A run of a model says absolutely where the model is, and what travels does not."""
    make("llama").save_pretrained(tmp_path / "llama")
    model = hs.load_model(tmp_path / "llama", device="cpu")
    model.tokenizer = Letters()
    hs.capture(model, ["the quick brown fox jumps"], tokens=8, batches=2, out=tmp_path / "run")
    run = hs.Run.open(tmp_path / "run")
    assert run.model_source == str(tmp_path / "llama")
    assert str(tmp_path) not in json.dumps(run.shown) and run.shown["model"]["source"] == "llama"
