"""The matrices of a network, by name."""

import numpy as np
import torch
import transformers as T

import headscape as hs
from headscape.attention.weights import parts_of, read
from zoo import SMALL


def test_a_fused_gate_is_cut_where_the_network_cuts_it():
    """Phi-3 keeps gate and up in one map: its feed-forward part, computed from the parts, is its own."""
    torch.manual_seed(0)
    network = T.Phi3ForCausalLM(T.Phi3Config(**SMALL, num_key_value_heads=2)).eval()
    model = hs.wrap_module(network)
    found = {(part.kind, part.layer): read(model, part) for part in parts_of(model)[0]}
    gate, up, down = (torch.from_numpy(found[kind, 1]) for kind in ("gate", "up", "down"))
    assert gate.shape == up.shape == (64, 32) and down.shape == (32, 64)
    x = torch.randn(5, 32)
    with torch.no_grad():
        own = network.model.layers[1].mlp(x)
    np.testing.assert_allclose((torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T, own, atol=1e-6)
