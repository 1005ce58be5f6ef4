"""The organize study on planted runs: the null, the consensus, entropies, roles, resuming.

Also tests studies.organize.heads, studies.organize.summary, studies.organize.units.
"""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest

import headscape as hs
from headscape.attention.circuits import copying_scores
from headscape.studies import load_results
from headscape.studies.organize.clusters import FolderRole
from headscape.studies.organize.result import ENTROPIES, OrganizeResult
from headscape.studies.organize.study import organize
from headscape.studies.organize.units import shuffled_rows
from headscape.studies.work.folder import kept_studies, newest_by_block
from planted_runs import make_run
from tiny import captured


def planted_batches(n_batches=3, noise=1.0, shape=(32, 32, 16)):
    """The same hidden groups of heads in every batch, the rest drawn anew; as (batch, head, query, key)."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(4), shape[2] // 4)
    batches = []
    for _ in range(n_batches):
        profiles = rng.standard_normal((4, *shape[:2]))
        scores = 2 * profiles[groups] + noise * rng.standard_normal((shape[2], *shape[:2]))
        scores = np.where(np.tri(*shape[:2], dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        batches.append(weights / weights.sum(axis=-1, keepdims=True))
    return np.array(batches, dtype=np.float32), groups


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("organize")
    batches, groups = planted_batches()
    np.save(folder / "a.npy", batches)
    hs.import_array(folder / "a.npy", folder / "run", layout="batch,head,query,key", dtype="float32")
    return folder / "run", groups


def test_the_null_keeps_rows_and_loses_places():
    X = hs.AttentionTensor(planted_batches(1)[0][0].transpose(1, 2, 0), mask="causal")
    null = shuffled_rows(X, 3)
    assert not null.values[~X.present].any()
    np.testing.assert_array_equal(np.sort(null.values, axis=1), np.sort(X.values, axis=1))
    assert not np.array_equal(null.values, X.values)
    assert not np.array_equal(shuffled_rows(X, 4).values, null.values)
    np.testing.assert_array_equal(shuffled_rows(X, 3).values, null.values)
    # heads are shuffled apart: the same keys no longer line up
    assert np.corrcoef(null.values[20, :21, 0], null.values[20, :21, 1])[0, 1] < 0.9


def test_the_null_is_no_more_stable_than_itself(run):
    """Also where the null is as stable as can be: heads in the same order in every batch, far above chance."""
    path, _ = run
    result = organize(path)
    wobble = 1e-3 * np.random.default_rng(0).normal(size=(8, *result.entropies.shape[1:]))
    stable = np.arange(result.entropies.shape[-1]) + wobble
    null = replace(result, entropies=result.null_entropies)
    ranked = replace(result, entropies=stable, null_entropies=stable[::-1])
    assert ranked.stability["l1_top"].jaccard_bottom.low > ranked.stability["l1_top"].chance
    for same in (null, ranked):
        verdicts = [finding.verdict for finding in same.findings() if finding.claim == "organize.stability"]
        assert verdicts == ["cannot tell"] * 2  # by l1_top and by l1_all


def test_the_consensus_tree_finds_the_planted_groups(run):
    from sklearn.metrics import adjusted_rand_score

    path, groups = run
    result = organize(path)
    best = max(adjusted_rand_score(groups, result.tree.level(level)) for level in range(result.tree.n_levels))
    assert best == 1.0
    assert result.effect.low > 1
    assert result.to_frame().shape[0] == 16 and {"l1_top", "l1_rel_null", "role"} <= set(result.to_frame())


def test_entropies_are_those_of_the_batch_on_its_own_trees(run):
    path, _ = run
    result = organize(path)
    X = hs.open_capture(path).tensor(1)
    fit = hs.Questionnaire().fit(X)
    own = hs.head_entropies(X, fit.trees_, n_basis=16)
    np.testing.assert_allclose(result.entropies[1], own[list(ENTROPIES)].to_numpy().T, rtol=1e-12)
    np.testing.assert_array_equal(result.query_trees[1].order, fit.orders_.query)


def test_l1_top_takes_the_papers_share_of_the_coefficients():
    """400 of 256 x 256; at 50 tokens 400 would be 16 % of all, and l1_top would rank as l1_all does."""
    for n, asked, expected in ((50, None, 16), (128, None, 100), (256, None, 400), (50, 400, 400)):
        batch = np.full((1, 1, n, n), 1 / n, dtype=np.float32)
        assert organize(hs.from_attentions([batch]), n_basis=asked).settings["n_basis"] == expected


def test_what_is_known_beforehand_is_no_score(run):
    """Rows sum to 1: the mean is one number for all heads, and what is constant over keys is 0."""
    path, _ = run
    result = organize(path)
    assert not {"dc", "dc_null"} & (set(result.to_frame()) | set(result.table2()))
    X, trees = hs.open_capture(path).tensor(0), (result.query_trees[0], result.key_trees[0])
    C = np.abs(hs.haar_transform(X.values, [*trees, None]))
    assert C[1:, 0].max() < 1e-5  # the rest of what is left out
    np.testing.assert_allclose(
        np.sort(hs.decay_curve(X, trees, per="head", n=None, without=1), axis=0),
        np.sort(C[:, 1:].reshape(-1, 16), axis=0),
    )


def test_figure_1_is_organized_by_the_head_itself(run):
    path, _ = run
    captured = hs.Capture.in_memory([hs.open_capture(path).batch(0)])  # the run keeps one study
    X = captured.tensor(0)
    result = organize(captured, heads=[f"{X.heads[3].layer}.{X.heads[3].head}"])
    (head,) = result.maps
    values = X.values[:, :, 3]
    filled = np.where(X.present, values, (values.sum(axis=1) / X.present.sum(axis=1))[:, None])
    own = hs.organize_matrix(filled)
    np.testing.assert_array_equal(result.maps[head]["query_order"], own.row_order)
    figure = next(f for f in result.figures() if f.id == "organized-maps")
    natural, organized = figure.data["panels"]
    np.testing.assert_allclose(
        np.nan_to_num(organized["values"]), np.nan_to_num(natural["values"])[np.ix_(own.row_order, own.col_order)]
    )


def test_circuits_are_drawn_head_by_head_where_the_model_was_asked(run):
    path, _ = run
    result = organize(hs.Capture.in_memory([hs.open_capture(path).batch(0)]))
    assert not {"score-parts", "copying"} & {f.id for f in result.figures()}
    n = len(result.heads)
    distance, pair = np.linspace(0, 0.5, n), np.where(np.arange(n) == 2, np.nan, 0.4)
    asked = replace(
        result, heads=result.heads.assign(score_distance=distance, score_pair=pair, copying=0.1, induction=0.2)
    )
    drawn = {f.id: f for f in asked.figures()}
    parts = drawn["score-parts"].data
    np.testing.assert_array_equal(parts["x"], np.delete(distance, 2))  # uniform rows have no parts
    assert parts["names"][:3] == ["0.0", "0.1", "0.3"] and len(parts["group"]) == n - 1
    assert drawn["copying"].data["y"].tolist() == [0.1] * n


def test_saved_and_loaded_results_are_equal(run):
    path, _ = run
    result = organize(path)
    loaded = OrganizeResult.load(path / "organize")
    assert loaded.tree == result.tree and loaded.settings == result.settings
    assert loaded.query_trees == result.query_trees and loaded.key_trees == result.key_trees
    np.testing.assert_array_equal(loaded.entropies, result.entropies)
    assert [f.text for f in loaded.findings()] == [f.text for f in result.findings()]
    assert [f.id for f in loaded.figures()] == [f.id for f in result.figures()]
    pd.testing.assert_frame_equal(loaded.to_frame(), result.to_frame())
    (again,) = load_results(hs.Run.open(path))
    assert isinstance(again, OrganizeResult)


def test_any_number_of_jobs_and_threads_gives_the_same_bytes(run, tmp_path):
    import shutil

    path, _ = run
    files = {}
    for i, (jobs, threads) in enumerate([(1, 1), (1, 2), (2, 1)]):
        copy = tmp_path / str(i)
        shutil.copytree(path, copy, ignore=shutil.ignore_patterns("organize"))
        organize(copy, jobs=jobs, threads=threads)
        found = sorted(p for p in (copy / "organize").rglob("*") if p.is_file())
        files[i] = {str(p.relative_to(copy)): p.read_bytes() for p in found}
    assert files[0].keys() == files[1].keys() == files[2].keys()
    for name in files[0]:
        assert files[0][name] == files[1][name] == files[2][name], name


def test_a_finished_batch_is_not_done_again_and_other_settings_have_a_folder_of_their_own(run, tmp_path):
    import shutil

    path, _ = run
    copy = tmp_path / "run"
    shutil.copytree(path, copy)
    organize(copy)
    (first,) = (copy / "organize" / "units").glob("batch-0000-*")
    (second,) = (copy / "organize" / "units").glob("batch-0001-*")
    before = first.stat().st_mtime_ns
    second.unlink()
    organize(copy)
    assert first.stat().st_mtime_ns == before and second.exists()
    (kept,) = kept_studies(hs.Run.open(copy), "organize")
    result = (kept.path / "result.json").read_bytes()
    organize(copy, questionnaire=hs.Questionnaire(n_iter=1))
    assert first.stat().st_mtime_ns == before and (kept.path / "result.json").read_bytes() == result
    earlier, later = kept_studies(hs.Run.open(copy), "organize")
    assert earlier.path == kept.path and newest_by_block(hs.Run.open(copy), "organize") == [later]
    assert hs.open_result(copy, "organize").settings["questionnaire"]["n_iter"] == 1
    assert hs.open_result(copy, "organize", kept.path.name[:6]).settings["questionnaire"]["n_iter"] == 3


def test_findings_say_what_the_numbers_say(run):
    path, _ = run
    result = organize(path)
    texts = [finding.text for finding in result.findings()]
    figures = {figure.id for figure in result.figures()}
    assert all(finding.figure in figures for finding in result.findings() if finding.figure)
    structure = next(f for f in result.findings() if f.claim == "organize.structure")
    assert structure.verdict == "holds" and "more structure than the same rows shuffled" in structure.text
    assert f"{result.energy[:, 0].mean():.3f}" in next(
        text for text in texts if "shuffled" in text and "energy" in text
    )


def test_brackets_of_a_control_say_that_they_hold_its_draws(run):
    """Permutations and rings: n counts draws there, not inputs."""
    result, rng = organize(run[0]), np.random.default_rng(0)
    own, draws = 0.5 + 0.01 * rng.normal(size=len(result.entropies)), 0.1 * rng.normal(size=60)
    known = replace(result, depth=own, depth_permuted=draws, dip=own, dip_ring=draws)
    rules = {f.claim: f.judgement.why for f in known.findings() if f.judgement}
    for claim, control in (("depth", "permuted heads,"), ("clustered", "a continuous shape;")):
        assert re.search(
            rf"\] \(n = 60\) \(.*{control} the brackets hold 95 % of n draws\)$", rules[f"organize.{claim}"]
        )


def test_one_cluster_is_no_clusters(run, monkeypatch):
    result = organize(run[0])
    role = result.heads["role"].iloc[0]
    for n, said in ((1, "in 1 cluster a role"), (2, "in 2 clusters a role")):
        roles = [FolderRole(level=1, folder=0, size=2, role=role, count=1, p=0.5)] * n
        monkeypatch.setattr(type(result), "folder_roles", roles)
        assert any(said in finding.text for finding in result.findings())


def test_noise_does_not_beat_its_null(tmp_path):
    rng = np.random.default_rng(5)
    scores = rng.standard_normal((12, 12, 32, 32))
    weights = np.exp(scores)
    np.save(tmp_path / "noise.npy", weights / weights.sum(axis=-1, keepdims=True))
    hs.import_array(tmp_path / "noise.npy", tmp_path / "run", layout="batch,head,query,key", dtype="float32")
    result = organize(tmp_path / "run")
    assert result.effect.low < 1.02 and result.effect.value == pytest.approx(1, abs=0.05)
    assert result.stability["l1_all"].w_p > 0.001


def test_a_ratio_of_alike_energies_is_no_structure(run):
    """The mean of a ratio of two alike energies lies above 1, and enough batches would show it."""
    result, rng = organize(run[0]), np.random.default_rng(0)
    energy, null = (np.exp(rng.normal(-2, 0.4, (*result.energy.shape[1:], 400))).T for _ in range(2))
    alike = replace(result, energy=energy, null_energy=null)
    assert hs.mean_interval(alike.gain).low > 1 and alike.effect.value == pytest.approx(1, abs=0.05)
    (found,) = [f for f in alike.findings() if f.claim == "organize.structure"]
    assert found.verdict == "cannot tell"


def test_the_same_input_again_and_again_is_one(run):
    result = organize(run[0])
    once = replace(result, entropies=np.repeat(result.entropies[:1], result.n_batches, axis=0))
    assert {f.verdict for f in once.findings() if f.claim} == {"cannot tell"}
    assert all("only 1 of 3 inputs" in f.judgement.why for f in once.findings() if f.claim)


def test_heads_that_are_all_alike_have_no_ranking(tmp_path):
    maps = np.broadcast_to(np.full((8, 8), 1 / 8), (3, 2, 2, 8, 8))
    result = organize(make_run(tmp_path / "run", maps, organized=False))
    found = [f for f in result.findings() if f.claim == "organize.stability"]
    assert [f.verdict for f in found] == ["cannot tell"] * 2 and "no ranking" in found[0].judgement.why
    assert not any("nan" in f.text for f in result.findings())


def test_random_weights_are_a_control(tmp_path, load):
    model = load("vit-fmnist")
    hs.capture(model, hs.sample_images(), batches=2, out=tmp_path / "run")
    control = hs.load_model("vit-fmnist", device="cpu", random_init=1)
    result = organize(tmp_path / "run", control=control)
    assert result.control_energy.shape == (2, 2)
    learnt = next(f for f in result.findings() if f.claim == "organize.learnt")
    assert learnt.verdict == "cannot tell" and "1 draws of random weights" in learnt.judgement.why
    loaded = OrganizeResult.load(tmp_path / "run" / "organize")
    np.testing.assert_array_equal(loaded.control_energy, result.control_energy)


def test_every_control_is_part_of_the_key(run, monkeypatch):
    read = []

    def begin(_run, _study, _facts, inputs, _work):
        read.append(dict(inputs))
        raise InterruptedError

    monkeypatch.setattr("headscape.studies.organize.study.working_folder", begin)
    for draws in ("ab", "ac", "ab"):
        with pytest.raises(InterruptedError):
            organize(run[0], model=False, control=[SimpleNamespace(fingerprint=draw) for draw in draws])
    assert read[0] == read[2] != read[1]


def test_a_capture_in_memory_and_small_networks(load):
    cap = hs.capture(load("vit-fmnist"), hs.sample_images(), batches=2, heads=[(0, 0)])
    result = organize(cap)
    assert len(result.to_frame()) == 1 and result.figures() and result.findings()
    cap = hs.capture(load("vit-fmnist"), hs.sample_images(), batches=1, layers=[2])
    result = organize(cap)
    (stable,) = [f for f in result.findings() if "stable" in f.text]
    assert stable.verdict == "cannot tell" and "one batch" in stable.text


def test_an_encoder_decoder_is_organized_block_by_block():
    _, cap = captured("t5")
    found = organize(cap, heads=["decoder.cross.0.1"])
    assert [result.block for result in found] == cap.blocks == ["encoder", "decoder", "decoder.cross"]
    one = organize(cap, block="decoder")
    pd.testing.assert_frame_equal(one.to_frame(), found[1].to_frame())


def test_a_masked_language_model_has_copying_scores_without_repeated_tokens(tmp_path):
    model, cap = captured("bert", out=tmp_path / "run")
    heads = organize(cap, model=model).heads
    known = copying_scores(model)
    assert heads["copying"].tolist() == [known[head] for head in cap.heads("encoder")] and heads["copying"].std() > 0
    seq2seq, both = captured("t5", out=tmp_path / "both")
    assert "copying" not in organize(both, model=seq2seq, block="encoder").heads


def test_every_score_of_a_head_is_explained(tmp_path):
    model, cap = captured("llama", out=tmp_path / "run")
    result = organize(cap, model=model)
    scores = set(result.heads.select_dtypes("number").columns) - {"layer", "head"}
    assert {"copying", "score_pair", "l1_top_null", "induction"} <= scores <= set(result.meanings())


def test_wrong_requests(run):
    path, _ = run
    with pytest.raises(hs.InputError, match="jobs must be at least 1"):
        organize(path, jobs=0)
    with pytest.raises(hs.InputError, match="scores were not captured"):
        organize(path, kind="scores")
    with pytest.raises(hs.InputError, match="no block"):
        organize(path, block="decoder")


def test_a_damaged_result_is_said_and_not_raised(run, tmp_path):
    import shutil

    path, _ = run
    organize(path)
    copy = tmp_path / "run"
    shutil.copytree(path, copy)
    (kept,) = kept_studies(hs.Run.open(copy), "organize")
    (kept.path / "result.safetensors").write_bytes(b"no")
    (name, reason) = load_results(hs.Run.open(copy))[0]
    assert name == "organize" and "is damaged" in str(reason)
    (kept.path / "result.json").unlink()
    assert "not finished" in load_results(hs.Run.open(copy))[0][1]
    shutil.rmtree(copy / "organize")
    assert "not run yet" in load_results(hs.Run.open(copy))[0][1]


def test_every_stage_counts_from_nothing_to_its_total_and_none_is_done_too_early():
    """Comparing batches and naming roles takes as long as organizing: a bar that is full must not stand for it."""

    class Bars:
        stages: ClassVar[list[tuple[str, list[tuple[int, int]]]]] = []

        def stage(self, name):
            self.stages.append((name, []))

        def __call__(self, done, total):
            self.stages[-1][1].append((done, total))

    maps = np.random.default_rng(0).dirichlet(np.ones(6), (2, 2, 6)).astype(np.float32)
    organize(hs.from_attentions(list(maps)), model=None, progress=Bars())
    assert [name for name, _ in Bars.stages] == ["organizing", "roles and stability"]
    for _, steps in Bars.stages:
        total = steps[0][1]
        assert steps == [(done, total) for done in range(total + 1)]
