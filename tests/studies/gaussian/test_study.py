"""The Gaussian study: the whole of it on small models, with any engine, and the command.

Also tests studies.gaussian.units.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import headscape as hs
import zoo
from headscape.attention.depth import by_depth, in_double
from headscape.attention.intervene import scale_scores
from headscape.attention.loss import task_loss, tasks_of
from headscape.attention.models import wrap_module
from headscape.attention.samples import Sample, replayed
from headscape.attention.watching import watch_layers
from headscape.captures import Capture
from headscape.cli import gaussian as command
from headscape.cli.shared import app
from headscape.papers import claims
from headscape.statistics.layer import COLUMNS
from headscape.statistics.mixture import token_spread
from headscape.storage import read_arrays
from headscape.studies import open_result
from headscape.studies.gaussian.result import GaussianResult
from headscape.studies.gaussian.study import gaussian
from headscape.studies.gaussian.units import FACTORS, VERSIONS, Task, embedded, measure_temperature, measure_version
from watched import captured_by, samples_for


@pytest.fixture(scope="module")
def llama():
    model, control = (wrap_module(zoo.make("llama", seed), name="llama") for seed in (0, 1))
    return model, control, gaussian(captured_by(model), model=model, control=control, threads=1)


def test_the_study_on_a_causal_model(llama):
    _, _, result = llama
    frame = result.to_frame()
    assert len(frame) == 8 and list(frame.columns[:3]) == ["block", "layer", "head"]
    assert frame[list(COLUMNS)].notna().all().all()
    assert result.folds.shape == (5, 8, len(COLUMNS)) and np.isfinite(result.folds).all()
    assert result.information.shape == (3, 5, 6) and result.distances == [1, 2, 4, 8, 16]
    assert {name for name in result.arrays if name.startswith("depth/")} == {
        f"depth/{name}" for name in (*VERSIONS, "random weights", "random weights, no skip")
    }
    assert result.arrays["depth/trained"].shape == (5, 3, 2)
    assert result.settings["left_out"] == []
    assert len(result.control) == 8 and result.control_information.shape == (3, 5, 6)
    assert "random weights" in result.overview.columns


def test_spreads_by_depth_are_measured_on_content_and_in_float64_without_skip(llama):
    model, _, result = llama
    samples = samples_for(model, 5, 48, seed=3)
    with in_double(model):
        states = by_depth(model, samples, skip=False)
    np.testing.assert_allclose(result.arrays["depth/no skip"][1, 2], token_spread(states[2][1, 1:]), rtol=1e-12)
    with in_double(model):
        alone, half = by_depth(model, samples, skip=False), by_depth(model, samples, skip=0.5)
    # the first layer attends alike; half of its input beside half of what it gives, as large as its input
    np.testing.assert_allclose(half[1], (half[0] + alone[1]) / 2, rtol=1e-12)
    np.testing.assert_allclose(result.arrays["depth/skip 1/2"][1, 1], token_spread(half[1][1, 1:]), rtol=1e-6)
    assert result.arrays["divergence/trained"].shape == (3, 6, 2) and result.arrays["divergence/no skip"].shape[1] == 1
    states = by_depth(model, samples)
    np.testing.assert_allclose(result.arrays["depth/trained"][1, 2], token_spread(states[2][1, 1:]), rtol=1e-6)
    assert result.arrays["floor/no skip"][0] == 256 * 2**-52 and result.arrays["floor/trained"][0] == 256 * 2**-23


def test_part_of_the_skip_connection_is_measured_in_float64_where_spreads_are_small(llama, tmp_path, monkeypatch):
    model, _, result = llama
    assert result.arrays["floor/skip 1/2"][0] == 256 * 2**-23 and result.arrays["depth/skip 1/2"][..., 0].min() > 0.01
    task = Task(model, captured_by(model), "decoder", 5, slice(1, None), 0, 1)
    monkeypatch.setattr("headscape.studies.gaussian.units.CLEAR", 1e6)
    measure_version(tmp_path / "half", task, {"skip": 0.5})
    found = read_arrays(tmp_path / "half")[0]
    with in_double(model):
        half = by_depth(model, samples_for(model, 5, 48, seed=3), skip=0.5)
    np.testing.assert_allclose(found["depth"][1, 1], token_spread(half[1][1, 1:]), rtol=1e-12)
    assert found["floor"][0] == 256 * 2**-52
    for name, part in (("depth", "depth"), ("position", "position"), ("divergence", "divergence")):
        np.testing.assert_allclose(result.arrays[f"{name}/skip 1/2"], found[part], rtol=1e-4)


def test_the_model_by_depth_is_the_same_in_a_pass_of_its_own(llama, tmp_path):
    """The slow twin of what the pass through the layers measures beside them."""
    model, _, result = llama
    measure_version(tmp_path / "own", Task(model, captured_by(model), "decoder", 5, slice(1, None), 0, 1), {})
    found = read_arrays(tmp_path / "own")[0]
    for name in ("depth", "position", "divergence"):
        np.testing.assert_allclose(result.arrays[f"{name}/trained"], found[name], rtol=1e-4, atol=1e-6)


def test_embeddings_are_taken_at_the_scale_that_the_model_uses():
    """Gemma's module multiplies the table by the root of the hidden size; the first layer sees the product."""
    model = wrap_module(zoo.make("gemma3"), name="gemma3")
    samples = samples_for(model, 2, 20)
    ids = np.stack([sample.stored["input_ids"] for sample in samples])
    np.testing.assert_allclose(embedded(model, ids), by_depth(model, samples)[0], rtol=1e-6)
    table = model.module.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_allclose(embedded(model), table * 32**0.5, rtol=1e-5)
    result = gaussian(captured_by(model, 2, 32), model=model, threads=1)
    lengths = np.linalg.norm(table, axis=1) * 32**0.5
    np.testing.assert_allclose(np.sort(result.arrays["embedding/norms"]), np.sort(lengths), rtol=1e-5)


