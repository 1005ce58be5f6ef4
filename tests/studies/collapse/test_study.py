"""The collapse study of a model, in all its arms, and table 1."""

import copy
import json
import math
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

import headscape as hs
from headscape.cli.shared import app
from headscape.collapse.attention_only import AttentionNetwork, AttentionOnly, patch_tokens
from headscape.collapse.residual import effective_rank, relative_residual
from headscape.collapse.similarity import histogram, token_similarities
from headscape.studies.collapse import arms as collapse_model
from headscape.studies.collapse.arms import arms_of, in_double, shuffled
from headscape.studies.collapse.result import CELLS, CollapseResult
from headscape.studies.collapse.study import collapse
from headscape.studies.table1.study import PRINTED, Table1Result, table1

import_module("headscape.cli.collapse")  # registers the command


@pytest.fixture(scope="module")
def vit_run(tmp_path_factory, load):
    folder = tmp_path_factory.mktemp("collapse") / "run"
    hs.capture(load("vit-fmnist"), hs.sample_images(), batches=2, keep=("probs", "hidden"), dtype="float32", out=folder)
    return folder


@pytest.fixture(scope="module")
def vit(vit_run, load):
    control = hs.load_model("vit-fmnist", device="cpu", random_init=1)
    return collapse(vit_run, model=load("vit-fmnist"), control=control)


def tiny(name, tokens=14, batches=2, text="abcdefgh the quick brown fox " * 6):
    from tiny import Letters
    from zoo import make

    model = hs.wrap_module(make(name), tokenizer=Letters())
    return model, hs.capture(model, [text], tokens=tokens, batches=batches, keep=("hidden",), dtype="float32")


def by_hand(model, pixels, skip=True, alpha_hidden=0.0):
    """The ViT written out in float64: states before the first layer and after each, and the maps."""
    network = in_double(model).module.vit
    states, maps, hidden = [], [], None
    with torch.no_grad():
        x = network.embeddings(torch.from_numpy(pixels)[None].double())[0]
        states.append(x.numpy())
        for layer in network.layers:
            a, y = layer.attention, layer.layernorm_before(x)
            q, k, v = (p(y).reshape(len(y), 6, -1).transpose(0, 1) for p in (a.q_proj, a.k_proj, a.v_proj))
            scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[2])
            if alpha_hidden:
                scores = (1 - alpha_hidden) * scores + (0 if hidden is None else alpha_hidden * hidden)
                hidden = scores
            P = F.softmax(scores, dim=-1)
            out = a.o_proj((P @ v).transpose(0, 1).reshape(len(y), -1))
            x = x + out if skip else out
            x = x + layer.mlp(layer.layernorm_after(x))
            states.append(x.numpy())
            maps.append(P.numpy())
    return np.stack(states), maps


# ---------------------------------------------------------------------- a model


@pytest.mark.parametrize("arm", CELLS)
def test_arms_are_what_they_are_said_to_be(vit_run, vit, load, arm):
    cell = {a.name: a for a in arms_of(0.5, False, True)}[arm]
    counts = entropies = 0
    for i in range(2):
        pixels = hs.open_capture(vit_run).pixels(i)
        states, maps = by_hand(load("vit-fmnist"), pixels, cell.skip, cell.alpha_hidden)
        a = vit.at(arm)
        np.testing.assert_allclose(vit.residual[a, i], relative_residual(states), rtol=1e-6, atol=1e-14)
        np.testing.assert_allclose(vit.rank[a, i], effective_rank(states), rtol=1e-6)
        counts = counts + np.stack([histogram(token_similarities(x)) for x in states])
        rows = [-(P * np.log(np.maximum(P, 1e-300))).sum(axis=-1).mean(axis=1) / math.log(50) for P in maps]
        entropies = entropies + np.concatenate(rows) / 2
    assert np.abs(np.cumsum(vit.similarity[vit.at(arm)] - counts, axis=1)).max() <= 3  # a cosine on the edge of a bin
    column = {"standard": "entropy"}.get(arm, "entropy_" + arm.replace(", ", "_").replace(" ", "_"))
    np.testing.assert_allclose(vit.to_frame()[column], entropies, rtol=1e-6)


