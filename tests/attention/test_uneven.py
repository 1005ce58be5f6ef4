"""Key/value heads that serve unequally many queries."""

import pytest
import torch
import transformers as T
from hypothesis import given
from hypothesis import strategies as st

import headscape as hs
from exported import check, load_ragged, model_of
from headscape.attention.uneven import set_groups
from headscape.pruning.export import export_pruned
from zoo import SMALL


def test_groups_that_stay_even_need_nothing_special(tmp_path):
    model = model_of("llama-nine")
    heads = [(0, 0), (0, 4), (0, 8), (1, 0), (1, 1), (1, 2), (1, 3), (1, 6)]  # 2 + 2 + 2 and 0 + 2 + 2 are left
    report = export_pruned(model, heads, tmp_path / "out", "ragged")
    loaded = load_ragged(model, tmp_path / "out")
    check(model, [hs.HeadId("decoder", *head) for head in heads], report, loaded)
    attention = [layer.self_attn for layer in loaded.module.model.layers]
    assert all(a.num_key_value_groups == 2 and a.config is loaded.module.config for a in attention)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from([1, 3]), st.booleans())
def test_uneven_groups_are_each_heads_own_attention(implementation, counts, n_query, masked):
    torch.manual_seed(0)
    module = T.LlamaForCausalLM(T.LlamaConfig(**SMALL)).model.layers[0].self_attn.eval()
    module.config._attn_implementation = implementation
    set_groups(module, counts)
    n_key = 5
    query, key, value = torch.randn(2, sum(counts), n_query, 8), *torch.randn(2, 2, len(counts), n_key, 8)
    mask = torch.zeros(2, 1, n_query, n_key).masked_fill(torch.rand(2, 1, n_query, n_key) < 0.3, -1e9)
    mask = mask if masked or n_query > 1 else None
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama.modeling_llama import eager_attention_forward

    function = ALL_ATTENTION_FUNCTIONS.get_interface(module.config._attn_implementation, eager_attention_forward)
    found, _ = function(module, query, key, value, mask, scaling=0.3)
    serves = [j for j, n in enumerate(counts) for _ in range(n)]
    for head, j in enumerate(serves):
        scores = 0.3 * query[:, head] @ key[:, j].transpose(1, 2) + (0 if mask is None else mask[:, 0])
        torch.testing.assert_close(found[:, :, head], scores.softmax(-1) @ value[:, j], atol=1e-5, rtol=1e-4)
