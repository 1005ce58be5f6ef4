"""GGUF files of architecture deci: opened again by headscape, and run by an unmodified llama.cpp.

Also tests attention.convert, attention.deci.
"""

import json
import tracemalloc

import gguf
import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

import headscape as hs
from exported import model_of, relative
from headscape.attention.convert import fields_of
from headscape.attention.deci import read_deci
from headscape.attention.gguf_reader import open_gguf
from headscape.attention.loading import gguf_weights
from headscape.attention.samples import samples_of
from headscape.pruning import llamacpp
from headscape.pruning.compensation import Fitted, fit_compensation, moments_on, without_heads
from headscape.pruning.export import export_pruned
from headscape.pruning.llamacpp import origin_of
from prunable import JUDGE, reader
from tiny import Letters
from zoo import SMALL, make

GROUPS = [(0, h) for h in (3, 4, 5)] + [(1, h) for h in range(3)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("headscape.attention.bundled.cache_folder", lambda: tmp_path / "cache")


def test_every_layer_says_its_own_heads_and_the_file_opens_again(tmp_path):
    model = model_of("llama-nine")
    report = export_pruned(model, [*GROUPS, (1, 3)], tmp_path / "small.gguf", recipe={"study": "abc"})
    said = fields_of(open_gguf(report.path))
    assert said["general.architecture"] == "deci"
    assert said["deci.attention.head_count"] == [6, 6] and said["deci.attention.head_count_kv"] == [2, 2]
    assert report.zeroed == (hs.HeadId("decoder", 1, 3),)  # its group keeps two others and must stay even
    assert report.kv_bytes.change == pytest.approx(-1 / 3) and report.bytes.after < report.bytes.before
    assert origin_of(report.path)["study"] == "abc" and origin_of(report.path)["kind"] == "gguf"
    opened = hs.load_model(report.path, device="cpu")
    assert [site.n_heads for site in opened.sites] == [6, 6]  # as many in both layers, so a plain Llama
    opened.tokenizer = model.tokenizer
    ids = torch.arange(10, 30)[None]
    with torch.no_grad(), hs.ablate(model, [*GROUPS, (1, 3)]):
        assert relative(opened.module(ids).logits, model.module(ids).logits) < 2e-3
    before = report.path.read_bytes()
    export_pruned(model, [*GROUPS, (1, 3)], report.path, recipe={"study": "abc"})  # accepted, left alone
    with pytest.raises(hs.InputError, match="exists and is a file with other content"):
        export_pruned(model, GROUPS, report.path)
    assert report.path.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["cache", "small.gguf"]


def test_a_file_is_read_one_tensor_at_a_time(tmp_path):
    """By numpy's own count: weights of many tensors, and never more than a few of them in memory."""
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "vocab_size": 64,
        "num_hidden_layers": 8,
    }
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=True))
    export_pruned(hs.wrap_module(network, tokenizer=Letters()), [], tmp_path / "deci.gguf")
    plain = gguf.GGUFWriter(tmp_path / "llama.gguf", "llama")
    for tensor in open_gguf(tmp_path / "deci.gguf").tensors:
        plain.add_tensor(tensor.name, np.asarray(tensor.data), raw_dtype=tensor.tensor_type)
    plain.write_header_to_file()
    plain.write_kv_data_to_file()
    plain.write_tensors_to_file()
    plain.close()
    readers = {
        "deci": lambda file: read_deci(file, open_gguf(file)),
        "llama": lambda file: {name for name, _ in gguf_weights(open_gguf(file), network)},
    }
    for name, read in readers.items():
        read(tmp_path / f"{name}.gguf")  # what is imported and compiled once is not counted
        tracemalloc.start()
        found = read(tmp_path / f"{name}.gguf")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.5 * sum(p.nbytes for p in network.parameters()), name
    assert found == {name for name, _ in network.named_parameters()}


@pytest.mark.parametrize(("numbers", "close"), [("q8_0", 0.05), ("q4_1", 0.6)])
def test_fewer_bits_are_smaller_and_near(tmp_path, numbers, close):
    model = model_of("llama")  # rows of 32
    heads = [(0, 0), (0, 1)]
    sizes = [export_pruned(model, heads, tmp_path / f"{n}.gguf", numbers=n).bytes.after for n in ("f16", numbers)]
    assert sizes[1] < sizes[0]
    opened = hs.load_model(tmp_path / f"{numbers}.gguf", device="cpu")
    ids = torch.arange(10, 50)[None]
    with torch.no_grad(), hs.ablate(model, heads):
        assert 0 < relative(opened.module(ids).logits, model.module(ids).logits) < close


