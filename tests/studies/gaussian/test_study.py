"""The Gaussian study: what it sees of a layer, what it says of one, and the whole of it on small models."""

import json
import shutil

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import headscape as hs
import zoo
from headscape.attention.models import wrap_module
from headscape.attention.samples import Sample
from headscape.attention.watching import LayerData, depth_states, watch_layers
from headscape.captures import Batch, Capture
from headscape.runs import Run
from headscape.statistics.bilinear import form_moments, measured_moments, pooled_moments
from headscape.statistics.gaussian import fit_gaussian, linear_map
from headscape.statistics.mixture import token_spread
from headscape.storage import ArrayWriter, read_arrays
from headscape.studies.gaussian.layer import COLUMNS, Reading, measure_layer, measure_state, present_offsets
from headscape.studies.gaussian.result import GaussianResult, median_interval
from headscape.studies.gaussian.study import VERSIONS, gaussian
from headscape.studies.gaussian.tokens import FACTS, cosines_of, embeddings, mixtures, one_gram


def samples_for(model, n=3, tokens=20, seed=0):
    draw = torch.Generator().manual_seed(seed)
    if model.images is not None:
        return [Sample({"pixel_values": torch.randn(1, 1, 28, 28, generator=draw)}, {}, {}, [i]) for i in range(n)]
    ids = [torch.randint(3, 100, (1, tokens), generator=draw) for _ in range(n)]
    return [Sample({"input_ids": row}, {}, {"input_ids": row[0].numpy()}, [i]) for i, row in enumerate(ids)]


def layers_of(name, **options):
    model = wrap_module(zoo.make(name), name=name)
    found = []
    states = watch_layers(model, samples_for(model, **options), model.sites[0].block, found.append)
    return model, found, states


# ---------------------------------------------------------------------- what is seen of a layer