def test_residuals_go_below_what_float32_can_tell(vit_run, vit, load):
    no_skip = vit.residual[vit.at("no skip")][:, -1]
    assert (no_skip < 1e-12).all()
    rough = collapse(hs.Capture.in_memory([hs.open_capture(vit_run).batch(0)]), model=load("vit-fmnist"), double=False)
    assert 1e-9 < rough.residual[rough.at("no skip"), 0, -1] < 1e-5
    assert next(load("vit-fmnist").module.parameters()).dtype == torch.float32  # the model itself was left alone


def test_bounds_hold_and_their_condition_is_told(vit):
    frame = vit.bounds
    assert len(frame) == 2 * 2 * 6 and set(frame["arm"]) == {"standard", "random"}
    assert frame[["keeps_repaired", "keeps_anywhere", "keeps_printed"]].to_numpy().all()
    assert (frame[frame["arm"] == "random"]["spread"] < 1.256).all()
    assert (frame[frame["arm"] == "standard"]["spread"] > 1.256).all()
    assert (frame["printed"] / frame["measured"]).min() > 1e4
    heads = vit.to_frame()
    widest = frame[(frame["arm"] == "standard") & (frame["layer"] == 3)]["spread"].min()
    assert heads[heads["layer"] == 3]["D"].max() <= frame["spread"].max() and widest > heads["D"].min()
    verdict = next(f for f in vit.findings() if f.figure == "bounds")
    assert verdict.holds and "in 12 of 24 layers" in verdict.text and "0 standard, 12 random" in verdict.text


def test_bounds_are_of_what_the_layer_computes(vit_run, vit, load):
    """The slow twin of what is measured: the output of a layer's attention, run by itself."""
    model = in_double(load("vit-fmnist"))
    states, _ = by_hand(load("vit-fmnist"), hs.open_capture(vit_run).pixels(1))
    for n in (0, 4):
        layer = model.module.vit.layers[n]
        with torch.no_grad():
            entering = layer.layernorm_before(torch.from_numpy(states[n]))[None]
            out = layer.attention(entering)
        out = (out[0] if isinstance(out, tuple) else out)[0].numpy()
        R = out - out.mean(axis=0)
        norm = math.sqrt(np.abs(R).sum(axis=0).max() * np.abs(R).sum(axis=1).max())
        row = vit.bounds[(vit.bounds["arm"] == "standard") & (vit.bounds["input"] == 1) & (vit.bounds["layer"] == n)]
        assert row["measured"].iloc[0] == pytest.approx(norm, rel=1e-6)


def test_the_findings_follow_from_the_tables(vit):
    texts = {f.figure: f for f in vit.findings()}
    last = vit.residual[:, :, -1].mean(axis=1)
    collapsed = texts["residual"]
    assert collapsed.text.startswith("Rank collapse is not seen") and collapsed.holds is False and last[0] > 0.01
    work = texts["residual-cells"]
    by_skip = math.log10(last[0] / last[vit.at("no skip")])
    assert (
        work.text.startswith("The skip does the work, not the hidden state")
        and f"by {by_skip:.1f} decades" in work.text
    )
    assert "With random weights the skip does the work" in texts["residual-cells-random"].text
    modes = [s.mode for s in vit.alike("standard")[1:]]
    assert f"in {sum(m > 0.98 for m in modes)} of 6 layers" in texts["similarity"].text
    # the other verdicts are reached by the same rules
    turned = vit.residual.copy()
    turned[0] = turned[vit.at("no skip")]
    other = CollapseResult(**{**vars(vit), "residual": turned})
    assert other.findings()[0].holds and other.findings()[0].text.startswith("Rank collapse is seen")
    assert "hidden state does the work" in {f.figure: f.text for f in other.findings()}["residual-cells"]


