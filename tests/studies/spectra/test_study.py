"""The spectra study: what it says of a model's weights, and of weights whose truth is planted."""

import dataclasses

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import headscape as hs
from headscape.attention.weights import parts_of, put, read
from headscape.cli import app
from headscape.intervals import mean_interval
from headscape.report.drawing import draw
from headscape.report.gather import gather
from headscape.report.pictures import picture
from headscape.runs import Run
from headscape.statistics.edits import flatten, truncate
from headscape.statistics.spectra import MarchenkoPastur, describe_spectrum, singular_values
from headscape.studies.spectra.study import spectra
from zoo import make


def llama(seed=0, layers=3):
    """Large enough that noise follows the law, small enough for a test."""
    import transformers as T

    torch.manual_seed(seed)
    config = T.LlamaConfig(
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        pad_token_id=0,
    )
    return hs.wrap_module(T.LlamaForCausalLM(config).eval(), name=f"llama-{seed}")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    model = llama()
    run = Run.create(tmp_path_factory.mktemp("spectra") / "run", config={"kind": "weights"}, model={}, inputs={})
    return model, run, spectra(model, run, control=llama(1), rotations=199)


def verdicts(result):
    return {finding.claim: finding.verdict for finding in result.findings() if finding.claim}


def test_every_matrix_and_head_is_there(done):
    model, _, result = done
    assert len(result.matrices) == 3 * 7 and result.kinds == ["q", "k", "v", "o", "gate", "up", "down"]
    assert len(result.heads) == 3 * 4 and result.rotary
    for i, part in enumerate(parts_of(model)[0]):
        W = read(model, part).astype(np.float64)
        np.testing.assert_allclose(result.values[f"matrix/{i:04d}"], np.linalg.svd(W, compute_uv=False), rtol=1e-6)
        row = result.matrices.iloc[i]
        assert (row["kind"], row["layer"], row["module"]) == (part.kind, part.layer, part.module)
        expected = describe_spectrum(singular_values(W), W.shape)
        assert all(row[name] == pytest.approx(value) for name, value in expected.items())
    assert result.values["head/k/decoder.1"].shape == (2, 24) and result.values["head/o/decoder.1"].shape == (4, 24)


