"""Capture against the model's own eager attention, for every architecture of the zoo.

Also tests captures, attention.capture_tap, attention.intercept, attention.multihead, attention.parity,
attention.sites, attention.tapping, attention.taps.
"""

import json
import os
import signal
import time

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention import taps
from headscape.attention.capture import check_parity
from headscape.attention.sites import example_input
from headscape.locks import locked
from killing import FORKS, LIMIT, captures
from tiny import Letters, arguments_of, captured
from zoo import OWN_ATTENTION, ZOO, eager_reference, make


@pytest.mark.parametrize("name", ZOO)
def test_capture_equals_the_models_own_eager_attention(name):
    model, cap = captured(name)
    own, _ = eager_reference(model.module, arguments_of(model, cap))
    for block in cap.blocks:
        X = cap.tensor(0, block)
        maps = torch.cat(own.get(block) or own[""], dim=1)[0].permute(1, 2, 0).numpy()
        assert X.values.shape == maps.shape
        np.testing.assert_allclose(X.values, maps, atol=1e-6)
        np.testing.assert_allclose(X.values.sum(axis=1), 1.0, atol=1e-5 if name != "gpt-oss" else 1.0)
        if X.mask == "causal":
            assert not X.values[~X.present].any()
    assert len(cap.blocks) == (3 if model.task == "seq2seq-lm" else 1)


def test_a_sink_takes_part_of_every_row():
    _, cap = captured("gpt-oss")
    rows = cap.tensor(0).values.sum(axis=1)
    assert (rows < 1).all() and (rows > 0).all()


@pytest.mark.parametrize("name", ZOO)
def test_parity_and_restoration(name):
    network = make(name)
    model = hs.wrap_module(network)
    batch = example_input(model)
    before = network(**batch)[0].detach()
    implementation = network.config._attn_implementation
    parity = check_parity(model)
    assert parity.ok and parity.max_difference <= 1e-6 * max(1, parity.scale)
    assert network.config._attn_implementation == implementation
    assert torch.equal(network(**batch)[0], before)
    assert not taps_left_behind()


def taps_left_behind():
    from headscape.attention import tapping

    return tapping._stacks or tapping._owner


@pytest.mark.parametrize("name", ["falcon", "bloom", "llama", "gpt2"])
def test_decoders_are_causal_under_the_default_implementation(name):
    network = make(name)
    _, cap = captured(name, network)
    X = cap.tensor(0)
    assert X.mask == "causal"
    assert not X.values[~X.present].any()
    assert (X.values[X.present] > 0).any()


@pytest.mark.parametrize("name", ["llama", "t5", "gemma2", "vit", "mistral"])
def test_blocks_of_rows_give_the_same_maps(name, monkeypatch):
    network = make(name)
    keep = ("probs", "scores", "head_outputs")
    _, whole = captured(name, network, keep)
    monkeypatch.setattr(taps, "BLOCK_BYTES", 4 * 4 * 12 * 5)  # five rows at a time: 12 is no multiple
    _, blocks = captured(name, network, keep)
    for block in whole.blocks:
        for kind in ("probs", "scores"):
            np.testing.assert_allclose(
                blocks.tensor(0, block, kind).values, whole.tensor(0, block, kind).values, atol=2e-6, rtol=1e-4
            )
        np.testing.assert_allclose(blocks.head_outputs(0, block), whole.head_outputs(0, block), atol=1e-4)


@pytest.mark.parametrize("name", [n for n in ZOO if n != "gpt-oss"])
def test_scores_are_what_softmax_sees(name):
    _, cap = captured(name, keep=("probs", "scores"))
    for block in cap.blocks:
        P, S = cap.tensor(0, block), cap.tensor(0, block, "scores")
        present = np.broadcast_to((P.values > 0).any(axis=2)[:, :, None], P.values.shape)
        logits = np.where(present, S.values.astype(float), -np.inf)
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
        np.testing.assert_allclose(shifted / shifted.sum(axis=1, keepdims=True), P.values, atol=2e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "qwen3", "falcon", "bloom", "mpt", "mpnet"])