def test_what_is_saved_comes_back(vit_run, vit):
    loaded = CollapseResult.load(vit_run / "collapse")
    assert [f.text for f in loaded.findings()] == [f.text for f in vit.findings()]
    np.testing.assert_array_equal(loaded.residual, vit.residual)
    np.testing.assert_array_equal(loaded.similarity, vit.similarity)
    assert loaded.arms == vit.arms and loaded.by_layer.equals(vit.by_layer)
    known = {figure.id for figure in vit.figures()}
    assert len(known) == len(vit.figures()) and all(f.figure in {*known, None} for f in vit.findings())
    kept = (vit_run / "collapse" / "result.json").read_text()
    (vit_run / "collapse" / "result.json").write_text("{")
    with pytest.raises(hs.HeadscapeError, match="collapse study in .* cannot be read"):
        CollapseResult.load(vit_run / "collapse")
    (vit_run / "collapse" / "result.json").write_text(kept)


def test_the_report_draws_every_figure(vit_run, vit):
    from headscape.report.drawing import draw
    from headscape.report.gather import gather
    from headscape.report.pictures import picture

    scene = gather([vit], hs.open_capture(vit_run).heads())
    assert not scene.sections[0].problems
    for figure in vit.figures():
        assert figure.read and figure.alt and len(figure.title) <= 60
        if figure.kind != "table":
            assert picture(figure, scene.sections[0]) and draw(figure, scene.sections[0], scene.heads)


def test_a_killed_study_goes_on_where_it_stopped(vit_run, vit, load, monkeypatch):
    folder = vit_run / "collapse"
    before = (folder / "layers.csv").read_bytes()
    (folder / "no-skip-hidden-0001.safetensors").unlink()
    (folder / "result.json").unlink()
    looked = []
    real = collapse_model.look
    monkeypatch.setattr(collapse_model, "look", lambda *a: looked.append(a[2].name) or real(*a))
    control = hs.load_model("vit-fmnist", device="cpu", random_init=1)
    again = collapse(vit_run, model=load("vit-fmnist"), control=control)
    assert looked == ["no skip, hidden"]
    np.testing.assert_allclose(again.residual, vit.residual, rtol=1e-9, atol=1e-15)
    assert len((folder / "layers.csv").read_bytes()) == pytest.approx(len(before), rel=0.01)


# ---------------------------------------------------------------------- other models


def test_without_a_model_what_was_kept_is_measured(vit_run, vit):
    captured = hs.Capture.in_memory([hs.open_capture(vit_run).batch(i) for i in range(2)])
    stored = collapse(captured)
    assert stored.arms == ("standard",) and not len(stored.bounds)
    np.testing.assert_allclose(stored.residual[0], vit.residual[0], rtol=1e-4)
    np.testing.assert_allclose(stored.to_frame()["entropy"], vit.to_frame()["entropy"], rtol=1e-4)
    assert any("No model was at hand" in f.text for f in stored.findings())
    assert [f.id for f in stored.figures()] == [
        "arms",
        "residual",
        "rank",
        "similarity",
        "share",
        "entropy",
        "entropy-layers",
    ]


def test_an_imported_run_has_entropies_alone(tmp_path):
    rng = np.random.default_rng(0)
    P = rng.random((2, 3, 4, 9, 9)) * np.tri(9)
    np.save(tmp_path / "maps.npy", P / P.sum(axis=-1, keepdims=True))
    hs.import_array(tmp_path / "maps.npy", tmp_path / "run", layout="batch,layer,head,query,key", dtype="float32")
    result = collapse(tmp_path / "run")
    assert result.residual is None and result.causal
    P = (P / P.sum(axis=-1, keepdims=True))[:, 1, 2, 1:]  # head 1.2, row 0 left out
    rows = [-(p[p > 0] * np.log(p[p > 0])).sum() / math.log(i + 2) for x in P for i, p in enumerate(x)]
    frame = result.to_frame().set_index(["layer", "head"])
    assert frame.loc[(1, 2), "entropy"] == pytest.approx(np.mean(rows), rel=1e-5)
    assert CollapseResult.load(tmp_path / "run" / "collapse").findings()[0].text == result.findings()[0].text
    assert [f.id for f in result.figures()] == ["arms", "entropy", "entropy-layers"]


