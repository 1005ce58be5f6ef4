"""The copying score, from the weights alone."""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.circuits import copying_scores
from zoo import make


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom"])
def test_the_score_is_that_of_the_full_circuit(name):
    model = hs.wrap_module(make(name))
    scores = copying_scores(model)
    embedding = model.module.get_input_embeddings().weight.detach().double().numpy()
    head = model.module.get_output_embeddings().weight.detach().double().numpy()
    from headscape.attention.weights import parts_of, read

    parts = {(p.kind, p.layer): p for p in parts_of(model)[0]}
    for site in model.sites:
        v, o = (parts[kind, site.layer] for kind in "vo")
        W_v, W_o = v.by_head(read(model, v)), o.by_head(read(model, o))
        for h in site.heads:
            full = head @ W_o[h.head] @ W_v[h.head // (site.n_heads // len(W_v))] @ embedding.T
            eigenvalues = np.linalg.eigvals(full)
            assert scores[h] == pytest.approx(eigenvalues.real.sum() / np.abs(eigenvalues).sum(), abs=1e-5)


def test_a_head_made_to_copy_scores_one_and_its_opposite_minus_one():
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
    scores = copying_scores(hs.wrap_module(network))
    assert scores[hs.HeadId("decoder", 0, 0)] == pytest.approx(1)
    assert scores[hs.HeadId("decoder", 0, 1)] == pytest.approx(-1)


def test_an_encoder_without_an_output_head_has_none():
    with pytest.raises(hs.InputError, match="no token embeddings and output head"):
        copying_scores(hs.wrap_module(make("deberta")))
