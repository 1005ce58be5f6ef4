"""The three forms of a pruned network compute what the ablated one does, and hold what they promise.

Also tests attention.projections.
"""

import numpy as np
import pytest
import torch
import transformers as T
from hypothesis import given
from hypothesis import strategies as st

import headscape as hs
from exported import (
    RAGGED,
    TEXT,
    ablated_logits,
    check,
    load_ragged,
    logits,
    means_of,
    model_of,
    relative,
    some_heads,
    stock,
    whole_layer,
)
from headscape.attention.projections import Layout
from headscape.pruning import forms
from headscape.pruning.export import export_pruned


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "t5", "qwen3", "gemma3", "bart"])
def test_masked_loads_everywhere_and_equals_the_ablated_model(name, tmp_path):
    model = model_of(name)
    heads = some_heads(model)
    report = export_pruned(model, heads, tmp_path / "out", "masked")
    check(model, heads, report, stock(tmp_path / "out", model.module))
    assert report.parameters.before == report.parameters.after and report.zeroed == report.heads


@pytest.mark.parametrize("name", ["falcon", "falcon-new", "falcon-alibi", "bloom", "mpt", "mpnet", "gptj", "deberta"])
def test_masked_finds_the_output_projection_of_any_attention(name, tmp_path):
    model = model_of(name)
    heads = some_heads(model)
    export_pruned(model, heads, tmp_path / "out", "masked")
    from headscape.attention.tapping import attention_implementation

    loaded = hs.load_model(tmp_path / "out", device="cpu")
    with attention_implementation(loaded.module, "eager"):  # Falcon's own fused path with ALiBi gives other logits
        assert relative(logits(loaded), ablated_logits(model, heads)) < 1e-5


def test_masked_changes_nothing_but_columns_of_the_output_projection(tmp_path):
    model = model_of("llama")
    export_pruned(model, [(1, 2)], tmp_path / "out", "masked")
    before, after = model.module.state_dict(), T.AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == ["model.layers.1.self_attn.o_proj.weight"]  # W_V serves the other query of the group
    expected = before[changed[0]].clone()
    expected[:, 16:24] = 0
    assert torch.equal(after[changed[0]], expected)


@pytest.mark.parametrize("kind", ["masked", "uniform", "ragged"])
def test_the_model_itself_is_left_alone(kind, tmp_path):
    model = model_of("llama")
    state = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    config, before = model.module.config.to_dict(), logits(model)
    means = hs.mean_outputs(model, TEXT, tokens=12, batches=None)
    export_pruned(model, [(n, h) for n in range(2) for h in (0, 3)], tmp_path / "out", kind, means=means)
    assert all(torch.equal(state[name], tensor) for name, tensor in model.module.state_dict().items())
    assert model.module.config.to_dict() == config and torch.equal(logits(model), before)


UNIFORM = {  # heads of each layer that can go together, heads left, key/value heads left
    "llama": ([[0, 3], [1, 2]], 2, 2),
    "llama-bias": ([[0, 1], [2, 3]], 2, 1),
    "llama-mha": ([[0, 1], [1, 3]], 2, 2),
    "llama-nine": ([[0, 4, 8], [2, 3, 7]], 6, 3),
    "qwen3": ([[1, 2], [1, 3]], 2, 2),
    "qwen2": ([[0, 1, 2], [1, 2, 3]], 1, 1),
    "mistral": ([[0, 1], [2, 3]], 2, 1),
    "gemma2": ([[0, 3], [1, 2]], 2, 1),
    "gemma3": ([[0, 1], [0, 2]], 2, 1),
    "vit": ([[2], [0]], 3, 3),
}


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform_is_a_smaller_stock_model(name, tmp_path):
    model = model_of(name)
    by_layer, n_heads, n_kv = UNIFORM[name]
    heads = [
        head
        for site, found in zip(model.sites, by_layer, strict=True)
        for head in np.array(site.heads, dtype=object)[found]
    ]
    heads = [hs.HeadId(*head) for head in heads]
    report = export_pruned(model, heads, tmp_path / "out", "uniform")
    loaded = stock(tmp_path / "out", model.module)
    check(model, heads, report, loaded)
    config = loaded.module.config
    assert config.num_attention_heads == n_heads == loaded.n_heads
    assert getattr(config, "num_key_value_heads", n_kv) == n_kv
    model.module.save_pretrained(tmp_path / "intact")
    size = {place: (tmp_path / place / "model.safetensors").stat().st_size for place in ("intact", "out")}
    assert size["out"] < size["intact"] and report.parameters.after < report.parameters.before
    assert report.bytes.after == size["out"] and report.bytes.before == pytest.approx(size["intact"], abs=256)
    assert not report.zeroed and not report.notes


