"""The few-shot study: the whole of it on tiny models, any engine, and the command."""

import json
import shutil

import numpy as np
import pytest
from scipy.stats import t
from typer.testing import CliRunner

import headscape as hs
from headscape.attention.mean_maps import mean_maps
from headscape.cli import prompt as command
from headscape.cli.shared import app
from headscape.report.drawing import draw
from headscape.report.gather import gather
from headscape.report.pictures import picture
from headscape.runs import Run
from headscape.statistics.maps import row_entropy
from headscape.studies import open_result
from headscape.studies.prompt.figures import _line
from headscape.studies.prompt.maps import MEASURES, measure_map
from headscape.studies.prompt.result import PromptResult
from headscape.studies.prompt.study import prompt, request
from headscape.studies.prompt.text import choose_shots, find_entry, plain_text, read_table
from headscape.studies.prompt.versions import encode
from writers import saved, tiny

TABLE = read_table()
ANT = find_entry(TABLE, "Ant")
OPTIONS = {"shots": 2, "prompts": 2, "alphas": (0.5, 2.0), "permutations": 19, "threads": 1, "sweep": (0, 1, 3)}
ARRAYS = ("measures", "losses", "weighted", "uniform", "distance", "cosine", "token_maps", "token_cosines")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    model = tiny()
    path = tmp_path_factory.mktemp("prompt") / "run"
    return model, path, prompt(model, path, control=tiny(seed=1), **OPTIONS)


def test_a_result_says_and_keeps_what_was_found(done):
    model, path, result = done
    assert result.versions == [
        *("trained", "random weights", "alpha 0.5", "alpha 2", "truncated", "flattened", "random bases"),
    ]
    assert result.targets[0] == "Ant" and len(result.targets) == 2
    assert result.measures.shape == (7, 2, 3, len(MEASURES)) and np.isfinite(result.measures).all()
    assert result.cosine.shape == (2, 2, 3, 6) and result.losses.shape == (7, 2)
    assert result.word_maps["trained"].shape == (3, len(result.words), len(result.words))
    assert result.words[:1] == [choose_shots(TABLE, ANT, 2)[0].word]
    assert sorted(set(result.word_shots)) == [0, 1, 2] and len(result.word_shots) == len(result.words)
    run = Run.open(path)
    assert run.meta["config"] == {"kind": "prompt", "seed": 0} and run.model_source == "tiny-llama"
    again = open_result(path, "prompt")
    assert isinstance(again, PromptResult)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(again, name), getattr(result, name))
    assert again.findings() == result.findings() and again.clues == dict(result.clues)
    frame = result.to_frame()
    assert len(frame) == 7 * 3 and frame["cosine_partial"].isna().sum() == 5 * 3
    assert (result.by_version()["loss"] > 0).all()


def test_a_word_in_several_rows_is_one_prompt(tmp_path):
    """Six prompts that are two would make intervals of n = 6."""
    rows = [
        ("Ant", "it digs"),
        *[("Bee", "it hums")] * 3,
        ("bee", "it stings"),
        ("Cat", "it purrs"),
        ("Bee", "it hums"),
    ]
    table = tmp_path / "words.csv"
    table.write_text("word,clue,category\n" + "".join(f"{word},{clue},animal\n" for word, clue in rows))
    _, targets = request("Ant", shots=1, table=table, prompts=6)
    assert sorted(target.word for target in targets) == ["Ant", "Bee", "Cat"]
    assert len({target.word for target in request("Ant", prompts=6)[1]}) == 6


def test_edits_change_the_model_and_leave_no_trace(done):
    model, _, result = done
    base = result.measures[0]
    for v, name in enumerate(result.versions[1:], start=1):
        assert np.abs(result.measures[v] - base).max() > 1e-3, name
    np.testing.assert_array_equal(result.measures, prompt(model, None, control=tiny(seed=1), **OPTIONS).measures)


def test_scaled_spectra_are_scaled_scores_in_the_first_layer(done):
    """In layer 0 the input is fixed: alpha = 2 is the same as scores times 4."""
    model, _, result = done
    ids, layout = encode(model, plain_text(ANT, choose_shots(TABLE, ANT, 2)).with_answer(result.clues["trained"][0]))
    with hs.scale_scores(model, [(0, h) for h in range(4)], 4.0):
        expected = measure_map(mean_maps(model, ids, row_entropy).mean[0], layout)
    found = result.measures[result.versions.index("alpha 2"), 0, 0]
    for name in ("self", "within", "entropy", "largest"):
        assert found[MEASURES.index(name)] == pytest.approx(expected[name], rel=1e-4)


