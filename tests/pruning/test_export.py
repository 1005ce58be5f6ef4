"""Exported networks are loaded again, as a user would, and compared with the same heads ablated."""

import copy
import json

import numpy as np
import pytest
import torch
import transformers as T
from hypothesis import given
from hypothesis import strategies as st

import headscape as hs
from headscape.attention.projections import Layout
from headscape.attention.ragged import PLAN_FILE
from headscape.attention.sites import example_input, run
from headscape.attention.uneven import set_groups
from headscape.pruning import export, twins
from headscape.pruning.compensation import folds_of
from headscape.pruning.export import export_pruned
from tiny import Letters
from zoo import IDS, SMALL, ZOO, make

MORE = {
    "phi3": lambda: T.Phi3ForCausalLM(T.Phi3Config(**SMALL, num_key_value_heads=2)),
    "qwen2": lambda: T.Qwen2ForCausalLM(T.Qwen2Config(**SMALL, num_key_value_heads=2)),
    "llama-mha": lambda: T.LlamaForCausalLM(T.LlamaConfig(**SMALL)),
    # as SmolLM2: three queries to each of three key/value heads
    "llama-nine": lambda: T.LlamaForCausalLM(
        T.LlamaConfig(**{**SMALL, "hidden_size": 36, "num_attention_heads": 9}, num_key_value_heads=3)
    ),
    "falcon-new": lambda: T.FalconForCausalLM(
        T.FalconConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_kv_heads=2,
            new_decoder_architecture=True,
            vocab_size=100,
            **IDS,
        )
    ),
}
RAGGED = [*ZOO, "phi3", "qwen2", "llama-nine"]
CAUSAL = [
    "gpt2",
    "llama",
    "mistral",
    "qwen3",
    "gemma3",
    "gpt-oss",
    "falcon",
    "bloom",
    "mpt",
    "gptj",
    "phi3",
    "llama-nine",
]
TEXT = ["the quick brown fox jumps over the lazy dog"]


@pytest.fixture(autouse=True)
def _more(monkeypatch):
    for name, build in MORE.items():
        monkeypatch.setitem(ZOO, name, build)


def model_of(name):
    return hs.wrap_module(make(name), tokenizer=Letters())


def logits(model, tokens=40):
    with torch.no_grad():
        result = run(model, example_input(model, tokens))
    return result.logits if hasattr(result, "logits") else result[0]