def test_save_and_load(llama, tmp_path):
    _, _, result = llama
    result.save(tmp_path / "gaussian")
    back = GaussianResult.load(tmp_path / "gaussian")
    assert back.findings() == result.findings()
    np.testing.assert_array_equal(back.information, result.information)
    (tmp_path / "gaussian" / "heads.csv").unlink()
    with pytest.raises(hs.HeadscapeError, match="run `headscape gaussian` again"):
        GaussianResult.load(tmp_path / "gaussian")


def files_of(path):
    return {p.relative_to(path): p.read_bytes() for p in (path / "gaussian").rglob("*") if p.is_file()}


def test_a_killed_study_resumes_and_jobs_change_nothing(tmp_path):
    model = wrap_module(zoo.make("llama"), name="llama")
    captured_by(model, 3, 32, tmp_path / "run")
    calls = []
    whole = gaussian(tmp_path / "run", model=model, threads=1, progress=lambda done, total: calls.append((done, total)))
    assert calls[0][0] == 0 and calls[-1][0] == calls[-1][1]
    files = files_of(tmp_path / "run")
    units = tmp_path / "run" / "gaussian" / "units"
    assert {p.name.rsplit("-", 1)[0] for p in units.iterdir()} == {
        *("layer-0000", "layer-0001", "state-0000", "state-0001", "state-0002", "depth-divergence", "last", "tokens")
    }
    # some of what the pass writes, then what it writes beside the layers alone
    for lost in (("layer-0001-*", "state-0000-*", "tokens-*"), ("depth-divergence-*",), ("last-*", "tokens-*")):
        for path in [path for pattern in (*lost, "../*/result.json") for path in units.glob(pattern)]:
            path.unlink()
        again = gaussian(tmp_path / "run", model=model, threads=1)
        assert files_of(tmp_path / "run") == files and again.overview.equals(whole.overview)
    with pytest.raises(hs.InputError, match="cannot be resumed: batches was 3 and is 2"):
        gaussian(tmp_path / "run", model=model, threads=1, batches=2, resume=True)
    assert files_of(tmp_path / "run") == files
    assert open_result(tmp_path / "run", "gaussian").findings() == whole.findings()