@pytest.mark.parametrize("numbers", ["f16", "q8_0", "q4_1"])
def test_a_wrong_tensor_is_caught_whatever_its_rounding(tmp_path, monkeypatch, numbers):
    """The difference that rounding explains is none: the file is compared with weights rounded alike."""
    model, heads = model_of("llama"), [(0, 0), (0, 1)]
    right = llamacpp._tensors

    def wrong(*arguments):
        for name, array in right(*arguments):
            yield name, 1.1 * array if name == "blk.1.ffn_up.weight" else array

    monkeypatch.setattr(llamacpp, "_tensors", wrong)
    with pytest.raises(hs.HeadscapeError, match=f"away from the ablated .* beyond the rounding to {numbers}; nothing"):
        export_pruned(model, heads, tmp_path / "wrong.gguf", numbers=numbers)
    monkeypatch.setattr(llamacpp, "_tensors", right)
    export_pruned(model, heads, tmp_path / "right.gguf", numbers=numbers)
    monkeypatch.setattr(Fitted, "weight", lambda self, weight: 1.01 * weight)  # folds into W_O what was not ablated
    with pytest.raises(hs.HeadscapeError, match="away from the ablated model's"):
        export_pruned(model, heads, tmp_path / "wrong.gguf", numbers=numbers)
    assert [path.name for path in tmp_path.glob("*.gguf")] == ["right.gguf"]


def test_compensation_and_tokenizer_are_kept(tmp_path):
    model = reader(tmp_path / "model")
    samples = [torch.tensor([model.tokenizer.encode(JUDGE[0])])]
    fitted = fit_compensation(
        model, {model.sites[0].name: [0, 1]}, moments_on(model, samples_of(model, JUDGE, 12)[0]), "linear"
    )
    export_pruned(model, [(0, 0), (0, 1)], tmp_path / "small.gguf", fitted=fitted)
    opened = hs.load_model(tmp_path / "small.gguf", device="cpu")
    with torch.no_grad():
        with without_heads(model, fitted):
            expected = model.module(samples[0]).logits
        assert relative(opened.module(samples[0]).logits, expected) < 2e-3
        with hs.ablate(model, [(0, 0), (0, 1)]):
            assert relative(model.module(samples[0]).logits, expected) > 1e-2  # the compensation matters


def test_a_model_of_a_file_keeps_the_tokenizer_of_that_file(tmp_path):
    """Words, numbers, truths and lists alike: every field that llama.cpp reads the tokenizer from."""
    source = gguf.GGUFWriter(tmp_path / "source.gguf", "llama")
    source.add_tokenizer_model("gpt2")
    source.add_token_list([f"w{i}" for i in range(100)])
    source.add_token_types([1] * 99 + [3])
    source.add_bos_token_id(99)
    source.add_add_bos_token(True)
    source.write_header_to_file()
    source.write_kv_data_to_file()
    source.close()
    model = hs.wrap_module(make("llama"), tokenizer=Letters(), name=str(tmp_path / "source.gguf"))
    export_pruned(model, [(0, 0)], tmp_path / "small.gguf")
    before, after = (
        {name: (field.types, field.contents()) for name, field in open_gguf(tmp_path / file).fields.items()}
        for file in ("source.gguf", "small.gguf")
    )
    kept = {name for name in before if name.startswith("tokenizer.")}
    assert len(kept) == 5 and all(after[name] == before[name] for name in kept)


def test_an_intact_model_and_what_is_refused(tmp_path):
    model = model_of("llama-nine")
    report = export_pruned(model, [], tmp_path / "whole.gguf")
    assert report.parameters.change == 0 and report.kv_bytes.change == 0 and "small share" not in str(report)
    for name in ("gpt2", "gemma3", "bert"):
        with pytest.raises(hs.InputError, match="GGUF files are written for Llama-type models"):
            export_pruned(model_of(name), [(0, 0)], tmp_path / "other.gguf")
    biased = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, attention_bias=True))
    with pytest.raises(hs.InputError, match="has a bias in its queries.*write a folder"):
        export_pruned(hs.wrap_module(biased, tokenizer=Letters()), [(0, 0)], tmp_path / "other.gguf")
    assert not (tmp_path / "other.gguf").exists()