@pytest.mark.parametrize("name", ["llama-bias", "qwen3", "gemma3", "mistral", "gpt2", "bert", "vit", "bart"])
def test_scores_are_scaled_products_of_turned_queries_and_keys(name):
    _, layers, states = layers_of(name)
    assert len(layers) == 2 and len(states) == 3
    for data in layers:
        assert not data.note
        q, k = data.queries, np.repeat(data.keys, data.queries.shape[1] // data.keys.shape[1], axis=1)
        if data.rotations is not None:
            q, k = (np.einsum("bhnd,nde->bhne", part, data.rotations) for part in (q, k))
        np.testing.assert_allclose(data.scaling * q @ k.swapaxes(2, 3), data.scores, atol=1e-3)
    assert (layers[0].rotations is not None) == (name in ("llama-bias", "qwen3", "gemma3", "mistral"))


@pytest.mark.parametrize("name", ["llama-bias", "bert"])
def test_gaussians_of_queries_are_those_of_the_inputs_mapped_by_the_weights(name):
    """The brief of the study: predicted from the Gaussian of the layer's inputs and the weights, GQA-correct."""
    model = wrap_module(zoo.make(name), name=name)
    if name == "bert":
        layer = model.module.bert.encoder.layer[1].attention.self
        maps = (layer.query, layer.key)
    else:
        layer = model.module.model.layers[1].self_attn
        maps = (layer.q_proj, layer.k_proj)
    seen, found = [], []
    hook = maps[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    watch_layers(model, samples_for(model), model.sites[0].block, found.append)
    hook.remove()
    x = seen[-1].flatten(0, 1).double().numpy()
    of_input = fit_gaussian(x, shrinkage=0.0)
    for linear, got in zip(maps, (found[1].queries, found[1].keys), strict=True):
        dim = got.shape[-1]
        for head in range(got.shape[1]):
            rows = slice(head * dim, (head + 1) * dim)
            W, b = linear.weight[rows].detach().numpy(), linear.bias[rows].detach().numpy()
            mapped = linear_map(of_input, W, b)
            direct = fit_gaussian(got[:, head].reshape(-1, dim), shrinkage=0.0)
            np.testing.assert_allclose(mapped.mean, direct.mean, atol=1e-4)
            np.testing.assert_allclose(mapped.covariance, direct.covariance, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("mpnet", "a bias or a cap"),
        ("t5", "a bias or a cap"),
        ("gptj", "behind any rotation"),
        ("falcon", "behind any"),
    ],
)
def test_layers_that_are_built_otherwise_say_so(name, note):
    model = wrap_module(zoo.make(name), name=name)
    samples = samples_for(model)
    if model.task == "seq2seq-lm":
        samples = [Sample(s.arguments | {"decoder_input_ids": s.arguments["input_ids"]}, {}, {}, []) for s in samples]
    found = []
    watch_layers(model, samples, model.sites[0].block, found.append)
    assert note in found[0].note
    assert np.isnan(found[0].scaling) == ("bias" in note)


def test_watching_changes_nothing():
    model = wrap_module(zoo.make("gemma3"), name="gemma3")
    samples = samples_for(model)
    with torch.no_grad():
        before = model.module(samples[0].arguments["input_ids"]).logits
        watch_layers(model, samples, "decoder", lambda _: None)
        depth_states(model, samples, skip=False, alpha=2.0)
        after = model.module(samples[0].arguments["input_ids"]).logits
    assert torch.equal(before, after)


def test_inputs_of_different_lengths_are_refused():
    model = wrap_module(zoo.make("llama"), name="llama")
    mixed = [*samples_for(model, 1, 20), *samples_for(model, 1, 21)]
    with pytest.raises(hs.InputError, match="differ in length"):
        watch_layers(model, mixed, "decoder", lambda _: None)


# ---------------------------------------------------------------------- versions by depth


@pytest.mark.parametrize("name", ["llama", "gemma3", "bert", "gpt2", "vit"])
def test_states_by_depth_are_those_of_the_model(name):
    model, _, states = layers_of(name)
    found = depth_states(model, samples_for(model))
    np.testing.assert_allclose(found[0], states[0], atol=1e-5)
    np.testing.assert_allclose(found[1], states[1], atol=1e-4)  # the last state of the model has its final norm


def test_without_skip_a_layer_is_its_attention_alone():
    model, layers, _ = layers_of("llama")
    found = depth_states(model, samples_for(model), skip=False)
    W = model.module.model.layers[0].self_attn.o_proj.weight.detach().numpy()
    outputs = layers[0].outputs.swapaxes(1, 2).reshape(3, 20, -1) @ W.T
    np.testing.assert_allclose(found[1] / np.linalg.norm(found[1]), outputs / np.linalg.norm(outputs), atol=1e-6)
    assert np.linalg.norm(found[1]) == pytest.approx(np.linalg.norm(found[0]), rel=1e-5)


def test_alpha_scales_the_spectra_of_queries_and_keys():
    """alpha = 2 is Wq and Wk (and their biases) times 2 in a model without a norm of queries and keys."""
    model = wrap_module(zoo.make("llama-bias"), name="llama-bias")
    samples = samples_for(model)
    scaled = depth_states(model, samples, alpha=2.0)
    with torch.no_grad():
        for layer in model.module.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                part.weight.mul_(2)
                part.bias.mul_(2)
    np.testing.assert_allclose(scaled, depth_states(model, samples), rtol=1e-4, atol=1e-4)


def test_a_model_of_two_stacks_has_no_versions():
    model = wrap_module(zoo.make("bart"), name="bart")
    with pytest.raises(hs.InputError, match="not one stack"):
        depth_states(model, samples_for(model))


# ---------------------------------------------------------------------- one layer


def a_layer(n_input=6, n_head=4, n_kv=2, n=80, dim=5, seed=0, rotary=True, shift=1.0):
    """Gaussian queries and keys that depend on each other, values, and the softmax of their scores."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=(n_input, 1, n, dim))
    q = rng.normal(size=(n_input, n_head, n, dim)) + 0.7 * shared + shift * rng.normal(size=(1, n_head, 1, dim))
    k = rng.normal(size=(n_input, n_kv, n, dim)) + 0.7 * shared + shift * rng.normal(size=(1, n_kv, 1, dim))
    v = rng.normal(size=(n_input, n_kv, n, dim)) + shared
    rotations = None
    tq, tk = q, k
    if rotary:
        angle = 0.3 * np.arange(n)
        rotations = np.tile(np.eye(dim), (n, 1, 1))
        rotations[:, :2, :2] = np.moveaxis(
            np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]), 2, 0
        )
        tq, tk = (np.einsum("bhnd,nde->bhne", part, rotations) for part in (q, k))
    group = n_head // n_kv
    scores = 0.4 * tq @ np.repeat(tk, group, axis=1).swapaxes(2, 3)
    masked = np.where(np.tri(n, dtype=bool), scores, -np.inf)
    probs = np.exp(masked - masked.max(axis=-1, keepdims=True))
    probs /= probs.sum(axis=-1, keepdims=True)
    outputs = probs @ np.repeat(v, group, axis=1)
    arrays = [np.asarray(x, dtype=np.float32) for x in (q, k, v, scores, probs, outputs)]
    return LayerData(0, *arrays, rotations=rotations, scaling=0.4, note="")


def table_of(data, reading, tmp_path):
    measure_layer(data, reading, tmp_path / "layer.safetensors")
    arrays, said = read_arrays(tmp_path / "layer.safetensors")
    (tmp_path / "layer.safetensors").unlink()
    return [dict(zip(COLUMNS, row, strict=True)) for row in arrays["table"]]


def cosines_for(data, seed=5):
    return cosines_of(np.random.default_rng(seed).normal(size=(len(data.probs), data.probs.shape[-1], 6)))


def test_predictions_of_gaussian_queries_and_keys_are_met(tmp_path):
    """Joint Gaussians are the truth here: 4,700 pairs tell a sd within some 2 % and a kurtosis within some .3."""
    data = a_layer(n_input=12)
    rows = table_of(data, Reading(slice(1, None), True, None, 0), tmp_path)
    for row in rows:
        assert row["mean_joint"] == pytest.approx(row["mean"], abs=1e-5)
        assert np.sqrt(row["variance_joint"] / row["variance"]) == pytest.approx(1, abs=0.06)
        assert row["kurtosis_joint"] == pytest.approx(row["kurtosis"], abs=0.5)
        assert np.sqrt(row["self_variance_predicted"] / row["self_variance"]) == pytest.approx(1, abs=0.12)
        assert abs(row["self_mean"] - row["mean"]) > 0.2 * np.sqrt(row["variance"])  # tokens share a part
        assert abs(row["mean_independent"] - row["mean"]) < np.sqrt(row["variance"])
        assert 1 < row["directions"] <= 5


def test_one_head_written_out(tmp_path):
    """Pairs one by one: query i with the key r before it, the group's key, and the same moments."""
    data = a_layer(n_input=3, n=40)
    content = slice(1, 38)
    row = table_of(data, Reading(content, True, None, 0), tmp_path)[3]
    places = range(40)[content]
    parts, joint, counts = [], [], []
    for r in (0, 1, 4, 16):
        pairs = [(b, i, i - r) for b in range(3) for i in places if i - r in places]
        scores = [float(data.scores[b, 3, i, j]) for b, i, j in pairs]
        z = np.array([np.r_[data.queries[b, 3, i], data.keys[b, 1, j]] for b, i, j in pairs], dtype=float)
        g = fit_gaussian(z)
        C = 0.4 * data.rotations[r] @ data.rotations[0].T
        assert scores == pytest.approx([x[:5] @ C @ x[5:] for x in z], abs=1e-4)
        parts.append(measured_moments(scores))
        S = g.covariance
        joint.append(form_moments(C, g.mean[:5], g.mean[5:], S[:5, :5], S[5:, 5:], S[5:, :5]))
        counts.append(len(pairs))
    for suffix, found in (("", pooled_moments(parts, counts)), ("_joint", pooled_moments(joint, counts))):
        for name, value in found._asdict().items():
            assert row[name + suffix] == pytest.approx(value, abs=1e-5)
    assert row["score_shrinkage"] == pytest.approx(max(0.0, g.shrinkage)) or row["score_shrinkage"] > 0


def test_offsets_go_both_ways_without_a_causal_mask():
    assert present_offsets(20, True) == [0, 1, 4, 16]
    assert present_offsets(20, False) == [-16, -4, -1, 0, 1, 4, 16]


def test_fixed_weights_propagate_and_real_ones_do_not(tmp_path):
    data = a_layer(shift=0.0)
    content = slice(1, None)
    row = table_of(data, Reading(content, True, None, 0), tmp_path)[2]
    P, V, O = data.probs[:, 2].astype(float), data.values[:, 1].astype(float), data.outputs[:, 2].astype(float)
    fixed = np.stack([np.mean([P[c] for c in range(6) if c != b], axis=0) @ V[b] for b in range(6)])

    def moments(x):
        x = x[:, content]
        centred = (x - x.mean(axis=0)).reshape(-1, 5)
        return x.mean(axis=0), centred.T @ centred / (len(centred) * 5 / 6)

    (m, S), (mp, Sp) = moments(O), moments(fixed)
    assert row["mean_off"] == pytest.approx(np.linalg.norm(mp - m) / np.linalg.norm(m), rel=1e-4)
    assert row["covariance_off"] == pytest.approx(np.linalg.norm(Sp - S) / np.linalg.norm(S), rel=1e-4)
    assert row["trace_ratio"] == pytest.approx(np.trace(Sp) / np.trace(S), rel=1e-4)
    assert row["covariance_off"] > 0.2
    steady = LayerData(**{**vars(data), "probs": np.repeat(data.probs[:1], 6, axis=0)})
    steady = LayerData(**{**vars(steady), "outputs": steady.probs @ np.repeat(data.values, 2, axis=1)})
    for row in table_of(steady, Reading(content, True, None, 0), tmp_path):  # one map for all inputs
        assert row["covariance_off"] < 1e-4 and row["mean_off"] < 1e-4
        assert row["entropy_propagated"] == pytest.approx(row["entropy_measured"], abs=1e-3)
        assert row["information_propagated"] == pytest.approx(row["information_measured"], abs=1e-3)


def test_attention_makes_neighbours_share_more(tmp_path):
    data = a_layer(n_input=12, n=80)
    even = np.tri(80) / np.arange(1, 81)[:, None]
    data = LayerData(**{**vars(data), "probs": np.tile(even, (12, 4, 1, 1)).astype(np.float32)})
    data = LayerData(**{**vars(data), "outputs": data.probs @ np.repeat(data.values, 2, axis=1)})
    for row in table_of(data, Reading(slice(1, None), True, None, 0), tmp_path):
        assert abs(row["information_values"]) < 0.15  # values of neighbours are independent
        assert row["information_measured"] > 2  # means of all tokens so far are not
        assert row["entropy_measured"] < row["entropy_values"]
        assert row["rank90"] == pytest.approx(row["rank90"]) and row["rank90"] <= 8


@pytest.mark.parametrize("causal", [True, False])
def test_rank_correlation_with_cosines_written_out(tmp_path, causal):
    data = a_layer(n_input=2, n=30)
    cosines = cosines_for(data)
    row = table_of(data, Reading(slice(1, 29), causal, cosines, 0), tmp_path)[1]
    rhos, partials = [], []
    for b in range(2):
        a, c, d = [], [], []
        for i in range(1, 29):
            for j in range(1, 29):
                if j < i or (not causal and j != i):
                    a.append(data.probs[b, 1, i, j] * np.float32(i + 1 if causal else 30))
                    c.append(cosines[b, i, j])
                    d.append(abs(i - j))
        ac, ad, cd = (spearmanr(x, y).statistic for x, y in ((a, c), (a, d), (c, d)))
        rhos.append(ac)
        partials.append((ac - ad * cd) / np.sqrt((1 - ad**2) * (1 - cd**2)))
    assert row["cosine_rho"] == pytest.approx(np.mean(rhos), abs=1e-6)
    assert row["cosine_partial"] == pytest.approx(np.mean(partials), abs=1e-6)
    assert 0 < row["cosine_p"] <= 1


def test_attention_that_follows_cosines_is_found_and_chance_is_not(tmp_path):
    data = a_layer(n_input=3, n=40)
    cosines = cosines_for(data)
    scores = np.where(np.tri(40, dtype=bool), 3 * cosines, -np.inf)
    follows = np.exp(scores)
    follows /= follows.sum(axis=-1, keepdims=True)
    probs = data.probs.copy()
    probs[:, 0] = follows
    rows = table_of(LayerData(**{**vars(data), "probs": probs}), Reading(slice(1, None), True, cosines, 0), tmp_path)
    assert rows[0]["cosine_partial"] > 0.8 and rows[0]["cosine_p"] == pytest.approx(1 / 200)
    assert all(abs(row["cosine_partial"]) < 0.25 for row in rows[1:])


def test_information_by_distance_takes_positions_out(tmp_path):
    """Tokens that share nothing but a strong position embedding have no information at any distance."""
    rng = np.random.default_rng(1)
    state = rng.normal(size=(10, 60, 4)) + 5 * np.sin(np.arange(60)[:, None] * [0.1, 0.2, 0.3, 0.5])
    measure_state(state, Reading(slice(1, None), True, None, 0), [1, 8], tmp_path / "s.safetensors")
    found = read_arrays(tmp_path / "s.safetensors")[0]["information"]
    assert (np.abs(found[:, 0] - found[:, 1]) < 0.06).all()
    assert found[0, 4] == pytest.approx(1)


# ---------------------------------------------------------------------- tokens


def test_one_gram_counts_the_other_inputs():
    ids = np.array([[1, 2, 3, 1], [1, 2, 1, 3], [1, 4, 1, 2]])
    tokens, probs = one_gram(ids, 1)[0]
    assert dict(zip(tokens[0][probs[0] > 0].tolist(), probs[0][probs[0] > 0], strict=True)) == {
        2: 0.5,
        3: 0.25,
        4: 0.25,
    }
    assert tokens[0, 0] == 2
    assert set(tokens[2][probs[2] > 0].tolist()) == {1, 2, 3, 4}  # 3 is followed by nothing there: all their tokens


def test_mixtures_of_known_tokens():
    table = 10 * np.eye(8)
    ids = np.tile(np.arange(8), (2, 1))
    tokens, probs = np.zeros((8, 20), dtype=int), np.zeros((8, 20))
    tokens[:, :2], probs[:, :2] = [3, 4], [0.5, 0.45]
    facts, spectra = mixtures([(tokens, probs)] * 2, ids, table, slice(1, None))
    found = dict(zip(FACTS, facts[0], strict=True))
    assert found["mass"] == pytest.approx(0.95) and found["dominated"] == 1
    assert found["hit"] == pytest.approx(2 / 6)  # after tokens 2 and 3
    assert found["directions"] == pytest.approx(1) and found["rank90"] == 1  # two tokens differ in one direction
    p = np.array([0.5, 0.45]) / 0.95
    assert found["trace_share"] == pytest.approx(100 * (1 - (p**2).sum()) / (100 * 7 / 8))
    assert spectra[0, 0] == pytest.approx(1)


def test_embeddings_beside_random_vectors():
    """Random embeddings are as random vectors are; with a pair planted, neighbours are found."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(500, 32)).astype(np.float32)
    table[7] = table[3] + 0.01 * rng.normal(size=32)
    ids = np.arange(10)[None]
    found, rows = embeddings(table, ids, None, 0)
    assert rows == []
    assert found["entropy"].mean() == pytest.approx(found["entropy_random"].mean(), abs=0.05)
    assert found["nearest"].max() > 0.99 > 0.9 > found["nearest_random"].max()
    assert abs(found["pairs"].mean()) < 0.05 and found["dim"][0] == 32
    assert found["entropy_predicted"] == pytest.approx(np.log(32) - found["norms"] ** 2 / 64, abs=1e-5)


# ---------------------------------------------------------------------- the whole


def captured_by(model, n=5, tokens=48, folder=None, block=None, same=False):
    """A capture of a model of the zoo, which has no tokenizer: in memory, or as a run."""
    site = next(site for site in model.sites if block in (None, site.block))
    words = [str(i) for i in range(tokens)]
    info = {
        "keep": ["probs"],
        "blocks": {site.block: {"mask": site.mask, "query_tokens": words, "key_tokens": words}},
        "layers": {site.block: {str(s.layer): list(range(s.n_heads)) for s in model.sites if s.block == site.block}},
        "origin": [0],
    }
    batches = [{"input_ids": s.stored["input_ids"]} for s in samples_for(model, n, tokens, seed=3)]
    if same:
        batches = [{"input_ids": np.full_like(b["input_ids"], 7)} for b in batches]
    if folder is None:
        return Capture.in_memory([Batch(info, list(b), b.__getitem__) for b in batches])
    run = Run.create(folder, config={"kind": "capture"})
    for i, arrays in enumerate(batches):
        with ArrayWriter(run.batch_path(i), 1, {"headscape": json.dumps(info)}) as writer:
            writer.add("input_ids", arrays["input_ids"])
    return Capture.of_run(run)


@pytest.fixture(scope="module")
def llama():
    model, control = (wrap_module(zoo.make("llama", seed), name="llama") for seed in (0, 1))
    return model, control, gaussian(captured_by(model), model=model, control=control, threads=1)


def test_the_study_on_a_causal_model(llama):
    _, _, result = llama
    frame = result.to_frame()
    assert len(frame) == 8 and list(frame.columns[:3]) == ["block", "layer", "head"]
    assert frame[list(COLUMNS)].notna().all().all()
    assert result.information.shape == (3, 5, 5) and result.distances == [1, 2, 4, 8, 16]
    assert {name for name in result.arrays if name.startswith("depth/")} == {
        f"depth/{name}" for name in (*VERSIONS, "random weights", "random weights, no skip")
    }
    assert result.arrays["depth/trained"].shape == (4, 3, 2)
    assert result.settings["left_out"] == []
    assert len(result.control) == 8 and result.control_information.shape == (3, 5, 5)
    ids = {figure.id for figure in result.figures()}
    assert len(ids) == len(result.figures())
    for finding in result.findings():
        assert finding.text.endswith(".") and "nan" not in finding.text
        assert finding.figure is None or finding.figure in ids
    assert "random weights" in result.overview.columns


def test_spreads_by_depth_are_measured_on_content(llama):
    model, _, result = llama
    samples = samples_for(model, 5, 48, seed=3)[:4]
    states = depth_states(model, samples, skip=False)
    expected = token_spread(states[2, 1, 1:])
    np.testing.assert_allclose(result.arrays["depth/no skip"][1, 2], expected, rtol=1e-4)


def test_findings_follow_from_the_table(llama):
    _, _, result = llama
    by_figure = {f.figure: f for f in result.findings()}
    frame = result.to_frame()
    near = (frame["kurtosis"].abs() <= 0.5) & (frame["skewness"].abs() <= 0.5)
    assert by_figure["score-kurtosis"].holds == (near.mean() >= 0.9)
    assert f"in {near.mean():.0%} of heads" in by_figure["score-kurtosis"].text
    off = np.sqrt(frame["variance_joint"] / frame["variance"]) - 1
    assert by_figure["score-sd"].holds == ((off.abs() <= 0.1).mean() >= 0.9)
    assert ("were shrunk" in by_figure["score-sd"].text) == (frame["score_shrinkage"].max() > 0)
    assert "were shrunk" in by_figure["information"].text  # 5 x 31 pairs in 64 dimensions
    assert by_figure["rank"].holds == ((frame["rank90"] <= np.log(48)).mean() >= 0.9)
    size = median_interval(frame["cosine_partial"].abs())
    assert by_figure["cosine"].holds == (True if size.high < 0.1 else False if size.low >= 0.1 else None)


def test_save_and_load(llama, tmp_path):
    _, _, result = llama
    result.save(tmp_path / "gaussian")
    back = GaussianResult.load(tmp_path / "gaussian")
    assert [f.text for f in back.findings()] == [f.text for f in result.findings()]
    np.testing.assert_array_equal(back.information, result.information)
    (tmp_path / "gaussian" / "heads.csv").unlink()
    with pytest.raises(hs.HeadscapeError, match="run it again"):
        GaussianResult.load(tmp_path / "gaussian")


def test_a_killed_study_goes_on_and_jobs_change_nothing(tmp_path, monkeypatch):
    model = wrap_module(zoo.make("llama"), name="llama")
    captured = captured_by(model, 3, 32, tmp_path / "run")
    calls = []
    whole = gaussian(captured, model=model, threads=1, progress=lambda done, total: calls.append((done, total)))
    assert calls[0][0] == 0 and calls[-1][0] == calls[-1][1]
    files = {p.name: p.read_bytes() for p in (tmp_path / "run" / "gaussian").iterdir()}
    (tmp_path / "run" / "gaussian" / "layer-0001.safetensors").unlink()
    (tmp_path / "run" / "gaussian" / "depth-noskip.safetensors").unlink()
    (tmp_path / "run" / "gaussian" / "result.json").unlink()
    again = gaussian(tmp_path / "run", model=model, threads=1)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run" / "gaussian").iterdir()} == files
    assert again.overview.equals(whole.overview)
    shutil.rmtree(tmp_path / "run" / "gaussian")
    gaussian(tmp_path / "run", model=model, threads=1, jobs=2)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run" / "gaussian").iterdir()} == files
    said = []
    gaussian(tmp_path / "run", model=model, threads=1, batches=2, say=said.append)
    assert any("other settings" in line for line in said)


def test_one_input_and_a_relative_bias(tmp_path):
    """What one input or such a layer cannot tell is left out and said."""
    model = wrap_module(zoo.make("mpnet"), name="mpnet")
    result = gaussian(captured_by(model, 1, 32), model=model, threads=1)
    assert not result.has("variance") and not result.has("covariance_off") and result.has("rank90")
    assert np.isnan(result.information[:, :, 2]).all()
    last = result.findings()[-1].text
    assert "a bias or a cap" in last and "predicts none" in last and "no other input" in last
    assert all("nan" not in f.text for f in result.findings())
    assert "note" in result.to_frame()
    result.figures()


def test_one_input_gives_no_verdict_that_needs_an_error():
    model = wrap_module(zoo.make("bert"), name="bert")
    result = gaussian(captured_by(model, 1, 32), model=model, threads=1)
    found = {f.figure: f for f in result.findings()}
    assert found["information"].holds is None and "one input has no error" in found["information"].text
    assert "falls with distance" not in found["information"].text
    assert found["mixture-spread"].holds is None
    assert "note" not in result.to_frame()  # nothing is amiss


def test_tokens_that_are_all_equal_are_refused_with_a_way_out(tmp_path):
    model = wrap_module(zoo.make("bert"), name="bert")
    with pytest.raises(hs.InputError, match="repeat one token.*; capture other text"):
        gaussian(captured_by(model, 2, 32, same=True), model=model, threads=1)
    reading = Reading(slice(1, None), True, None, 0)
    message = "tokens before the first layer have no Gaussian: the 38 samples are all equal.*; capture inputs"
    with pytest.raises(hs.InputError, match=message):
        measure_state(np.ones((2, 20, 4)), reading, [1, 2], tmp_path / "state-0000.safetensors")


@pytest.mark.parametrize("block", ["encoder", "decoder"])
def test_a_block_of_an_encoder_decoder(block):
    model = wrap_module(zoo.make("bart"), name="bart")
    result = gaussian(captured_by(model, 3, 32, block=block), model=model, threads=1)
    assert result.block == block and result.causal == (block == "decoder") and len(result.heads) == 8
    assert result.has("variance") and result.has("cosine_partial") and result.information.shape[0] == 3
    assert "not one stack" in result.findings()[-1].text
    found = []
    samples = [
        Sample(
            s.arguments | {"decoder_input_ids": torch.cat([torch.tensor([[2]]), s.arguments["input_ids"][:, :-1]], 1)},
            {},
            {},
            [],
        )
        for s in samples_for(model, 3, 32, seed=3)
    ]
    watch_layers(model, samples, block, found.append)
    scores = np.diagonal(found[1].scores[:, 2, 1:, 1:], axis1=1, axis2=2)
    row = result.heads.iloc[6]
    assert (row["layer"], row["head"]) == (1, 2) and row["self_mean"] == pytest.approx(scores.mean(), abs=1e-4)


def test_without_a_model(tmp_path):
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(16), size=(2, 3, 16))
    np.save(tmp_path / "probs.npy", probs)
    hs.import_array(tmp_path / "probs.npy", tmp_path / "run", layout="batch,head,query,key", mask="full")
    result = gaussian(tmp_path / "run")
    assert result.has("rank90") and not result.has("variance")
    assert "all that needs the model" in result.findings()[-1].text
    hs.import_array(
        tmp_path / "probs.npy", tmp_path / "scores", layout="batch,head,query,key", kind="scores", mask="full"
    )
    with pytest.raises(hs.InputError, match="--keep probs,hidden"):
        gaussian(tmp_path / "scores")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"jobs": 0}, "at least 1"), ({"batches": 0}, "at least 1"), ({"block": "encoder"}, "no block 'encoder'")],
)
def test_bad_options_are_named(llama, options, message):
    model, _, _ = llama
    with pytest.raises(hs.InputError, match=message):
        gaussian(captured_by(model), model=model, **options)


def test_short_inputs_and_other_models_are_refused(llama):
    model, _, _ = llama
    with pytest.raises(hs.InputError, match="11 tokens besides the first.*--tokens"):
        gaussian(captured_by(model, 2, 12), model=model)
    with pytest.raises(hs.InputError, match="not the model of this capture"):
        gaussian(captured_by(model), model=wrap_module(zoo.make("bert"), name="bert"))
    broken = wrap_module(zoo.make("bert"), name="bert")
    captured = captured_by(broken)
    next(broken.module.parameters()).data[0] = float("nan")
    with pytest.raises(hs.InputError, match="holds NaN or infinite values"):
        gaussian(captured, model=broken)


@pytest.mark.models
def test_the_study_on_images(tmp_path, load):
    model = load("vit-fmnist")
    hs.capture(model, hs.sample_images(), batches=4, out=tmp_path / "run")
    result = gaussian(tmp_path / "run", model=model, threads=1)
    assert result.has("variance") and not result.has("cosine_partial")
    assert "not text" in result.findings()[-1].text
    assert GaussianResult.load(tmp_path / "run" / "gaussian").n_token == 50


def test_the_command(tmp_path):
    from typer.testing import CliRunner

    import headscape.cli.gaussian  # noqa: F401 - registers the command
    from headscape.cli.shared import app

    probs = np.random.default_rng(0).dirichlet(np.ones(16), size=(2, 3, 16))
    np.save(tmp_path / "probs.npy", probs)
    hs.import_array(tmp_path / "probs.npy", tmp_path / "run", layout="batch,head,query,key", mask="full")
    asked = CliRunner().invoke(app, ["gaussian", str(tmp_path / "run"), "-q"])
    assert asked.exit_code == 0 and "singular values for 90 %" in " ".join(asked.output.split())
    parsed = json.loads(CliRunner().invoke(app, ["gaussian", str(tmp_path / "run"), "--json", "-q"]).output)
    assert len(parsed["heads"]) == 3 and parsed["findings"]
    refused = CliRunner().invoke(app, ["gaussian", str(tmp_path / "run"), "--random-weights"])
    assert isinstance(refused.exception, hs.InputError) and "was imported" in str(refused.exception)
