import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file

import headscape as hs
from headscape.runs import Run, find_runs
from headscape.storage import ArrayWriter, replacing, write_json
from tiny import attention


def test_a_failing_write_keeps_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"x": 1})

    def fail():
        with replacing(path) as partial:
            partial.write_text("half")
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert json.loads(path.read_text()) == {"x": 1}
    assert os.listdir(tmp_path) == ["a.json"]


def test_two_writers_of_one_file_do_not_meet_and_leave_nothing(tmp_path):
    path = tmp_path / "a.json"
    (tmp_path / "a.json.0123abcd.partial").write_text("of a writer that was killed")
    (tmp_path / "a.json.partial").write_text("of a writer of an earlier version")
    (tmp_path / "aa.json.0123abcd.partial").write_text("of another file")
    with replacing(path) as first:
        first.write_text("first")
        with replacing(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "second"  # the late one came to nothing, without an error
    assert sorted(os.listdir(tmp_path)) == ["a.json", "aa.json.0123abcd.partial"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8"])
def test_arrays_written_one_by_one_are_plain_safetensors(tmp_path, dtype):
    rng = np.random.default_rng(0)
    arrays = {f"probs/{i}": (rng.random((i + 1, 3, 2)) * 100).astype(dtype) for i in range(5)}
    arrays["scalar"] = np.array(3, dtype=dtype)
    arrays["view"] = np.ones((4, 6), dtype=dtype)[::2, ::3]
    with ArrayWriter(tmp_path / "a.safetensors", len(arrays), {"note": "ü" * 500}) as writer:
        for name, array in arrays.items():
            writer.add(name, array)
    loaded = load_file(tmp_path / "a.safetensors")
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    def fill():
        with ArrayWriter(tmp_path / "a.safetensors", 1) as writer:
            writer._file.close()
            writer._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
            writer.add("x", np.zeros(1000))

    with pytest.raises(hs.HeadscapeError, match=r"no space left while writing a\.safetensors") as caught:
        fill()
    assert caught.value.exit_code == 1
    assert os.listdir(tmp_path) == []


def test_a_capture_that_cannot_fit_is_refused_before_it_starts(tmp_path, monkeypatch):
    import shutil
    from collections import namedtuple

    from headscape.attention.capture import _check_space

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 0, 10**6))
    with pytest.raises(hs.InputError, match="needs 3.0 MB on disk.*1.0 MB free"):
        _check_space(tmp_path / "run", 3 * 10**6)
    assert not (tmp_path / "run").exists()


