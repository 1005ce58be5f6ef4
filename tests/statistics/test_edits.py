"""Spectrum edits, of matrices and as interventions; and the weights they are made on, family by family."""

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp, ortho_group

import headscape as hs
from headscape.attention.sites import example_input, run
from headscape.attention.tapping import tapped
from headscape.attention.taps import Tap
from headscape.attention.weights import KINDS, parts_of, put, read, read_bias, select_parts
from headscape.statistics.edits import (
    edited,
    flatten,
    random_basis,
    randomise,
    scale,
    scale_spectra,
    scaling_law,
    truncate,
)
from tiny import Letters
from zoo import ZOO, make

TEXT = ["the quick brown fox jumps over the lazy dog and hides behind the old stone wall"]
QK_NORM = ("qwen3", "gemma3")
ADDED = ("t5", "gemma2", "falcon-alibi", "bloom", "mpt", "mpnet", "deberta")
"""Families that cap their scores or add a position bias to them."""


def noise(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def values(W):
    return np.linalg.svd(W, compute_uv=False)


# --- matrices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
def test_edits_do_to_the_spectrum_what_they_say(shape):
    W = noise(shape)
    s = values(W)
    np.testing.assert_allclose(values(scale(W, 2.5)), 2.5 * s)
    cut = truncate(W, rank=3)
    np.testing.assert_allclose(values(cut), np.where(np.arange(len(s)) < 3, s, 0), atol=1e-12)
    assert np.linalg.norm(W - cut) == pytest.approx(np.sqrt((s[3:] ** 2).sum()))  # no other of rank 3 is closer
    np.testing.assert_allclose(truncate(W, rank=99), W, atol=1e-12)
    held = (values(truncate(W, energy=0.8)) ** 2).sum() / (s**2).sum()
    assert held >= 0.8 and (values(truncate(W, energy=0.8)) > 1e-9).sum() < len(s)
    flat = values(flatten(W))
    np.testing.assert_allclose(flat, np.sqrt((s**2).mean()))
    np.testing.assert_allclose(flatten(W, 0), W, atol=1e-12)
    half = values(flatten(W, 0.5))
    np.testing.assert_allclose(half / half[0], np.sqrt(s / s[0]))
    assert np.linalg.norm(half) == pytest.approx(np.linalg.norm(s))


def test_random_bases_keep_the_values_and_the_side_that_stays():
    W = noise((5, 9))
    for side in ("both", "out", "in"):
        new = randomise(W, 3, side)
        np.testing.assert_allclose(values(new), values(W))
        assert np.abs(new - W).max() > 0.1
        np.testing.assert_array_equal(new, randomise(W, 3, side))
    same_inputs, same_outputs = randomise(W, 3, "out"), randomise(W, 3, "in")
    np.testing.assert_allclose(same_inputs.T @ same_inputs, W.T @ W, atol=1e-12)  # rows turned: W^T W stays
    np.testing.assert_allclose(same_outputs @ same_outputs.T, W @ W.T, atol=1e-12)


def test_random_bases_are_uniform():
    rng = np.random.default_rng(0)
    ours = np.stack([random_basis(5, 2, rng) for _ in range(1000)])
    whole = ortho_group.rvs(5, 1000, random_state=np.random.default_rng(1))[:, :, :2]
    for i, j in ((0, 0), (4, 1)):
        assert ks_2samp(ours[:, i, j], whole[:, i, j]).pvalue > 1e-3


def test_edits_that_make_no_sense():
    W = noise((3, 3))
    for call, message in (
        (lambda: scale(W, 0), "above 0, not by 0"),
        (lambda: scale(W, float("inf")), "above 0"),
        (lambda: truncate(W), "by rank or by energy"),
        (lambda: truncate(W, 1, 0.5), "by rank or by energy"),
        (lambda: truncate(W, rank=-1), "at least 0"),
        (lambda: flatten(W, 2), "between 0 and 1"),
        (lambda: randomise(W, side="up"), "both, out or in"),
        (lambda: truncate(W[0], rank=1), r"shape \(3,\)"),
    ):
        with pytest.raises(hs.InputError, match=message):
            call()
    assert (flatten(np.zeros((2, 3))) == 0).all()


# --- weights ---------------------------------------------------------------------------------------------------------


def logits(model):
    with torch.no_grad():
        result = run(model, example_input(model))
    return result.logits if hasattr(result, "logits") else result[0]


def scores(model, layer, block=None, keep="scores"):
    """What softmax sees in a layer on the text: (n_head, n_query, n_key)."""
    inputs = TEXT
    if model.images is not None:
        inputs = example_input(model)["pixel_values"].permute(0, 2, 3, 1).numpy() * 0.5 + 0.5
    cap = hs.capture(model, inputs, tokens=12, batches=1, keep=(keep,), dtype="float32")
    return cap.batch(0).read(f"{keep}/{block or cap.blocks[0]}.{layer}").astype(np.float64)


@pytest.mark.parametrize("name", ZOO)
def test_every_family_gives_its_matrices(name):
    model = hs.wrap_module(make(name), tokenizer=Letters())
    parts, skipped = parts_of(model)
    for site in model.sites:
        own = {p.kind: p for p in parts if (p.block, p.layer) == (site.block, site.layer)}
        assert list(own)[:4] == ["q", "k", "v", "o"]
        assert own["q"].n_heads == own["o"].n_heads == site.n_heads
        assert own["k"].n_heads == own["v"].n_heads == (model.n_kv_heads or site.n_heads)
        W = {kind: read(model, part) for kind, part in own.items()}
        assert W["q"].shape[0] == W["o"].shape[1] and W["k"].shape == W["v"].shape
        for kind in ("q", "k", "v", "o"):
            np.testing.assert_array_equal(own[kind].joined(own[kind].by_head(W[kind])), W[kind])
        if not site.block.endswith(".cross") and name != "gpt-oss":
            assert W["up"].shape == W["down"].shape[::-1] and len(W["up"]) > W["up"].shape[1]
    assert all(p.kind in KINDS for p in parts)
    assert bool(skipped) == (name == "gpt-oss")  # its experts are arrays of order 3, and the result says so


@pytest.mark.parametrize("name", [n for n in ZOO if n not in ("t5", "bart", "vit", "deberta")])
def test_rows_of_a_key_head_reach_the_heads_of_its_group_alone(name):
    """Zero one key head: just the heads h with h // group equal to it lose what depends on keys."""
    model = hs.wrap_module(make(name), tokenizer=Letters())
    key = next(p for p in parts_of(model)[0] if (p.kind, p.layer) == ("k", 0))
    before = scores(model, 0)
    heads, bias = key.by_head(read(model, key)), read_bias(model, key)
    heads[-1] = 0
    if bias is not None:
        bias.reshape(key.n_heads, -1)[-1] = 0
    with put(model, [(key, key.joined(heads), bias)]):
        after = scores(model, 0)
    changed = np.abs(after - before).max(axis=(1, 2)) > 1e-3
    group = len(before) // key.n_heads
    assert changed.tolist() == [h // group == key.n_heads - 1 for h in range(len(before))]


@pytest.mark.parametrize("name", ["gpt2", "bert", "bloom", "mpt"])
def test_queries_are_the_matrix_times_the_input(name):
    """Where nothing rotates them, queries as captured are W_q x + b, head by head."""
    model = hs.wrap_module(make(name), tokenizer=Letters())
    part = next(p for p in parts_of(model)[0] if (p.kind, p.layer) == ("q", 1))
    seen = {}
    module = model.module.get_submodule(part.module)
    handle = module.register_forward_pre_hook(lambda _, args: seen.update(x=args[0].detach()))
    queries = scores(model, 1, keep="queries")
    handle.remove()
    bias = read_bias(model, part)
    expected = seen["x"][0].numpy() @ read(model, part).T + (0 if bias is None else bias)
    expected = expected.reshape(len(expected), part.n_heads, -1).transpose(1, 0, 2)
    ratio = np.linalg.norm(queries) / np.linalg.norm(expected)  # some scale the queries, some the scores
    np.testing.assert_allclose(queries, ratio * expected, atol=1e-5 * np.abs(queries).max())


@pytest.mark.parametrize("name", [n for n in ZOO if n != "vit"])
def test_a_model_is_exactly_restored(name):
    model = hs.wrap_module(make(name), tokenizer=Letters())
    before, own = logits(model), {n: id(p) for n, p in model.module.named_parameters()}
    with edited(model, lambda W: truncate(W, rank=1), maps=("q", "k", "v", "o")):
        assert (logits(model) - before).abs().max() > 1e-4
    assert torch.equal(logits(model), before)
    with pytest.raises(RuntimeError), edited(model, lambda W: 2 * W, maps=("v",)):
        raise RuntimeError("a failing block")
    assert torch.equal(logits(model), before)
    assert {n: id(p) for n, p in model.module.named_parameters()} == own


def test_plain_multihead_attention_is_edited_too():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = hs.wrap_module(layer, example=torch.randn(1, 5, 16))
    parts, _ = parts_of(model)
    assert [p.kind for p in parts][:4] == ["q", "k", "v", "o"]
    assert scaling_law(model).exception == ""
    np.testing.assert_array_equal(read(model, parts[1]), layer.self_attn.in_proj_weight.detach()[16:32].numpy())


def test_edits_by_head_and_by_matrix():
    model = hs.wrap_module(make("llama"), tokenizer=Letters())
    q, k = (next(p for p in parts_of(model)[0] if (p.kind, p.layer) == (kind, 0)) for kind in ("q", "k"))
    with edited(model, lambda W: truncate(W, rank=1)):
        assert [np.linalg.matrix_rank(h, tol=1e-5) for h in q.by_head(read(model, q))] == [1] * 4
        assert [np.linalg.matrix_rank(h, tol=1e-5) for h in k.by_head(read(model, k))] == [1] * 2
    with edited(model, lambda W: truncate(W, rank=1), per="matrix", layers=[0]):
        assert np.linalg.matrix_rank(read(model, q), tol=1e-5) == 1
        other = next(p for p in parts_of(model)[0] if (p.kind, p.layer) == ("q", 1))
        assert np.linalg.matrix_rank(read(model, other)) == 32
    for options, message in (
        ({"maps": ("x",)}, "no matrix is called 'x'; there are q, k"),
        ({"layers": [7]}, "no layer 7"),
        ({"per": "row"}, "head or matrix"),
    ):
        with pytest.raises(hs.InputError, match=message), edited(model, scale, **options):
            pass
    shapes = r"q of decoder.0 has shape \(32, 32\), \(2, 32\) was given"
    with pytest.raises(hs.InputError, match=shapes), put(model, [(q, np.zeros((2, 32)), None)]):
        pass
    with pytest.raises(hs.InputError, match="is understood"):
        select_parts([k], ["q"])


def test_without_a_key_spectrum_there_is_nothing_to_attend_to():
    model = hs.wrap_module(make("gpt2"), tokenizer=Letters())
    with edited(model, lambda W: truncate(W, rank=0)):
        assert np.abs(scores(model, 1)).max() < 1e-6  # gpt2 starts without biases


# --- scaling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [2.0, 0.7])
@pytest.mark.parametrize("name", ["gpt2", "llama-bias", "bert", "gptj", "falcon", "gpt-oss"])
def test_scaling_both_spectra_multiplies_scores_by_the_square(name, alpha):
    network = make(name)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))  # biases matter
    model = hs.wrap_module(network, tokenizer=Letters())
    for layer in (0, 1):
        before = scores(model, layer)
        with scale_spectra(model, alpha, [layer]):  # earlier layers are untouched: the input is the same
            after = scores(model, layer)
        assert np.abs(after - alpha**2 * before).max() <= 1e-5 * alpha**2 * np.abs(before).max()