def test_grouped_heads_use_the_key_of_their_group(done):
    model, _, result = done
    q, k = (next(p for p in parts_of(model)[0] if (p.kind, p.layer) == (kind, 2)) for kind in ("q", "k"))
    Q, K = q.by_head(read(model, q).astype(float)), k.by_head(read(model, k).astype(float))
    for h in range(4):
        row = result.heads[(result.heads["layer"] == 2) & (result.heads["head"] == h)].iloc[0]
        C, other = Q[h].T @ K[h // 2], Q[h].T @ K[1 - h // 2]
        norms = np.linalg.norm(Q[h]) * np.linalg.norm(K[h // 2]) / np.sqrt(96 * 24)
        assert row["z"] == pytest.approx(np.trace(C) / norms)
        assert row["z_other"] == pytest.approx(
            np.trace(other) / (np.linalg.norm(Q[h]) * np.linalg.norm(K[1 - h // 2]) / np.sqrt(96 * 24))
        )
        sym = ((C + C.T) ** 2).sum() / 4 / (C**2).sum()
        s = np.linalg.svd(C, compute_uv=False)
        assert row["symmetric"] == pytest.approx(sym)
        assert row["score_rank"] == pytest.approx((s**2).sum() ** 2 / (s**4).sum())


def test_untrained_weights_look_random(done):
    _, _, result = done
    assert not any(finding.holds for finding in result.findings())  # no tick for what nobody learnt
    assert verdicts(result)["spectra.alignment"] == "does not hold"
    [count] = [found.judgement.statistic for found in result.findings() if found.claim == "spectra.alignment"]
    assert count.n == len(result.heads) and count.low == count.high == count.value
    assert (result.matrices["evenness"] - 1).abs().max() < 0.05
    assert max(result.share_outside(kind, "above") for kind in result.kinds) < 0.01
    assert np.nanmax([result.share_outside(kind, "below") for kind in result.kinds]) < 0.01
    assert (result.heads["symmetric"] - 0.5).abs().max() < 0.05


def planted():
    """Queries and keys truncated and aligned, values flattened: both claims of the thesis get their answer."""
    model = llama(2)
    changed = []
    for part in parts_of(model)[0]:
        if part.kind == "q":
            queries = part.by_head(read(model, part))
            small = np.stack([truncate(w, rank=6) for w in queries])
            changed.append((part, part.joined(small), None))
            shared = small[::2]
        elif part.kind == "k":
            changed.append((part, part.joined(0.5 * shared), None))
        elif part.kind == "v":
            changed.append((part, flatten(read(model, part)), None))
    return model, changed


def test_planted_truths_are_found():
    model, changed = planted()
    with put(model, changed):
        result, beside = spectra(model, None, rotations=199), spectra(model, control=llama(5), rotations=199)
    learnt, other = ("spectra.sparser", "spectra.energy"), ("spectra.alignment", "spectra.directions")
    assert verdicts(beside) == dict.fromkeys((*learnt, *other), "holds")
    assert verdicts(result) == dict.fromkeys(learnt, "cannot tell") | dict.fromkeys(other, "holds")
    assert "control missing" in result.findings()[0].judgement.why  # what they were before training
    first = result.heads[result.heads["head"] % 2 == 0]
    assert (first["z"] > 10).all() and (first["p"] == 1 / 200).all() and (first["symmetric"] > 0.999).all()
    assert (result.heads["score_rank"] < 6.01).all()
    assert mean_interval(result.difference("q", "v", "evenness")).high < -0.3
    assert "at initialization" not in " ".join(f.text for f in result.findings())  # no control was given


def test_what_was_there_before_training_is_not_credited_to_it(tmp_path):
    """A network that starts as sparse as it ends learnt no sparsity, however sparse it is."""
    model, changed = planted()
    other, same = planted()
    with put(model, changed), put(other, same):
        assert set(verdicts(spectra(model, control=other, rotations=9)).values()) == {"cannot tell"}
    one = llama(7, layers=1)
    assert verdicts(spectra(one, rotations=9))["spectra.sparser"] == "cannot tell"  # one layer has no interval


def test_values_above_and_below_the_law_are_counted_apart_and_by_shape():
    """Square queries have no lower edge; oblong keys and values have one, and truncation puts values below it."""
    model, changed = planted()
    with put(model, changed):
        result = spectra(model, rotations=9)
    assert result.like_shapes == {"96 x 96": ["q", "o"], "48 x 96": ["k", "v"], "96 x 192": ["gate", "up", "down"]}
    assert np.isnan(result.share_outside("q", "below")) and result.share_outside("k", "below") >= 0.5
    for kind in ("k", "v"):
        values = np.concatenate([own for own, _ in result.beside_noise(kind)])
        low, high = zip(*(MarchenkoPastur(48, 96, v).bounds for v in result.of_kind(kind)["variance"]), strict=True)
        assert result.share_outside(kind, "above") == pytest.approx((values**2 > np.repeat(high, 48)).mean())
        assert result.share_outside(kind, "below") == pytest.approx((values**2 < np.repeat(low, 48)).mean())
    text = next(f.text for f in result.findings() if f.figure == "outside")
    above, below = text.split("Below its lower edge")
    assert "96 x 96: W_q" in above and "48 x 96: W_k" in above
    assert "96 x 96" not in below and "48 x 96: W_k" in below
    table = result.by_kind().set_index("matrix")
    assert np.isnan(table.loc["W_q", "below"]) and table.loc["W_k", "below"] == result.share_outside("k", "below")


def test_a_result_is_kept_and_a_killed_study_resumes(done):
    model, run, result = done
    again = hs.open_result(run, "spectra")
    assert [str(f) for f in again.findings()] == [str(f) for f in result.findings()]
    np.testing.assert_array_equal(again.values["matrix/0003"], result.values["matrix/0003"])
    assert again.heads.equals(result.heads) and again.initial_matrices.equals(result.initial_matrices)
    units = sorted((run.path / "spectra" / "units").iterdir())
    assert len(units) == 6
    before = {path: path.read_bytes() for path in units}
    stamps = {path: path.stat().st_mtime_ns for path in units}
    units[1].unlink()
    two = spectra(model, run.path, control=llama(1), rotations=199, jobs=2)
    assert {path: path.read_bytes() for path in units} == before  # jobs change no byte
    assert [p for p in units if p.stat().st_mtime_ns != stamps[p]] == [units[1]]
    assert two.heads.equals(result.heads)
    spectra(llama(5), run, rotations=9)  # other weights: beside the first, which stays
    assert len(list((run.path / "spectra").glob("*/result.json"))) == 2
    assert {path: path.read_bytes() for path in units} == before


def test_every_figure_can_be_drawn(done):
    _, _, result = done
    scene = gather([result])
    section = scene.sections[0]
    assert not section.problems and len(section.rows) == 12
    for spec in section.figures:
        if spec.kind != "table":
            assert draw(spec, section, scene.heads) is not None and picture(spec, section)
    assert {f.figure for f in section.findings if f.figure} <= {spec.id for spec in section.figures}


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "bloom", "gpt-oss"])
def test_other_families(name):
    result = spectra(hs.wrap_module(make(name)), None, rotations=9)
    assert np.isfinite(result.heads[["z", "p", "symmetric"]].to_numpy()).all()
    blocks = set(result.heads["block"])
    assert blocks == ({"encoder", "decoder", "decoder.cross"} if name == "t5" else blocks)
    assert bool(result.notes) == (name == "gpt-oss")
    assert result.rotary == (name == "gpt-oss")
    assert [spec.id for spec in result.figures()]


def test_what_cannot_be_asked(tmp_path):
    kept = tmp_path / "kept"
    with pytest.raises(hs.InputError, match="at least 1"):
        spectra(llama(layers=1), kept, rotations=0)
    broken = llama(layers=1)
    broken.module.model.layers[0].self_attn.k_proj.weight.data[2, 1] = float("nan")
    with pytest.raises(hs.InputError, match=r"weight model\.layers\.0\.self_attn\.k_proj\.weight holds NaN"):
        spectra(broken, kept)
    assert not kept.exists()  # a refused request leaves nothing
    spectra(llama(layers=1), kept, rotations=9)
    with pytest.raises(hs.InputError, match="is a run of .*, not of llama-3; name another directory"):
        spectra(llama(3, layers=1), kept, rotations=9)

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = torch.nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.mix(x).reshape(1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
            return torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Own()

        def forward(self, x):
            return self.attention(x)

    strange = hs.wrap_module(Net(), attention=["attention"], example=torch.randn(1, 4, 8))
    with pytest.raises(hs.InputError, match="no query and key maps of Net are understood"):
        spectra(strange)
    np.save(tmp_path / "a.npy", np.full((2, 2, 1), 0.5))
    hs.import_array(tmp_path / "a.npy", tmp_path / "run")
    for arguments, message in (
        ([str(tmp_path / "run")], "was imported and has no model"),
        ([str(tmp_path / "run"), "--out", "x"], "leave out --out"),
        (["no-such-model"], "no-such-model"),
    ):
        result = CliRunner().invoke(app, ["spectra", *arguments])
        assert isinstance(result.exception, hs.InputError) and message in str(result.exception)


@pytest.mark.models
def test_the_command_on_a_model(tmp_path):
    out = tmp_path / "run"
    result = CliRunner().invoke(
        app, ["spectra", "minilm-l6", "--out", str(out), "--rotations", "99", "--no-control", "-q"]
    )
    assert result.exit_code == 0, result.output
    assert "sparser" in result.output
    kept = hs.open_result(out, "spectra")
    assert len(kept.heads) == 72 and (kept.heads["z"].abs() > 3).sum() > 50


def test_histograms_count_singular_values_and_noise_follows_the_law(done):
    _, _, result = done
    for kind in ("q", "down"):
        found = result.histograms(kind)
        width = found.centres[1] - found.centres[0]
        assert list(found.layers) == [0, 1, 2] and found.rounding == 0
        assert found.law.sum() * width == pytest.approx(1, abs=0.05)
        for layer, density in found.layers.items():
            (i,) = result.matrices.index[(result.matrices["kind"] == kind) & (result.matrices["layer"] == layer)]
            row = result.matrices.loc[i]
            m, n = sorted((row["rows"], row["columns"]))
            edge = row["variance"] ** 0.5 * (m**0.5 + n**0.5)
            for centre, height in zip(found.centres, density, strict=True):
                inside = [abs(s / edge - centre) <= width / 2 for s in result.values[f"matrix/{i:04d}"]]
                assert height == pytest.approx(np.mean(inside) / width)
            assert np.abs(np.cumsum(density - found.law) * width).max() < 0.12  # random weights
    assert result.histograms("q").lower == 0 < result.histograms("down").lower
    drawn = {figure.id: figure.kind for figure in result.figures()}
    assert all(drawn[f"histogram-{kind}"] == "lines" for kind in result.kinds)


def test_shared_directions_are_counted_head_by_head_and_planted_ones_found(done):
    model, _, result = done
    q, k = (next(p for p in parts_of(model)[0] if (p.kind, p.layer) == (kind, 1)) for kind in ("q", "k"))
    Q, K = q.by_head(read(model, q).astype(float)), k.by_head(read(model, k).astype(float))
    rows = result.heads[result.heads["layer"] == 1]
    for h in range(4):
        own, other = (np.linalg.svd(W)[2][:4] for W in (Q[h], K[h // 2]))
        cosines = [(a @ b) ** 2 for a in own for b in other]
        assert rows["shared"].iloc[h] == pytest.approx(sum(cosines) / 4)
    found = verdicts(result)
    assert found["spectra.directions"] == "cannot tell"  # random weights
    planted = dataclasses.replace(result, heads=result.heads.assign(shared=result.heads["shared"] + 0.5))
    assert verdicts(planted)["spectra.directions"] == "holds"
    alone = dataclasses.replace(planted, heads=planted.heads.assign(shared_other=np.nan))
    (said,) = [finding for finding in alone.findings() if finding.claim == "spectra.directions"]
    assert said.verdict == "cannot tell" and "share their keys" in said.judgement.why and "nan" not in said.text