def test_not_a_run(tmp_path):
    for path, message in [(tmp_path / "none", "no run at"), (tmp_path, "is not a run directory")]:
        with pytest.raises(hs.InputError, match=message):
            Run.open(path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(hs.InputError, match="damaged"):
        Run.open(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 99, "headscape": "9.9"}')
    with pytest.raises(hs.InputError, match=r"format 99, this headscape reads 1.*9\.9"):
        Run.open(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(hs.InputError, match="name a new or an empty one"):
        Run.create(tmp_path / "other")


def test_runs_are_found_and_broken_ones_explained(tmp_path):
    Run.create(tmp_path / "a", config={"x": 1})
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "run.json").write_text("{")
    found, problems = find_runs(tmp_path)
    assert [r.path.name for r in found] == ["a"] and "damaged" in problems[tmp_path / "b"]
    assert Run.create(tmp_path / "a", config={"x": 1}).meta == found[0].meta
    with pytest.raises(hs.InputError, match="config x = 1, not 2"):
        Run.create(tmp_path / "a", config={"x": 2})


@pytest.mark.parametrize(
    ("section", "wrong"),
    [("created", None), ("created", 7), ("model", ["x"]), ("config", "x"), ("inputs", 3), ("parity", [1])],
)
def test_a_run_json_with_a_wrong_section_is_damaged_and_blocks_no_other(tmp_path, section, wrong):
    Run.create(tmp_path / "good")
    meta = Run.create(tmp_path / "bad").meta
    write_json(tmp_path / "bad" / "run.json", {k: v for k, v in (meta | {section: wrong}).items() if v is not None})
    found, problems = find_runs(tmp_path)
    assert [run.path.name for run in found] == ["good"]
    assert f"damaged: '{section}' is missing or not a" in problems[tmp_path / "bad"]


def test_own_arrays_become_a_run(tmp_path):
    maps = attention()  # layer, head, query, key
    np.save(tmp_path / "a.npy", maps)
    cap = hs.import_array(tmp_path / "a.npy", tmp_path / "run", layout="layer,head,query,key", dtype="float32")
    X = cap.tensor(0)
    assert X.mask == "causal" and X.heads[4] == hs.HeadId("heads", 1, 1)
    np.testing.assert_array_equal(X.values, maps.reshape(6, 5, 5).transpose(1, 2, 0))
    again = hs.open_capture(tmp_path / "run")
    np.testing.assert_array_equal(again.tensor(0).values, X.values)


def test_all_formats_and_batches(tmp_path):
    from safetensors.numpy import save_file

    maps = attention(shape=(4, 3, 5, 5))  # batch, head, query, key
    np.savez(tmp_path / "a.npz", attention=maps, other=np.zeros(3))
    save_file({"attention": maps}, tmp_path / "a.safetensors")
    for ending, name in (("npz", "attention"), ("safetensors", None)):
        cap = hs.import_array(
            tmp_path / f"a.{ending}", tmp_path / ending, name=name, layout="batch,head,query,key", dtype="float32"
        )
        assert len(cap) == 4
        np.testing.assert_array_equal(cap.tensor(2).values, maps[2].transpose(1, 2, 0))


def test_arrays_that_cannot_be_imported(tmp_path):
    np.save(tmp_path / "two.npy", np.zeros((3, 3)))
    bad = attention()
    bad[1, 2, 3, 0] = np.nan
    np.save(tmp_path / "nan.npy", bad)
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    np.savez(tmp_path / "two.npz", a=bad, b=bad)
    (tmp_path / "text.npy").write_text("no")
    (tmp_path / "a.csv").write_text("1")
    for name, layout, message in [
        ("none.npy", "query,key,head", "no file"),
        ("two.npy", "query,key,head", r"shape \(3, 3\), layout 'query,key,head' names 3 axes"),
        ("two.npy", "query,head", "must name query, key and head"),
        ("nan.npy", "layer,head,query,key", "layer 1, head 2, query 3, key 0"),
        ("objects.npy", "query,key,head", "pickled objects"),
        ("two.npz", "query,key,head", r"holds 2 arrays \(a, b\)"),
        ("text.npy", "query,key,head", "cannot be read|pickled"),
        ("a.csv", "query,key,head", "is not .npy"),
    ]:
        with pytest.raises(hs.InputError, match=message):
            hs.import_array(tmp_path / name, tmp_path / "run", layout=layout)
        assert not (tmp_path / "run").exists()


def test_a_damaged_batch_is_named(tmp_path):
    np.save(tmp_path / "a.npy", attention())
    cap = hs.import_array(tmp_path / "a.npy", tmp_path / "run", layout="layer,head,query,key")
    file = next((tmp_path / "run" / "attention").iterdir())
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(hs.HeadscapeError, match=r"batch-0000\.safetensors is damaged"):
        hs.open_capture(tmp_path / "run")
    with pytest.raises(hs.InputError, match="there is no batch 7"):
        cap.batch(7)


def test_what_was_not_kept_says_how_to_keep_it(tmp_path):
    np.save(tmp_path / "a.npy", attention())
    cap = hs.import_array(tmp_path / "a.npy", tmp_path / "run", layout="layer,head,query,key")
    with pytest.raises(hs.InputError, match="capture again with --keep scores"):
        cap.tensor(0, kind="scores")
    with pytest.raises(hs.InputError, match="no block 'decoder' was captured; there are heads"):
        cap.tensor(0, "decoder")


def test_a_run_of_another_version_opens_and_keeps_its_studies(tmp_path, monkeypatch):
    """The version is recorded and decides nothing: formats have numbers of their own."""
    maps = np.random.default_rng(0).dirichlet(np.ones(8), size=(2, 3, 8))
    with monkeypatch.context() as older:
        older.setattr("headscape.runs.__version__", "0.1.0")
        captured = hs.from_attentions(list(maps), out=tmp_path / "run")
        first = hs.organize(captured, model=None)
    assert hs.Run.open(tmp_path / "run").meta["headscape"] == "0.1.0" != hs.__version__
    again = hs.open_result(tmp_path / "run", "organize")
    assert np.array_equal(again.affinity, first.affinity)
    hs.organize(tmp_path / "run", model=None)  # found, not made again
    assert len(list((tmp_path / "run" / "organize").glob("*/result.json"))) == 1