@pytest.mark.parametrize(("numbers", "close"), [("f16", 0.02), ("q8_0", 0.2), ("q4_1", 0.3)])
def test_llama_cpp_computes_what_the_opened_file_does(tmp_path, numbers, close):
    """It rounds what enters a matrix too, to eight bits; intact heads would be much further away."""
    model = speller()
    report = export_pruned(model, [(0, 0), (0, 1)], tmp_path / "small.gguf", numbers=numbers)
    ids = list(range(10, 40))
    steps = generated(report.path, ids, 8)
    opened = hs.load_model(report.path, device="cpu")
    told = [row["id"] for row in steps]
    with torch.no_grad():
        ours, intact = (
            one.module(torch.tensor([ids + told])).logits[0, len(ids) - 1 : -1].log_softmax(-1)
            for one in (opened, model)
        )
    theirs = [probabilities(row) for row in steps]
    assert len(told) == 8 and all(len(row) == 20 for row in theirs)
    assert furthest(theirs, ours) < close and furthest(theirs, intact) > 5 * close
    best = ours.max(-1).values
    assert all(best[i] - ours[i, token] < close for i, token in enumerate(told))  # greedy, but for ties


@pytest.mark.models
def test_smollm2_without_a_fifth_of_its_groups_generates_in_llama_cpp(load, tmp_path, capfd):
    model = load("smollm2-135m")
    heads = [(layer, 3 * (layer % 3) + h) for layer in range(5, 23) for h in range(3)]  # 18 of 90 groups
    means = hs.mean_outputs(model, [hs.sample_text("rank")], tokens=128, batches=4)
    report = export_pruned(model, heads, tmp_path / "small.gguf", means=means)
    assert report.kv_bytes.change == pytest.approx(-0.2)
    ids = model.tokenizer.encode("The capital of France is Paris. The capital of Germany is")
    capfd.readouterr()
    steps = generated(report.path, ids, 8)
    assert not capfd.readouterr().err  # as the tutorial has it, so that warnings of others stand out
    with torch.no_grad(), hs.ablate(model, heads, "mean", means=means):
        ours = model.module(torch.tensor([ids])).logits[0, -1:].log_softmax(-1)
        rows = model.module.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, pad_token_id=0)
    assert furthest([probabilities(steps[0])], ours) < 0.05
    assert [row["id"] for row in steps] == rows[0, len(ids) :].tolist()


def speller():
    """A Llama of two key/value groups per layer that reads and writes ASCII: llama.cpp needs a tokenizer."""
    signs = [chr(i) for i in range(33, 127)] + ["Ġ", "Ċ", "ab"]
    described = Tokenizer(models.BPE(vocab={sign: i for i, sign in enumerate(signs)}, merges=[("a", "b")]))
    described.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": len(signs)}
    ends = {"bos_token_id": 95, "eos_token_id": 95, "pad_token_id": 95}
    shape = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    torch.manual_seed(0)
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **ends, **shape))
    return hs.wrap_module(network, tokenizer=transformers.PreTrainedTokenizerFast(tokenizer_object=described))


def generated(file, ids, n):
    """Greedy tokens of llama.cpp after `ids`, each with the log probabilities of the likeliest twenty."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="the wheel xllamacpp (llama.cpp) is not installed")
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(file), 256, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = params.verbosity = 1  # errors alone
    request = {"prompt": ids, "n_predict": n, "temperature": 0.0, "n_probs": 20, "ignore_eos": True}
    answer = xllamacpp.Server(params).handle_completions(request | {"post_sampling_probs": False})
    answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
    choice = answer["choices"][0] if "choices" in answer else answer
    return choice.get("logprobs", choice).get("content") or choice["completion_probabilities"]


def probabilities(row):
    """Log probabilities of the likeliest tokens by their number."""
    return {one["id"]: one["logprob"] for one in row["top_logprobs"]}


def furthest(theirs, ours):
    """Largest difference of log probabilities, over positions and likeliest tokens."""
    return max(abs(p - ours[i, token].item()) for i, row in enumerate(theirs) for token, p in row.items())
