"""The copying score, from the weights alone.

Also tests attention.norm_gains.
"""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.circuits import copying_scores
from headscape.attention.weights import parts_of, read
from zoo import make

NORMS = {
    "gpt2": ("transformer.h.{}.ln_1", None, "transformer.ln_f"),
    "llama": ("model.layers.{}.input_layernorm", None, "model.norm"),
    "bloom": ("transformer.h.{}.input_layernorm", None, "transformer.ln_f"),
    "gemma3": ("model.layers.{}.input_layernorm", "model.layers.{}.post_attention_layernorm", "model.norm"),
}
"""The norm before the values, after the output and before the output head."""


def made(name):
    """A network whose norms have gains of all sizes and signs, some of them with biases, which are no part of a circuit."""
    network = make(name)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in (p for m in network.modules() if "Norm" in type(m).__name__ for p in m.parameters()):
            parameter.copy_(torch.randn(parameter.shape))
    return network


def as_matrix(name, network, path):
    """A norm without its division, written out."""
    if path is None:
        return np.eye(network.config.hidden_size)
    gains = network.get_submodule(path).weight.detach().double().numpy() + (name == "gemma3")
    n = len(gains)
    centred = np.eye(n) - 1 / n if name in ("gpt2", "bloom") else np.eye(n)
    return np.diag(gains) @ centred


@pytest.mark.parametrize("name", NORMS)
def test_the_score_is_that_of_the_full_circuit(name):
    network = made(name)
    model = hs.wrap_module(network)
    scores = copying_scores(model)
    embedding = network.get_input_embeddings().weight.detach().double().numpy()
    head = network.get_output_embeddings().weight.detach().double().numpy()
    parts = {(p.kind, p.layer): p for p in parts_of(model)[0]}
    for site in model.sites:
        before, after, last = (path and as_matrix(name, network, path.format(site.layer)) for path in NORMS[name])
        after = np.eye(len(before)) if after is None else after
        v, o = (parts[kind, site.layer] for kind in "vo")
        W_v, W_o = v.by_head(read(model, v)), o.by_head(read(model, o))
        for h in site.heads:
            value = W_v[h.head // (site.n_heads // len(W_v))] @ before @ embedding.T
            eigenvalues = np.linalg.eigvals(head @ last @ after @ W_o[h.head] @ value)
            assert scores[h] == pytest.approx(eigenvalues.real.sum() / np.abs(eigenvalues).sum(), abs=1e-4)


def test_a_gain_that_turns_a_direction_round_turns_copying_round():
    """A head that copies by its weights alone writes the opposite, if the norm before its values says so."""
    network = copying_llama()
    with torch.no_grad():
        network.model.layers[0].input_layernorm.weight.fill_(-1)
    scores = copying_scores(hs.wrap_module(network))
    assert scores[hs.HeadId("decoder", 0, 0)] == pytest.approx(-1)
    assert scores[hs.HeadId("decoder", 0, 1)] == pytest.approx(1)


def copying_llama():
    """Its first head copies and its second writes the opposite."""
    network = make("llama")
    dim = network.config.hidden_size
    attention = network.model.layers[0].self_attn
    d = attention.head_dim
    with torch.no_grad():
        network.lm_head.weight.copy_(network.model.embed_tokens.weight)
        attention.v_proj.weight.zero_()[:d, :d] = torch.eye(d)
        attention.o_proj.weight.zero_()[:d, :d] = torch.eye(d)
        attention.o_proj.weight[:d, d : 2 * d] = -torch.eye(d)
    assert dim >= 2 * d
    return network


def test_a_head_made_to_copy_scores_one_and_its_opposite_minus_one():
    scores = copying_scores(hs.wrap_module(copying_llama()))
    assert scores[hs.HeadId("decoder", 0, 0)] == pytest.approx(1)
    assert scores[hs.HeadId("decoder", 0, 1)] == pytest.approx(-1)


def test_an_encoder_without_an_output_head_has_none():
    with pytest.raises(hs.InputError, match="no token embeddings and output head"):
        copying_scores(hs.wrap_module(make("deberta")))


def test_an_encoder_decoder_has_none():
    with pytest.raises(hs.InputError, match="an encoder-decoder"):
        copying_scores(hs.wrap_module(make("t5")))