def relative(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


def ablated_logits(model, heads, means=None):
    with hs.ablate(model, heads, "zero" if means is None else "mean", means=means):
        return logits(model)


def some_heads(model, seed=0):
    """A third of the heads of every layer or so, and a layer left whole."""
    rng = np.random.default_rng(seed)
    heads = [head for site in model.sites[:-1] for head in site.heads]
    return [heads[i] for i in sorted(rng.choice(len(heads), max(1, len(heads) // 3), replace=False))]


def check(model, heads, report, loaded, means=None):
    """The loaded model is the ablated one, and not the intact one."""
    expected = ablated_logits(model, heads, means)
    assert relative(expected, logits(model)) > 1e-3
    assert relative(logits(loaded), expected) < 1e-5
    assert report.max_difference <= 1e-5 * report.scale
    assert report.heads == tuple(sorted(heads, key=[h for s in model.sites for h in s.heads].index))


def stock(path, network):
    """Loaded by transformers alone, from what the folder says."""
    kinds = {
        "ForCausalLM": T.AutoModelForCausalLM,
        "LMHeadModel": T.AutoModelForCausalLM,
        "ForMaskedLM": T.AutoModelForMaskedLM,
        "ForImageClassification": T.AutoModelForImageClassification,
        "ForConditionalGeneration": T.AutoModelForSeq2SeqLM,
    }
    auto = next(kind for ending, kind in kinds.items() if type(network).__name__.endswith(ending))
    found, info = auto.from_pretrained(path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(found) is type(network)
    return hs.wrap_module(found)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "t5", "qwen3", "gemma3", "bart"])
def test_masked_loads_everywhere_and_equals_the_ablated_model(name, tmp_path):
    model = model_of(name)
    heads = some_heads(model)
    report = export_pruned(model, heads, tmp_path / "out")
    check(model, heads, report, stock(tmp_path / "out", model.module))
    assert report.parameters.before == report.parameters.after and report.zeroed == report.heads


@pytest.mark.parametrize("name", ["falcon", "falcon-new", "falcon-alibi", "bloom", "mpt", "mpnet", "gptj", "deberta"])
def test_masked_finds_the_output_projection_of_any_attention(name, tmp_path):
    model = model_of(name)
    heads = some_heads(model)
    export_pruned(model, heads, tmp_path / "out")
    from headscape.attention.tapping import attention_implementation

    loaded = hs.load_model(tmp_path / "out", device="cpu")
    with attention_implementation(loaded.module, "eager"):  # Falcon's own fused path with ALiBi gives other logits
        assert relative(logits(loaded), ablated_logits(model, heads)) < 1e-5


def test_masked_changes_nothing_but_columns_of_the_output_projection(tmp_path):
    model = model_of("llama")
    export_pruned(model, [(1, 2)], tmp_path / "out")
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

    stock_config = twins.UNIFORM["llama"]
    shapes = [
        (a, b)
        for a in range(1, n_kv + 1)
        for b in range(1, group + 1)
        if a * b < n_kv * group and hidden % (a * b) == 0
    ]
    fit = [shape for shape in shapes if all(holds(found, shape) for found in kept.values())]
    if not fit:
        with pytest.raises(hs.InputError, match="no stock configuration"):
            twins._smallest(Model(), "llama", stock_config, layout, kept)
        return
    found = twins._smallest(Model(), "llama", stock_config, layout, kept)
    assert found in fit and found[0] * (found[1] + 1) == min(a * (b + 1) for a, b in fit)
    for heads in kept.values():
        chosen, kv_heads = twins._fill(heads, *found, layout)
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


def load_ragged(model, path):
    loaded = hs.load_model(path, device="cpu")
    loaded.tokenizer = model.tokenizer
    assert type(loaded.module).__name__ == type(model.module).__name__ and "ragged" in loaded.notes[0]
    return loaded


def whole_layer(model, layer=0):
    """All heads of one layer of every block, and one of the next."""
    heads = [head for site in model.sites if site.layer == layer for head in site.heads]
    return heads + [site.heads[1] for site in model.sites if site.layer == 1 - layer]


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_holds_any_choice_of_any_family(name, tmp_path):
    model = model_of(name)
    choices = [some_heads(model, seed) for seed in range(2)] + [whole_layer(model, n) for n in range(2)]
    for i, heads in enumerate(choices):
        report = export_pruned(model, heads, tmp_path / str(i), "ragged")
        loaded = load_ragged(model, tmp_path / str(i))
        if name == "falcon-alibi":  # its fused path differs from its eager one; both exports go through it
            export_pruned(model, heads, tmp_path / f"masked-{i}")
            assert relative(logits(loaded), logits(hs.load_model(tmp_path / f"masked-{i}", device="cpu"))) < 1e-5
        else:
            check(model, heads, report, loaded)
        assert report.parameters.after < report.parameters.before and report.bytes.after < report.bytes.before
        assert report.bytes.after == (tmp_path / str(i) / "model.safetensors").stat().st_size
        assert not report.zeroed


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_models_are_captured_like_others(name, tmp_path):
    model = model_of(name)
    heads = some_heads(model, seed=3)
    export_pruned(model, heads, tmp_path / "out", "ragged")
    loaded = load_ragged(model, tmp_path / "out")
    inputs = TEXT
    if model.images is not None:
        inputs = example_input(model)["pixel_values"].permute(0, 2, 3, 1).numpy()
    options = {"tokens": 12, "batches": 1, "dtype": "float32"}
    cap = hs.capture(loaded, inputs, **options)
    with hs.ablate(model, heads):
        expected = hs.capture(model, inputs, **options)
    for block in expected.blocks:
        X = expected.tensor(0, block)
        stays = [i for i, head in enumerate(X.heads) if head not in heads]
        np.testing.assert_allclose(cap.tensor(0, block).values, X.values[:, :, stays], atol=1e-5)
    first = model.sites[0]
    n_left = first.n_heads - sum(head[:2] == (first.block, 0) for head in heads)
    assert loaded.sites[0].n_heads == n_left


def test_a_ragged_model_can_be_ablated_further(tmp_path):
    model = model_of("llama-nine")
    export_pruned(model, [(0, 0), (0, 1), (1, 5)], tmp_path / "out", "ragged")
    loaded = load_ragged(model, tmp_path / "out")
    found = ablated_logits(loaded, [(0, 0), (1, 5)])  # numbered anew: these were (0, 2) and (1, 6)
    assert relative(found, ablated_logits(model, [(0, 0), (0, 1), (0, 2), (1, 5), (1, 6)])) < 1e-5


def generated(model, **options):
    ids = example_input(model, 9)["input_ids"]
    ids = torch.cat([ids, ids.flip(1)])
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0, **options}
    with torch.no_grad():
        return model.module.generate(ids, attention_mask=torch.ones_like(ids), **options)


@pytest.mark.parametrize("name", [*CAUSAL, "t5", "bart"])
def test_ragged_models_generate_with_their_cache(name, tmp_path):
    model = model_of(name)
    for i, heads in enumerate((some_heads(model, seed=1), whole_layer(model))):
        export_pruned(model, heads, tmp_path / str(i), "ragged")
        loaded = load_ragged(model, tmp_path / str(i))
        with hs.ablate(model, heads):
            expected = generated(model, use_cache=False)
        assert torch.equal(generated(loaded), expected)
        assert torch.equal(generated(loaded, num_beams=2), generated(loaded, num_beams=2, use_cache=False))


@pytest.mark.parametrize("name", [*CAUSAL, "t5", "bart"])
def test_logits_token_by_token_are_those_of_the_whole_text(name, tmp_path):
    model = model_of(name)
    ids = example_input(model, 12)["input_ids"]

    def read(network, part, **options):
        if model.task == "seq2seq-lm":
            return network(input_ids=ids.flip(1), decoder_input_ids=part, **options)
        return network(input_ids=part, **options)

    for i, heads in enumerate((some_heads(model, seed=2), whole_layer(model))):
        export_pruned(model, heads, tmp_path / str(i), "ragged")
        network = load_ragged(model, tmp_path / str(i)).module
        with torch.no_grad():
            with hs.ablate(model, heads):
                expected = read(model.module, ids, use_cache=False).logits
            steps = [read(network, ids[:, :5], use_cache=True)]
            for t in range(5, 12):
                past = steps[-1].past_key_values
                steps.append(read(network, ids[:, t : t + 1], past_key_values=past, use_cache=True))
        assert relative(torch.cat([step.logits for step in steps], dim=1), expected) < 1e-5


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


def test_the_cache_keeps_each_key_value_head_once(tmp_path):
    model = model_of("llama-nine")
    export_pruned(
        model, [(0, 0), (0, 3), (0, 4), (0, 5), (1, 1)], tmp_path / "out", "ragged"
    )  # 2 + 0 + 3 and 2 + 3 + 3
    loaded = load_ragged(model, tmp_path / "out")
    with torch.no_grad():
        cache = loaded.module(example_input(model)["input_ids"], use_cache=True).past_key_values
    assert [layer.keys.shape[1] for layer in cache.layers] == [2, 3]
    attention = [layer.self_attn for layer in loaded.module.model.layers]
    assert [a.k_proj.out_features // 4 for a in attention] == [2, 3]
    assert [a.q_proj.out_features // 4 for a in attention] == [5, 8]


def test_a_padded_batch_and_training_work_too(tmp_path):
    model = model_of("llama-nine")
    heads = [(0, 0), (0, 1), (0, 2), (0, 4), (1, 8)]
    export_pruned(model, heads, tmp_path / "out", "ragged")
    loaded = load_ragged(model, tmp_path / "out")
    ids = example_input(model)["input_ids"].repeat(2, 1)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    with torch.no_grad():
        with hs.ablate(model, heads):
            expected = model.module(ids, attention_mask=mask).logits
        found = loaded.module(ids, attention_mask=mask).logits
    assert relative(found[mask.bool()], expected[mask.bool()]) < 1e-5
    loss = loaded.module.train()(ids, labels=ids).loss
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in loaded.module.parameters())


def test_ragged_refuses_an_attention_it_does_not_understand(tmp_path):
    with pytest.raises(hs.InputError, match=r"FalconAttention .*understood are .*q_proj/k_proj/v_proj.*'masked'"):
        export_pruned(model_of("falcon-new"), [(0, 0)], tmp_path / "out", "ragged")


def test_a_ragged_folder_as_a_random_control_or_damaged(tmp_path):
    model = model_of("gpt2")
    folder = tmp_path / "out"
    report = export_pruned(model, [(0, 1), (1, 0), (1, 1)], folder, "ragged")
    random = hs.load_model(folder, device="cpu", random_init=1)
    assert random.n_parameters == report.parameters.after and relative(logits(random), logits(model)) > 1e-2
    plan = json.loads((folder / PLAN_FILE).read_text())
    assert plan["layers"][1]["heads"] == [2, 3] == plan["layers"][1]["key_values"]
    (folder / PLAN_FILE).write_text(json.dumps({**plan, "format": 99}))
    with pytest.raises(hs.InputError, match="newer headscape"):
        hs.load_model(folder, device="cpu")
    (folder / PLAN_FILE).write_text('{"format": 1, "kind": "ragged"}')
    with pytest.raises(hs.InputError, match=r"headscape-module\.json is damaged"):
        hs.load_model(folder, device="cpu")
    plan["layers"][0]["name"] = "transformer.h.7.attn"
    (folder / PLAN_FILE).write_text(json.dumps(plan))
    with pytest.raises(hs.InputError, match="does not fit the network"):
        hs.load_model(folder, device="cpu")


def test_a_ragged_model_can_be_copied(tmp_path):
    model = model_of("llama-nine")
    export_pruned(model, [(0, 0), (0, 4), (0, 5), *((1, h) for h in range(9))], tmp_path / "out", "ragged")
    loaded = load_ragged(model, tmp_path / "out")
    twin = hs.wrap_module(copy.deepcopy(loaded.module))
    assert torch.equal(logits(twin), logits(loaded))


def test_a_ragged_model_is_not_exported_again(tmp_path):
    model = model_of("gpt2")
    export_pruned(model, [(0, 1)], tmp_path / "out", "ragged")
    with pytest.raises(hs.InputError, match="ragged export already"):
        export_pruned(load_ragged(model, tmp_path / "out"), [(0, 0)], tmp_path / "again")


def means_of(model):
    inputs = TEXT
    if model.images is not None:
        inputs = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    return hs.mean_outputs(model, inputs, tokens=12, batches=None)


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "llama", "llama-bias", "qwen3", "gemma2", "gemma3", "bart"])
def test_mean_outputs_are_kept_in_the_stock_bias(name, tmp_path):
    model = model_of(name)
    heads, means = some_heads(model), means_of(model)
    report = export_pruned(model, heads, tmp_path / "out", means=means)
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
    with pytest.raises(hs.InputError, match="no bias behind its heads.*'ragged', or without means"):
        export_pruned(model, some_heads(model), tmp_path / "out", means=means)
    if name != "phi3":
        pairs = [site.heads[h] for site in model.sites for h in (1, 2)]
        with pytest.raises(hs.InputError, match="no bias behind its heads"):
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


def test_means_that_do_not_fit(tmp_path):
    model = model_of("gpt2")
    means = means_of(model)
    with pytest.raises(hs.InputError, match=r"the mean of head decoder\.0\.1 has shape \(3,\), its output \(8,\)"):
        export_pruned(model, [(0, 1)], tmp_path / "out", means={**means, hs.HeadId("decoder", 0, 1): np.ones(3)})
    del means[hs.HeadId("decoder", 0, 1)]
    with pytest.raises(hs.InputError, match=r"means lack head decoder\.0\.1"):
        export_pruned(model, [(0, 1)], tmp_path / "out", means=means)


def test_bad_requests_write_nothing(tmp_path):
    model = model_of("llama")
    every = [head for site in model.sites for head in site.heads]
    for heads, kind, message in [
        ([], "masked", "no heads to remove"),
        (every, "masked", "all 8 heads"),
        (every, "ragged", "at least one must stay"),
        ([(0, 9)], "masked", r"no head decoder\.0\.9"),
        ([(0, 0)], "smaller", "kind is one of masked, ragged, uniform, not 'smaller'"),
    ]:
        with pytest.raises(hs.InputError, match=message):
            export_pruned(model, heads, tmp_path / "out", kind)
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for place in ("full", "full/mine.txt"):
        with pytest.raises(hs.InputError, match="exists and is not an empty folder"):
            export_pruned(model, [(0, 0)], tmp_path / place)
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine.txt"]
    example = torch.ones(1, 3, 8), torch.ones(1, 3, 8), torch.ones(1, 3, 8)
    plain = hs.wrap_module(torch.nn.MultiheadAttention(8, 2, batch_first=True), example=example)
    with pytest.raises(hs.InputError, match="plain module"):
        export_pruned(plain, [(0, 0)], tmp_path / "out")


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "out").mkdir()
    export_pruned(model_of("gpt2"), [(0, 0)], tmp_path / "out")
    assert hs.load_model(tmp_path / "out", device="cpu").family == "gpt2"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_network_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    def wrong(model, heads, folds):
        return twins.masked(model, heads, folds_of(model, {name: [0] for name in heads}, None))

    monkeypatch.setitem(export.KINDS, "masked", wrong)
    with pytest.raises(hs.HeadscapeError, match="away from the ablated model's .*nothing was written"):
        export_pruned(model_of("gpt2"), [(0, 1)], tmp_path / "out")

    def broken(model, heads, folds):
        twin = twins.ragged(model, heads, folds)
        return twins.Twin(twin.module)  # without its plan

    monkeypatch.setitem(export.KINDS, "masked", broken)
    with pytest.raises(hs.HeadscapeError, match="does not run: .*nothing was written"):
        export_pruned(model_of("gpt2"), [(0, 1)], tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_is_known_of_the_model_goes_along(tmp_path):
    model = model_of("llama")
    model.licence, model.prefix, model.tokenizer = "apache-2.0", (1,), None
    export_pruned(model, ["decoder.0.3"], tmp_path / "out")
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


def test_times_are_measured_when_asked(tmp_path):
    report = export_pruned(model_of("gpt2"), [(0, 0)], tmp_path / "lm", "ragged", timed=1)
    assert report.forward.before > 0 and report.generation.after > 0 and "generation" in str(report)
    report = export_pruned(model_of("vit"), [(0, 0)], tmp_path / "vit", "ragged", timed=1)
    assert report.forward.after > 0 and report.generation is None
    assert export_pruned(model_of("vit"), [(0, 0)], tmp_path / "no", "ragged").forward is None


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