def test_weights_alone_without_biases_do_not_scale_the_scores():
    """The negative control of the test above: a query or key bias has to be scaled along."""
    network = make("llama-bias")
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model = hs.wrap_module(network, tokenizer=Letters())
    before = scores(model, 0)
    with edited(model, lambda W: scale(W, 2), layers=[0]):
        after = scores(model, 0)
    assert np.abs(after - 4 * before).max() > 1e-3 * np.abs(before).max()


class Look(Tap):
    """Keeps what softmax sees of every layer."""

    blockwise = False

    def __init__(self):
        self.seen = []

    def scores(self, call, scores):
        self.seen.append(scores[0].double().numpy())
        return scores


@pytest.mark.models
def test_scaling_on_smollm2(load):
    model = load("smollm2-135m")

    def every_layer():
        look = Look()
        with torch.no_grad(), tapped(model.module, look):
            run(model, example_input(model, 24), whole=False)
        return look.seen

    before = every_layer()
    for layer, alpha in ((0, 2.0), (14, 1.3), (29, 0.7)):  # by a power of two nothing is rounded
        with scale_spectra(model, alpha, [layer]):
            after = every_layer()
        np.testing.assert_allclose(after[layer], alpha**2 * before[layer], atol=1e-5 * np.abs(after[layer]).max())
        assert all(np.array_equal(a, b) for a, b in zip(after[:layer], before[:layer], strict=True))


def test_scaling_on_gpt2_at_its_real_size():
    """The architecture of GPT-2 small, cut to two layers and with random weights and biases."""
    import transformers

    torch.manual_seed(0)
    network = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, vocab_size=100, bos_token_id=1)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    model = hs.wrap_module(network, tokenizer=Letters())
    assert read(model, parts_of(model)[0][0]).shape == (768, 768)
    before = scores(model, 1)
    for alpha in (2.0, 1.3):
        with scale_spectra(model, alpha, [1]):
            after = scores(model, 1)
        assert np.abs(after - alpha**2 * before).max() <= 1e-5 * alpha**2 * np.abs(before).max()


@pytest.mark.parametrize("name", ZOO)
def test_exceptions_from_the_law_are_found_by_trying(name):
    model = hs.wrap_module(make(name), tokenizer=Letters())
    error, found = scaling_law(model)
    assert (error < 1e-5) == (found == "")
    if name in QK_NORM:
        assert found.startswith("QK-norm (q_norm, k_norm)")
        refused = "cannot be scaled: QK-norm .* use hs.scale_scores"
        with pytest.raises(hs.InputError, match=refused), scale_spectra(model, 2.0):
            pass
    elif name in ADDED:
        assert "position bias" in found
    else:
        assert found == ""