def test_outputs_are_probabilities_times_values(name):
    _, cap = captured(name, keep=("probs", "queries", "keys", "values", "head_outputs"))
    P = cap.tensor(0).values
    V, O = cap.values(0), cap.head_outputs(0)
    n_layer, n_head = O.shape[:2]
    assert cap.queries(0).shape[:3] == (n_layer, n_head, 12)
    assert cap.keys(0).shape[:2] == V.shape[:2]
    per_layer = P.reshape(12, 12, n_layer, n_head)
    expected = np.einsum("qklh,lhkd->lhqd", per_layer, np.repeat(V, n_head // V.shape[1], axis=1))
    np.testing.assert_allclose(O, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "bert", "vit", "t5"])
def test_hidden_states_are_the_models_own(name):
    model, cap = captured(name, keep=("probs", "hidden"))
    with torch.no_grad():
        own = model.module(**arguments_of(model, cap), output_hidden_states=True)
    states = own.encoder_hidden_states if model.task == "seq2seq-lm" else own.hidden_states
    block = "encoder" if model.task == "seq2seq-lm" else cap.blocks[0]
    np.testing.assert_allclose(cap.hidden(0, block), torch.cat(states).numpy(), atol=1e-5, rtol=1e-4)


def test_layers_and_heads_can_be_chosen():
    network = make("llama")
    _, whole = captured("llama", network)
    _, one_layer = captured("llama", network, layers=[1])
    _, some = captured("llama", network, heads=["decoder.0.3", (1, 0)])
    assert {h.layer for h in one_layer.tensor(0).heads} == {1}
    np.testing.assert_array_equal(one_layer.tensor(0).values, whole.tensor(0).values[:, :, 4:])
    assert some.tensor(0).heads == [hs.HeadId("decoder", 0, 3), hs.HeadId("decoder", 1, 0)]
    np.testing.assert_array_equal(some.tensor(0).values, whole.tensor(0).values[:, :, [3, 4]])
    with pytest.raises(hs.InputError, match="no head decoder.7.0"):
        captured("llama", network, heads=[(7, 0)])
    with pytest.raises(hs.InputError, match="no layer 9"):
        captured("llama", network, layers=[9])


def test_multihead_attention_of_plain_torch():
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    network = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(1, 7, 16)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(7)
    with torch.no_grad():
        before = network(x, mask=mask)
    cap = hs.capture(network, [{"src": x, "mask": mask}], dtype="float32", keep=("probs", "queries", "head_outputs"))
    X = cap.tensor(0)
    with torch.no_grad():
        first = network.layers[0]
        _, own = first.self_attn(x, x, x, attn_mask=mask, need_weights=True, average_attn_weights=False)
        assert torch.equal(network(x, mask=mask), before)
    assert X.mask == "causal" and X.shape == (7, 7, 8)
    np.testing.assert_allclose(X.values[:, :, :4], own[0].permute(1, 2, 0).numpy(), atol=1e-6)
    assert torch.backends.mha.get_fastpath_enabled()
    assert "forward" not in vars(first.self_attn)


@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention_with_padding_and_cross_keys(batch_first):
    from headscape.attention.tapping import tapped

    torch.manual_seed(2)
    attention = torch.nn.MultiheadAttention(16, 4, batch_first=batch_first, kdim=12, vdim=10).eval()
    q, k, v = torch.randn(2, 5, 16), torch.randn(2, 6, 12), torch.randn(2, 6, 10)
    if not batch_first:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with torch.no_grad():
        own, weights = attention(q, k, v, key_padding_mask=padding)
        with tapped(attention, taps.Tap()):
            ours, ours_weights = attention(q, k, v, key_padding_mask=padding)
    torch.testing.assert_close(ours, own, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours_weights, weights, atol=1e-6, rtol=0)


def test_transformer_xl_with_memory_by_naming_its_attention():
    from transformer_xl import TransformerXL

    torch.manual_seed(3)
    network = TransformerXL(n_layer=2).eval()
    ids = torch.randint(0, 256, (1, 30))
    with torch.no_grad():
        _, memory = network(ids[:, :20])
    model = hs.wrap_module(network, ["attention.0", "attention.1"])
    cap = hs.capture(model, [(ids[:, 20:], memory)], dtype="float32", keep=("probs", "head_outputs"))
    X = cap.tensor(0)
    assert X.shape == (10, 30, 8) and X.mask == "causal"
    np.testing.assert_allclose(X.values.sum(axis=1), 1, atol=1e-5)
    assert not X.values[~X.present].any() and X.values[0, 20].all() and not X.values[0, 21].any()
    kept = {}

    def keep_projected(module, args):
        kept.setdefault("in", args[0])

    handle = network.attention[0].out.register_forward_pre_hook(keep_projected)
    with torch.no_grad():
        network(ids[:, 20:], memory)
    handle.remove()
    merged = cap.head_outputs(0)[0].transpose(1, 0, 2).reshape(10, -1)
    np.testing.assert_allclose(merged, kept["in"][0].numpy(), atol=1e-6)
    with pytest.raises(hs.InputError, match="does not show its queries"):
        hs.capture(model, [(ids[:, 20:], memory)], keep=("queries",))
    with pytest.raises(hs.InputError, match="no submodule 'nope'"):
        hs.capture(hs.wrap_module(network, ["nope"]), [(ids,)])


def test_a_network_without_attention_is_refused():
    with pytest.raises(hs.HeadscapeError, match="no attention was seen"):
        hs.capture(torch.nn.Linear(3, 3), [torch.randn(1, 3)])


def test_parity_failure_is_refused(monkeypatch):
    network = make("llama")
    own = taps._softmax
    monkeypatch.setattr(taps, "_softmax", lambda s, *rest: own(s * 1.01, *rest))
    with pytest.raises(hs.HeadscapeError, match="differ from its own"):
        captured("llama", network)


def test_storage_is_half_precision_and_comes_back_single(tmp_path):
    network = make("llama")
    _, exact = captured("llama", network)
    _, half = captured("llama", network, dtype="float16", out=tmp_path / "run")
    assert half.tensor(0).values.dtype == np.float32
    np.testing.assert_allclose(half.tensor(0).values, exact.tensor(0).values, atol=1e-3)
    assert not np.array_equal(half.tensor(0).values, exact.tensor(0).values)


def test_overflow_of_half_precision_is_said():
    network = make("gpt2")
    with torch.no_grad():
        network.transformer.h[0].attn.c_attn.weight.mul_(3000)
    with pytest.raises(hs.InputError, match=r"scores/decoder\.0 overflows float16"):
        captured("gpt2", network, keep=("scores",), dtype="float16")


def test_a_run_resumes_only_with_the_same_settings(tmp_path):
    network = make("llama")
    captured("llama", network, out=tmp_path / "run")
    meta = json.loads((tmp_path / "run" / "run.json").read_text())
    assert meta["parity"]["max_difference"] == 0 and meta["parity"]["layers"] == 2
    assert meta["model"]["fingerprint"] and meta["inputs"]["sha256"] and meta["versions"]["torch"]
    with pytest.raises(hs.InputError, match="was made with config tokens = 12, not 10"):
        captured("llama", network, tokens=10, out=tmp_path / "run")
    with pytest.raises(hs.InputError, match="model fingerprint"):
        captured("llama", make("llama", seed=5), out=tmp_path / "run")


def test_more_batches_extend_a_run_to_the_bytes_of_a_run_made_at_once(tmp_path):
    network = make("llama")
    captured("llama", network, batches=1, tokens=8, out=tmp_path / "grown")
    first = (tmp_path / "grown" / "attention" / "batch-0000.safetensors").stat().st_mtime_ns
    captured("llama", network, batches=3, tokens=8, out=tmp_path / "grown")
    captured("llama", network, batches=3, tokens=8, out=tmp_path / "whole")
    assert (tmp_path / "grown" / "attention" / "batch-0000.safetensors").stat().st_mtime_ns == first
    for i in range(3):
        grown, whole = (tmp_path / run / "attention" / f"batch-{i:04d}.safetensors" for run in ("grown", "whole"))
        assert grown.read_bytes() == whole.read_bytes()
    with pytest.raises(hs.InputError, match="has 3 batches, 2 were requested; a run can grow but not shrink"):
        captured("llama", network, batches=2, tokens=8, out=tmp_path / "grown")


def test_a_capture_that_fails_leaves_no_lone_run(tmp_path):
    network = make("llama")
    with torch.no_grad():
        network.model.layers[1].self_attn.q_proj.weight.mul_(1e6)  # scores overflow float16
    with pytest.raises(hs.InputError, match="overflows float16"):
        captured("llama", network, keep=("scores",), dtype="float16", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_second_writer_is_sent_away_by_name(tmp_path):
    with (
        locked(tmp_path / "run" / "capture.lock", "the capture", print),
        pytest.raises(hs.InputError, match=rf"is being written by process {os.getpid()} on "),
    ):
        captured("llama", out=tmp_path / "run")
    captured("llama", out=tmp_path / "run")


def test_a_lost_batch_leaves_a_gap_and_is_captured_again(tmp_path):
    network = make("llama")
    captured("llama", network, batches=3, tokens=8, out=tmp_path / "run")
    lost = tmp_path / "run" / "attention" / "batch-0001.safetensors"
    content = lost.read_bytes()
    lost.unlink()
    cap = hs.open_capture(tmp_path / "run")
    assert cap.numbers == [0, 2] and cap.run.missing_batches == [1]
    assert set(cap.content()) == {"batch 0", "batch 2"}
    captured("llama", network, batches=3, tokens=8, out=tmp_path / "run")
    assert lost.read_bytes() == content


def test_a_killed_capture_resumes_and_gives_the_same_bytes(tmp_path):
    def child(out):
        process = FORKS.Process(target=captures, args=(out,))
        process.start()
        return process

    def finishes(out):
        process = child(out)
        process.join(LIMIT)
        return process.exitcode == 0

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert finishes(whole)
    interrupted = 0
    for wanted in range(3):
        process = child(broken)
        while process.is_alive() and len(list(broken.glob("attention/batch-*.safetensors"))) <= 5 * wanted:
            time.sleep(0.002)
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            interrupted += 1
        process.join()
    assert interrupted  # else the kill came too late to test anything
    assert len(list(broken.glob("attention/*.safetensors"))) < 40
    assert finishes(broken)
    names = sorted(p.name for p in (whole / "attention").iterdir())
    assert names == sorted(p.name for p in (broken / "attention").iterdir()) and len(names) == 40
    for name in names:
        assert (whole / "attention" / name).read_bytes() == (broken / "attention" / name).read_bytes()


def test_options_that_make_no_sense(tmp_path):
    network = make("gpt2")
    (tmp_path / "book.txt").write_text("the quick brown fox jumps over the lazy dog")
    model = hs.wrap_module(network, tokenizer=Letters())
    for tokens, message in ((65, "takes at most 64"), (60, "longest text has 43 tokens, a window needs 60")):
        with pytest.raises(hs.InputError, match=message):
            hs.capture(model, tmp_path / "book.txt", tokens=tokens)
    for options, message in [
        ({"batches": 99}, "gives 3 windows of 12 tokens, 99 batches"),
        ({"keep": ("maps",)}, "keep is a selection of"),
        ({"dtype": "int8"}, "storage dtype"),
        ({"batches": 0}, "at least 1"),
        ({"chat": True}, "no chat template"),
    ]:
        with pytest.raises(hs.InputError, match=message):
            captured("gpt2", network, **options)


def test_short_texts_are_kept_only_when_asked():
    network = make("gpt2")
    model = hs.wrap_module(network, tokenizer=Letters())
    cap = hs.capture(model, ["abc", "abcdefgh"], tokens=6, batches=None, keep_short=True)
    assert [len(X.query_tokens) for X in cap] == [3, 6]
    cap = hs.capture(model, ["abc", "abcdefgh"], tokens=6, batches=None)
    assert len(cap) == 1


def test_own_attention_families_are_intercepted():
    from headscape.attention.tapping import way_of

    for name in ZOO:
        assert way_of(make(name)) == ("softmax" if name in OWN_ATTENTION else "interface")


def test_layers_with_different_numbers_of_heads_are_read_one_by_one():
    _, cap = captured("llama", keep=("probs", "head_outputs"), heads=[(0, 0), (1, 1), (1, 2)])
    assert cap.tensor(0).shape == (12, 12, 3)
    with pytest.raises(hs.InputError, match="different numbers of heads; read them one by one"):
        cap.head_outputs(0)
    assert cap.batch(0).read("head_outputs/decoder.1").shape == (2, 12, 8)