def test_a_causal_model_has_no_bound_and_its_repeated_words_are_told_apart():
    model, captured = tiny("llama")
    result = collapse(captured, model=model)
    assert result.causal and not len(result.bounds) and np.isinf(result.to_frame()["D"]).all()
    assert any("Causal attention has no bound" in f.text for f in result.findings())
    ids = captured.input_ids(0)
    pairs = [(i, j) for i in range(14) for j in range(i + 1, 14)]
    same = sum(ids[i] == ids[j] for i, j in pairs)
    both = sum(captured.input_ids(1)[i] == captured.input_ids(1)[j] for i, j in pairs)
    assert result.similarity[0, 0].sum() == 2 * len(pairs)
    assert result.different[0, 0].sum() == 2 * len(pairs) - same - both and same > 0
    assert result.alike("standard")[0].share >= (same + both) / (2 * len(pairs)) > 0
    assert result.alike("standard", different=True)[0].share == 0


@pytest.mark.parametrize(
    ("name", "block"), [("gpt2", None), ("bert", None), ("t5", "encoder"), ("t5", "decoder.cross")]
)
def test_other_families_are_measured(name, block):
    model, captured = tiny(name, batches=1)
    result = collapse(captured, model=model, block=block)
    assert result.residual.shape == (5, 1, 3) and set(CELLS) < set(result.arms)
    assert (len(result.bounds) > 0) == (name in ("bert", "mpnet") or block == "encoder")
    if name == "bert":
        assert result.bounds["keeps_anywhere"].all() and np.isfinite(result.bounds["printed"]).all()
    if name == "mpnet" or block == "encoder":  # scores that know positions: no printed bound
        assert result.bounds["keeps_anywhere"].all() and result.bounds["printed"].isna().all()
    states = captured.hidden(0, (block or captured.blocks[0]).removesuffix(".cross"))
    np.testing.assert_allclose(result.residual[0, 0], relative_residual(states), rtol=1e-4)


def test_an_arm_that_cannot_be_is_left_out_and_noted():
    model, captured = tiny("gptj", batches=1)  # attention and MLP share one skip
    said = []
    result = collapse(captured, model=model, say=said.append)
    assert result.arms == ("standard", "shuffled", "hidden") and len(said) == 2
    assert any("'no skip' was left out: attention and another branch" in f.text for f in result.findings())
    assert "residual-cells" not in {f.figure for f in result.findings()}


def test_shuffling_keeps_what_there_is(vit_run, load):
    from headscape.attention.samples import replayed

    model = load("vit-fmnist")
    sample = replayed(model, hs.open_capture(vit_run))[0]
    mixed = shuffled(model, sample, 3)
    patch = model.config.patch_size

    def patches(pixels):
        image = pixels[0, 0].numpy()
        n = image.shape[0] // patch
        return sorted(
            image[r * patch : (r + 1) * patch, c * patch : (c + 1) * patch].tobytes()
            for r in range(n)
            for c in range(n)
        )

    a, b = sample.arguments["pixel_values"], mixed.arguments["pixel_values"]
    assert a.shape == b.shape and not torch.equal(a, b) and patches(a) == patches(b)
    model, captured = tiny("t5", batches=1)
    model.tokenizer.all_special_ids = [int(captured.input_ids(0)[0]), int(captured.input_ids(0)[-1])]
    sample = replayed(model, captured)[0]
    mixed = shuffled(model, sample, 3)
    ids, other = (s.arguments["input_ids"][0].tolist() for s in (sample, mixed))
    assert sorted(ids) == sorted(other) and ids != other and (ids[0], ids[-1]) == (other[0], other[-1])
    assert mixed.arguments["decoder_input_ids"][0].tolist() == [
        sample.arguments["decoder_input_ids"][0, 0].item(),
        *other[:-1],
    ]
    assert shuffled(model, sample, 3).arguments["input_ids"].equal(mixed.arguments["input_ids"])