def files_of(path):
    return {p.relative_to(path): p.read_bytes() for p in (path / "prompt").rglob("*") if p.is_file()}


def test_a_study_resumes_where_it_stopped(done, tmp_path):
    model, path, _ = done
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    before = files_of(copy)
    units = sorted((copy / "prompt" / "units").glob("version-*.safetensors"))
    assert len(units) == 7
    times = {unit: unit.stat().st_mtime_ns for unit in units[2:]}
    for unit in units[:2]:
        unit.unlink()
    prompt(model, copy, control=tiny(seed=1), **OPTIONS)
    assert files_of(copy) == before and {unit: unit.stat().st_mtime_ns for unit in times} == times
    with pytest.raises(hs.InputError, match="cannot be resumed: shots was 2 and is 1"):
        prompt(model, copy, control=tiny(seed=1), **OPTIONS | {"shots": 1}, resume=True)
    with pytest.raises(hs.InputError, match="is a run of .*, not of .*; name another directory"):
        prompt(tiny(seed=5), copy, **OPTIONS)


def test_jobs_change_nothing(tmp_path):
    """Versions in two processes, which load the model, and draw its random weights, themselves."""
    model = saved(tmp_path / "model")
    found = []
    for jobs in (1, 2):
        prompt(model, tmp_path / f"{jobs}", control=True, **OPTIONS | {"prompts": 1, "alphas": (2.0,)}, jobs=jobs)
        found.append(files_of(tmp_path / f"{jobs}"))
    assert found[0] == found[1] and len(found[0]) > 8


def test_every_figure_can_be_drawn(done):
    _, _, result = done
    section = gather([result]).sections[0]
    assert not section.problems and section.rows is None
    for spec in section.figures:
        if spec.kind != "table":
            assert draw(spec, section) is not None and picture(spec, section)
    ids = [spec.id for spec in section.figures]
    assert {f.figure for f in section.findings if f.figure} <= set(ids) and len(set(ids)) == len(ids)


def test_intervals_of_shares_are_drawn_between_0_and_1(done):
    """Of two prompts an interval reaches far above 1, where no share lies."""
    _, _, result = done
    drawn = {spec.id: spec.data["series"] for spec in result.figures() if spec.kind == "lines"}
    for name in ("masses", "shots", "self-mass", "entropy", "sweep-measures"):
        ends = [line[end] for line in drawn.get(name, []) for end in ("low", "high") if end in line]
        assert all(((end >= 0) & (end <= 1)).all() for end in ends)
        assert ends or name == "sweep-measures"


def test_maps_have_a_gap_between_shots(done):
    _, _, result = done
    panel = next(spec for spec in result.figures() if spec.id == "word-maps").data["panels"][0]
    assert [token for token in panel["key_tokens"] if token] == result.words
    gaps = [i for i, token in enumerate(panel["key_tokens"]) if not token]
    assert len(gaps) == 2 and np.isnan(panel["values"][gaps]).all() and np.isnan(panel["values"][:, gaps]).all()
    kept = np.delete(np.delete(panel["values"], gaps, axis=0), gaps, axis=1)
    lower = np.tril_indices(len(result.words))
    np.testing.assert_array_equal(kept[lower], result.word_maps["trained"][0][lower])
    assert np.isnan(kept[0, 1])


def test_attention_beside_the_cosines_has_one_scale(done):
    _, _, result = done
    panels = next(spec for spec in result.figures() if spec.id == "cosine-maps").data["panels"]
    high = {panel.get("high") for panel in panels[1:]}
    assert len(panels) > 2 and high == {max(np.nanmax(panel["values"]) for panel in panels[1:])}


def test_one_prompt_that_is_unlike_the_others_widens_no_band_of_correlations_beyond_students():
    """Of one sign by chance, and over orders of magnitude: the interval for skewed inputs would reach 1."""
    row = np.array([0.1, 1e-4])
    drawn = _line("a", row[:, None], least=-1.0)
    reach = t.ppf(0.975, 1) * row.std(ddof=1) / 2**0.5
    assert drawn["high"][0] == pytest.approx(row.mean() + reach)