@pytest.mark.parametrize("made", ["saved", "by hand"])
def test_jobs_change_nothing(made, tmp_path):
    """Layers in two processes, and the versions of a model that has files; one without stays in this process."""
    model = wrap_module(zoo.make("llama"), name="llama")
    if made == "saved":
        model.module.save_pretrained(tmp_path / "model")
        model = hs.load_model(tmp_path / "model", device="cpu")
    said, found = [], []
    for jobs in (1, 2):
        captured_by(model, 3, 32, tmp_path / f"{jobs}")
        gaussian(tmp_path / f"{jobs}", model=model, threads=1, jobs=jobs, say=said.append)
        found.append(files_of(tmp_path / f"{jobs}"))
    assert found[0] == found[1] and len(found[0]) > 15
    assert any("units run in this one" in line for line in said) == (made == "by hand")


def test_one_input_and_a_relative_bias():
    """What one input or such a layer cannot tell is left out and said."""
    model = wrap_module(zoo.make("mpnet"), name="mpnet")
    result = gaussian(captured_by(model, 1, 32), model=model, threads=1)
    assert not result.has("variance") and not result.has("covariance_off") and result.has("rank90")
    assert result.information.shape[2] == 1 and result.folds.shape[0] == 0
    last = result.findings()[-1].text
    assert {"gaussian.scores", "gaussian.chain_mixing"} < set(result.apart) < set(claims())
    assert not {f.claim for f in result.findings()} & set(result.apart)
    assert "a bias or a cap" in last and "predicts none" in last and "no other input" in last
    assert all("nan" not in f.text for f in result.findings())
    assert "note" in result.to_frame()
    result.figures()


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


def imported(tmp_path, **options):
    probs = np.random.default_rng(0).dirichlet(np.ones(16), size=(2, 3, 16))
    np.save(tmp_path / "probs.npy", probs)
    return hs.import_array(
        tmp_path / "probs.npy", tmp_path / "run", layout="batch,head,query,key", mask="full", **options
    )


def test_without_a_model(tmp_path):
    imported(tmp_path)
    result = gaussian(tmp_path / "run")
    assert result.has("rank90") and not result.has("variance") and result.folds.shape[:2] == (2, 3)
    assert "all that needs the model" in result.findings()[-1].text
    assert result.to_frame()["note"].unique().tolist() == ["the model was not loaded"]


def test_hidden_states_without_a_model(tmp_path):
    from tiny import captured

    _, cap = captured("llama", keep=("hidden",), tokens=20, batches=2)
    result = gaussian(cap, model=None)
    assert result.information.shape == (3, 4, 3) and not result.has("rank90") and result.n_token == 20
    assert len(result.heads) == 8 and [f.claim for f in result.findings() if f.claim] == ["gaussian.distance"]


def test_inputs_of_different_lengths_without_a_model(tmp_path):
    from tiny import captured

    _, one = captured("llama", keep=("hidden", "probs"), tokens=20)
    _, two = captured("llama", keep=("hidden", "probs"), tokens=21)
    with pytest.raises(hs.InputError, match="differ in length"):
        gaussian(Capture.in_memory([one.batch(0), two.batch(0)]), model=None)


def test_nothing_kept_that_could_be_measured(tmp_path):
    imported(tmp_path, kind="scores")
    with pytest.raises(hs.InputError, match="--keep probs,hidden"):
        gaussian(tmp_path / "run")
    assert not (tmp_path / "run" / "gaussian").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"jobs": 0}, "at least 1"),
        ({"batches": 0}, "at least 1"),
        ({"block": "encoder"}, "no block 'encoder'"),
        ({"control": True, "model": None}, "beside the model"),
        ({"engine": "dask"}, "only in memory"),
    ],
)
def test_bad_options_are_named(llama, options, message):
    model, _, _ = llama
    with pytest.raises(hs.InputError, match=message):
        gaussian(captured_by(model), **{"model": model} | options)