def test_refusals_say_what_to_do(vit_run, load, tmp_path):
    np.save(tmp_path / "scores.npy", np.zeros((1, 2, 4, 4)))
    scores = hs.import_array(
        tmp_path / "scores.npy", tmp_path / "run", layout="layer,head,query,key", kind="scores", mask="full"
    )
    with pytest.raises(hs.InputError, match="keeps scores; capture again with --keep hidden,probs"):
        collapse(scores)
    with pytest.raises(hs.InputError, match="alpha_hidden is at least 0 and below 1, not 1"):
        collapse(vit_run, alpha_hidden=1)
    with pytest.raises(hs.InputError, match="batches must be at least 1"):
        collapse(vit_run, batches=0)
    with pytest.raises(hs.InputError, match="no block 'decoder'"):
        collapse(vit_run, block="decoder")
    broken = copy.deepcopy(load("vit-fmnist"))
    broken.module.vit.layers[2].attention.q_proj.weight.data[0, 0] = float("inf")
    with pytest.raises(hs.InputError, match=r"layers\.2\.attention\.q_proj\.weight holds NaN or infinite"):
        in_double(broken)
    plain = hs.wrap_module(torch.nn.MultiheadAttention(8, 2, batch_first=True), example=(torch.ones(1, 3, 8),) * 3)
    from headscape.attention.samples import Sample

    with pytest.raises(hs.InputError, match="does not show its hidden states"):
        collapse_model.look(
            plain, Sample((torch.ones(1, 3, 8),) * 3, {}, {}, []), arms_of(0.5, False, False)[0], "attention"
        )


# ---------------------------------------------------------------------- table 1


@pytest.fixture(scope="module")
def small_table(tmp_path_factory):
    run = hs.Run.create(tmp_path_factory.mktemp("table1") / "run", config={"kind": "table1"})
    return run, table1(run, seeds=3, images=2, depth=4)


def test_table_1_is_that_of_the_networks(small_table):
    _, result = small_table
    assert result.residual.shape == (2, 4, 3, 4)
    images, _ = hs.sample_images()
    config = AttentionOnly(depth=4, weights="xavier", norm="none", skip=True, alpha_hidden=0.5)
    with torch.no_grad():
        layers = list(AttentionNetwork(config, seed=2).layers(patch_tokens(images[4:6], seed=2)))
    expected = [np.mean(relative_residual(layer.states.numpy())) for layer in layers]
    np.testing.assert_allclose(result.column("xavier, no norm", "skip, a'=0.5")[2], expected, rtol=1e-9)
    frame = result.table
    np.testing.assert_allclose(frame["printed: self-attention"], PRINTED["self-attention"][:4])
    np.testing.assert_allclose(frame["default, pre-LN: no skip, a'=0"], result.residual[0, 0].mean(axis=0))
    assert len(result.bounds) == 2 * 4 * 4 and result.bounds["keeps_anywhere"].all()


def test_the_sentence_answers_whether_hidden_state_or_skip_does_the_work(small_table):
    _, result = small_table
    answer = result.findings()[1]
    assert answer.text.startswith("The skip does the work, not the hidden state") and answer.holds is False
    swapped = result.residual[:, [0, 3, 0, 3]]  # as if the skip had done nothing, and a' what the skip does
    other = Table1Result(**{**vars(result), "residual": swapped}).findings()[1]
    assert other.text.startswith("The hidden state does the work, not the skip") and other.holds
    alone = result.findings()[2].text
    assert "slows the collapse and does not stop it" in alone