def test_uniform_t5_removes_the_same_heads_from_a_stack(tmp_path):
    model = model_of("t5")
    stacks = {"encoder": [1, 2], "decoder": [0, 3]}
    heads = [hs.HeadId(block, n, h) for block, found in stacks.items() for n in range(2) for h in found]
    heads += [hs.HeadId("decoder.cross", n, h) for n, h in ((0, 0), (0, 1), (1, 2), (1, 3))]  # no bias: free to differ
    report = export_pruned(model, heads, tmp_path / "out", "uniform")
    loaded = stock(tmp_path / "out", model.module)
    check(model, heads, report, loaded)
    assert loaded.module.config.num_heads == 2 and not report.zeroed
    uneven = [head for head in heads if head != hs.HeadId("encoder", 0, 1)]
    with pytest.raises(hs.InputError, match="no stock configuration of t5 describes"):
        export_pruned(
            model, [head for head in uneven if head != hs.HeadId("encoder", 1, 2)], tmp_path / "no", "uniform"
        )
    report = export_pruned(model, uneven, tmp_path / "three", "uniform")
    assert stock(tmp_path / "three", model.module).module.config.num_heads == 3 and report.zeroed


def test_uniform_keeps_zeroed_heads_up_to_the_next_count_that_fits(tmp_path):
    model = model_of("llama-nine")
    # five of nine heads stay in layer 0, spread 2 + 2 + 1; 36 is no multiple of 5, 7 or 8: six must stay
    heads = [hs.HeadId("decoder", 0, h) for h in (0, 4, 6, 7)] + [hs.HeadId("decoder", 1, h) for h in (1, 5, 8)]
    report = export_pruned(model, heads, tmp_path / "out", "uniform")
    loaded = stock(tmp_path / "out", model.module)
    check(model, heads, report, loaded)
    assert (loaded.module.config.num_attention_heads, loaded.module.config.num_key_value_heads) == (6, 3)
    assert report.zeroed == (hs.HeadId("decoder", 0, 6),)
    assert report.notes == ("1 of the heads to be removed stay as zeros: every layer needs 6 heads in 3 groups",)
    assert "stay as zeros" in str(report)


def test_uniform_may_lose_groups_and_queries_at_once(tmp_path):
    model = model_of("llama-nine")
    heads = [hs.HeadId("decoder", n, h) for n in range(2) for h in range(9) if h not in (3, 4, 7, 8)]
    report = export_pruned(model, heads, tmp_path / "out", "uniform")
    loaded = stock(tmp_path / "out", model.module)
    check(model, heads, report, loaded)
    assert (loaded.module.config.num_attention_heads, loaded.module.config.num_key_value_heads) == (4, 2)