def test_qk_norm_is_said_and_scores_are_scaled_instead():
    result = prompt(tiny("qwen3"), None, **OPTIONS | {"prompts": 1, "alphas": (2.0,)})
    assert result.law_exception.startswith("QK-norm (q_norm, k_norm)")
    texts = [finding.text for finding in result.findings()]
    assert any("Scores were multiplied by alpha^2 instead" in text for text in texts)
    assert any("With scores times 4" in text for text in texts)
    assert result.change("alpha 2", "entropy").value < -0.01
    assert "random weights" not in result.versions  # no control was given


def test_no_shots_at_all():
    result = prompt(tiny(), None, **OPTIONS | {"shots": 0, "prompts": 1, "alphas": ()})
    assert not any(spec.id == "shots" for spec in result.figures())
    assert len(result.findings()) == 8  # two of them on the sweep over numbers of examples


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word": "Elefant"}, "nearest are"),
        ({"shots": 99}, "99 shots were requested"),
        ({"alphas": (1.0,)}, "other than 1"),
        ({"alphas": (-2.0,)}, "above 0"),
        ({"alphas": (float("nan"),)}, "above 0"),
        ({"alphas": (2.0, 2.0001)}, "must differ"),
        ({"prompts": 0}, "at least 1"),
        ({"chat": True}, "no chat template"),
        ({"jobs": 0}, "jobs must be at least 1"),
    ],
)
def test_a_refused_request_leaves_no_folder(options, message, tmp_path):
    with pytest.raises(hs.InputError, match=message):
        prompt(tiny(), tmp_path / "runs" / "new", **OPTIONS | options)
    assert not list(tmp_path.iterdir())


def test_a_network_whose_matrices_cannot_be_edited_leaves_no_folder(tmp_path):
    model = tiny()
    for module in model.module.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = float("inf")  # nothing passes: no map can be told from another
    with pytest.raises(hs.InputError, match="no q, k matrix of this network is understood"):
        prompt(model, tmp_path / "runs" / "new", **OPTIONS)
    assert not list(tmp_path.iterdir())


def test_an_engine_that_cannot_start_leaves_no_folder(tmp_path):
    from headscape.studies.work.engines import make_engine

    engine = make_engine("dask", 1, "tcp://127.0.0.1:9")  # nobody listens there
    with pytest.raises(hs.InputError, match="no Dask scheduler answered"):
        prompt(tiny(), tmp_path / "runs" / "new", **OPTIONS, engine=engine)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--word", "Antt"], "nearest are Ant"),
        (["--shots", "50"], "50 shots were requested"),
        (["--table", "nothing.csv"], "no table"),
        (["--alphas", "a,b"], "not a list of numbers"),
        (["--alphas", "1"], "other than 1"),
    ],
)
def test_the_command_says_what_is_wrong_before_a_model_is_loaded(arguments, message, tmp_path):
    assert command.prompt  # registered by its import
    result = CliRunner().invoke(app, ["prompt", "no-such-model", "--out", str(tmp_path / "run"), *arguments])
    assert isinstance(result.exception, hs.InputError)
    assert message in str(result.exception) and result.exception.exit_code == 2
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr("headscape.cli.records.Loading.load", lambda *_: tiny())
    path = tmp_path / "run"
    asked = ["prompt", "tiny", "--out", str(path), "--shots", "1", "--prompts", "1", "--alphas", "2", "--no-control"]
    asked += ["--threads", "1"]
    shown = CliRunner().invoke(app, [*asked, "-q"])
    assert (
        shown.exit_code == 0 and "A clue for Ant" in shown.output and "[cannot tell:" in " ".join(shown.output.split())
    )
    found = json.loads(CliRunner().invoke(app, [*asked, "--json", "-q"]).stdout)
    assert list(found) == ["run", "prompt", "clues", "findings", "versions", "layers"]
    assert found["run"] == str(path) and [row["version"] for row in found["versions"]][:2] == ["trained", "alpha 2"]


@pytest.mark.models
def test_the_command_refuses_an_encoder(tmp_path):
    result = CliRunner().invoke(app, ["prompt", "minilm-l6", "--out", str(tmp_path / "run")])
    assert isinstance(result.exception, hs.InputError) and "not a causal language model" in str(result.exception)
    assert not list(tmp_path.iterdir())