def test_table_1_is_kept_and_drawn(small_table, monkeypatch):
    from headscape.report.drawing import draw
    from headscape.report.gather import gather
    from headscape.report.pictures import picture
    from headscape.studies.table1 import study as collapse_table1

    run, result = small_table
    loaded = Table1Result.load(run.path / "table1")
    assert [f.text for f in loaded.findings()] == [f.text for f in result.findings()]
    scene = gather([loaded], [])
    for figure in loaded.figures():
        assert len(figure.title) <= 60
        if figure.kind != "table":
            assert picture(figure, scene.sections[0]) and draw(figure, scene.sections[0], scene.heads)
    known = {figure.id for figure in result.figures()}
    assert all(finding.figure in known for finding in result.findings())
    for setting, figure in zip(result.names, result.figures(), strict=False):  # a table a setting, with its seeds
        values = result.column(setting, result.cells[0])[:, 1]
        shown = f"{values.mean():.2g} [{values.min():.1g}, {values.max():.1g}]"
        assert setting in figure.title and figure.data["rows"][1][1] == shown
        assert figure.data["rows"][1][-2:] == ["0.077", "0.83"]  # as printed
    drawn = []
    real = collapse_table1._network
    monkeypatch.setattr(collapse_table1, "_network", lambda *a: drawn.append(a[2]) or real(*a))
    (run.path / "table1" / "network-1-2-0001.safetensors").unlink()
    again = table1(run, seeds=3, images=2, depth=4)
    assert drawn == [1]
    np.testing.assert_allclose(again.residual, result.residual, rtol=1e-9, atol=1e-15)
    for wrong in ({"seeds": 0}, {"images": 1000}, {"alpha_hidden": 0.0}):
        with pytest.raises(hs.InputError):
            table1(**{"seeds": 1, "images": 1, "depth": 1} | wrong)


# ---------------------------------------------------------------------- the command


def command(*arguments):
    return CliRunner().invoke(app, ["collapse", *map(str, arguments)])


def test_the_command_prints_tables_and_findings(vit_run, tmp_path):
    done = command(vit_run, "--no-control", "--no-cells", "--batches", 1, "--json", "-q")
    assert done.exit_code == 0, done.exception
    facts = json.loads(done.stdout)
    assert [row["arm"] for row in facts["arms"]] == ["standard", "shuffled"] and len(facts["heads"]) == 36
    assert len(facts["layers"]) == 2 * 7 and "Rank collapse" in facts["findings"][0]["text"]
    done = command("--table1", "--seeds", 1, "--depth", 2, "--out", tmp_path / "t", "-q")
    assert done.exit_code == 0, done.exception
    assert "printed" in done.stdout and "0.489" in done.stdout and "0.88" in done.stdout
    assert "does the work" in " ".join(done.stdout.split())


def test_the_command_captures_a_model_first(tmp_path):
    done = command("vit-fmnist", "--no-control", "--batches", 1, "--out", tmp_path / "run", "-q", "--json")
    assert done.exit_code == 0, done.exception
    assert hs.Run.open(tmp_path / "run").meta["config"]["keep"] == ["hidden"]
    assert len(json.loads(done.stdout)["arms"]) == 5


def test_the_command_refuses_in_one_line(vit_run):
    for arguments, message in [
        ([], "name a run or a model, or ask for --table1"),
        ([vit_run, "--table1"], "name a run or a model, or ask for --table1"),
        (["--table1", "--text", __file__], "table 1 has its own images"),
        ([vit_run, "--text", __file__], "is a run and has its inputs"),
        ([vit_run, "--jobs", 0], "jobs must be at least 1"),
        (["no-such-model", "--alpha-hidden", 1], "--alpha-hidden is at least 0 and below 1, not 1.0"),
        (["--table1", "--alpha-hidden", "nan", "--out", "never-made"], "--alpha-hidden is at least 0"),
        (["--table1", "--seeds", 0, "--out", "never-made"], "seeds and depth are at least 1"),
        (["no-such-model"], "no bundled model 'no-such-model'"),
    ]:
        done = command(*arguments)
        assert isinstance(done.exception, hs.InputError) and message in str(done.exception)
    assert not Path("never-made").exists()
    assert "Example" in command("--help").stdout