@given(st.data())
def test_uniform_holds_every_layers_heads_at_the_least_cost(data):
    n_kv, group = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    layout = Layout("separate", (), n_kv * group, n_kv, 8)
    subsets = st.lists(st.sampled_from(range(n_kv * group)), unique=True).map(sorted)
    kept = {str(n): data.draw(subsets) for n in range(data.draw(st.integers(1, 3)))}
    hidden = 24

    def holds(found, shape):
        groups = [[h for h in found if h // group == j] for j in range(n_kv)]
        return sum(map(bool, groups)) <= shape[0] and max(map(len, groups)) <= shape[1]

    class Config:
        hidden_size = hidden

    class Model:
        config = Config()

    stock_config = forms.UNIFORM["llama"]
    shapes = [
        (a, b)
        for a in range(1, n_kv + 1)
        for b in range(1, group + 1)
        if a * b < n_kv * group and hidden % (a * b) == 0
    ]
    fit = [shape for shape in shapes if all(holds(found, shape) for found in kept.values())]
    if not fit:
        with pytest.raises(hs.InputError, match="no stock configuration"):
            forms._smallest(Model(), "llama", stock_config, layout, kept)
        return
    found = forms._smallest(Model(), "llama", stock_config, layout, kept)
    assert found in fit and found[0] * (found[1] + 1) == min(a * (b + 1) for a, b in fit)
    for heads in kept.values():
        chosen, kv_heads = forms._fill(heads, *found, layout)
        assert set(heads) <= set(chosen) and chosen == sorted(chosen)
        assert [h // group for h in chosen] == [j for j in kv_heads for _ in range(found[1])] and len(
            kv_heads
        ) == found[0]


@pytest.mark.parametrize("name", ["gpt2", "bert", "mpnet", "phi3", "bart"])
def test_uniform_refuses_what_no_stock_configuration_says(name, tmp_path):
    model = model_of(name)
    heads = [head for site in model.sites for head in site.heads[:2]]
    with pytest.raises(hs.InputError, match="export it as 'ragged' .* or 'masked'"):
        export_pruned(model, heads, tmp_path / "out", "uniform")
    assert not list(tmp_path.iterdir())


def test_uniform_refuses_a_choice_that_leaves_one_layer_whole(tmp_path):
    model = model_of("llama")
    with pytest.raises(hs.InputError, match=r"fewer than 4 \(1, 2 are valid\).*remove more from that layer"):
        export_pruned(model, [(0, 0), (0, 2)], tmp_path / "out", "uniform")


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_holds_any_choice_of_any_family(name, tmp_path):
    model = model_of(name)
    choices = [some_heads(model, seed) for seed in range(2)] + [whole_layer(model, n) for n in range(2)]
    for i, heads in enumerate(choices):
        report = export_pruned(model, heads, tmp_path / str(i), "ragged")
        loaded = load_ragged(model, tmp_path / str(i))
        if name == "falcon-alibi":  # its fused path differs from its eager one; both exports go through it
            export_pruned(model, heads, tmp_path / f"masked-{i}", "masked")
            assert relative(logits(loaded), logits(hs.load_model(tmp_path / f"masked-{i}", device="cpu"))) < 1e-5
        else:
            check(model, heads, report, loaded)
        assert report.parameters.after < report.parameters.before and report.bytes.after < report.bytes.before
        assert report.bytes.after == (tmp_path / str(i) / "model.safetensors").stat().st_size
        assert not report.zeroed


def test_ragged_refuses_an_attention_it_does_not_understand(tmp_path):
    with pytest.raises(hs.InputError, match=r"FalconAttention .*understood are .*q_proj/k_proj/v_proj.*'masked'"):
        export_pruned(model_of("falcon-new"), [(0, 0)], tmp_path / "out", "ragged")


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "llama", "llama-bias", "qwen3", "gemma2", "gemma3", "bart"])
def test_mean_outputs_are_kept_in_the_stock_bias(name, tmp_path):
    model = model_of(name)
    heads, means = some_heads(model), means_of(model)
    report = export_pruned(model, heads, tmp_path / "out", "masked", means=means)
    loaded = stock(tmp_path / "out", model.module)
    check(model, heads, report, loaded, means)
    assert relative(ablated_logits(model, heads), logits(loaded)) > 1e-4
    if name in ("llama", "qwen3", "gemma2", "gemma3"):
        assert loaded.module.config.attention_bias
        state = loaded.module.state_dict()
        assert not any(
            tensor.any() for key, tensor in state.items() if key.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))
        )


@pytest.mark.parametrize("name", ["qwen2", "mistral", "phi3", "t5"])
def test_means_without_a_bias_need_the_ragged_form(name, tmp_path):
    model = model_of(name)
    means = means_of(model)
    with pytest.raises(hs.InputError, match="no output bias.*'ragged', or without means"):
        export_pruned(model, some_heads(model), tmp_path / "out", "masked", means=means)
    if name != "phi3":
        pairs = [site.heads[h] for site in model.sites for h in (1, 2)]
        with pytest.raises(hs.InputError, match="no output bias"):
            export_pruned(model, pairs, tmp_path / "out", "uniform", means=means)


@pytest.mark.parametrize("name", ["llama", "vit"])
def test_mean_outputs_in_a_uniform_export(name, tmp_path):
    model = model_of(name)
    heads, means = [site.heads[h] for site in model.sites for h in (0, 3)], means_of(model)
    report = export_pruned(model, heads, tmp_path / "out", "uniform", means=means)
    check(model, heads, report, stock(tmp_path / "out", model.module), means)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "t5", "mistral", "qwen2", "phi3", "bloom", "mpnet"])
def test_mean_outputs_in_a_ragged_export(name, tmp_path):
    model = model_of(name)
    means = means_of(model)
    for i, heads in enumerate((some_heads(model), whole_layer(model))):
        report = export_pruned(model, heads, tmp_path / str(i), "ragged", means=means)
        check(model, heads, report, load_ragged(model, tmp_path / str(i)), means)