def test_inputs_and_models_that_will_not_do_leave_no_folder(llama, tmp_path):
    model, _, _ = llama
    other = wrap_module(zoo.make("bert"), name="bert")
    broken = wrap_module(zoo.make("llama"), name="llama")
    assert broken.sites
    next(broken.module.parameters()).data[0] = float("nan")
    for i, (asked, shape, message) in enumerate(
        [
            (model, {"tokens": 12}, "11 tokens besides the first.*--tokens"),
            (model, {"same": True}, "repeat one token.*; capture other text"),
            (other, {}, "not the model of this capture"),
            (broken, {}, "holds NaN or infinite values"),
        ]
    ):
        captured_by(model, 2, folder=tmp_path / f"{i}", **{"tokens": 32} | shape)
        with pytest.raises(hs.InputError, match=message):
            gaussian(tmp_path / f"{i}", model=asked)
        assert not (tmp_path / f"{i}" / "gaussian").exists()


@pytest.mark.models
def test_the_study_on_images(tmp_path, load):
    model = load("vit-fmnist")
    hs.capture(model, hs.sample_images(), batches=4, out=tmp_path / "run")
    result = gaussian(tmp_path / "run", model=model, threads=1)
    assert result.has("variance") and not result.has("cosine_partial")
    assert "not text" in result.findings()[-1].text
    assert open_result(tmp_path / "run", "gaussian").n_token == 50


def test_the_command(tmp_path):
    assert command.gaussian  # registered by its import
    imported(tmp_path)
    asked = CliRunner().invoke(app, ["gaussian", str(tmp_path / "run"), "-q"])
    assert asked.exit_code == 0 and "singular values for 90 %" in " ".join(asked.output.split())
    parsed = json.loads(CliRunner().invoke(app, ["gaussian", str(tmp_path / "run"), "--json", "-q"]).stdout)
    assert list(parsed) == ["findings", "overview", "heads"] and len(parsed["heads"]) == 3 and parsed["findings"]
    for options, message in (([], "was imported"), (["--no-model"], "beside the model")):
        refused = CliRunner().invoke(app, ["gaussian", str(tmp_path / "run"), "--random-weights", *options])
        assert isinstance(refused.exception, hs.InputError) and message in str(refused.exception)


def test_the_temperature_of_a_head_is_that_of_the_model_with_its_scores_scaled(llama, tmp_path):
    model, _, result = llama
    captured = captured_by(model)
    measure_temperature(tmp_path / "unit", Task(model, captured, "decoder", 2, slice(1, None), 0, 1))
    (found,) = read_arrays(tmp_path / "unit")[0].values()
    assert found.shape == (2, len(FACTORS), 8)
    sample = replayed(model, captured)[1]
    for k, head in ((0, (0, 0)), (6, (1, 2))):
        with torch.no_grad(), scale_scores(model, [head], 2.0):
            scaled = task_loss(model, tasks_of(model, [sample])[0])[0][0]
        with torch.no_grad():
            own = task_loss(model, tasks_of(model, [sample])[0])[0][0]
        assert found[1, 1, k] == pytest.approx(float(scaled - own), abs=1e-6)
    planted = result.heads["temperature"].to_numpy() * np.ones((8, 2, 1))
    judged = dataclasses.replace(result, arrays={**result.arrays, "temperature/changes": planted})
    said = {f.claim: f.verdict for f in judged.findings()}
    assert said["gaussian.temperature"] == "holds" and "temperature" in {f.id for f in judged.figures()}
    other = dataclasses.replace(result, arrays={**result.arrays, "temperature/changes": -planted})
    assert {f.claim: f.verdict for f in other.findings()}["gaussian.temperature"] == "does not hold"
    few = dataclasses.replace(result, arrays={**result.arrays, "temperature/changes": planted[:4]})
    assert {f.claim: f.verdict for f in few.findings()}["gaussian.temperature"] == "cannot tell"
