"""The reproductions of the hostile test of version 0.1, row by row, as a user would type them.

To run them on other code, such as commit dd5f7bf, check it out elsewhere and put its source first:
HEADSCAPE_FAULTS=1 PYTHONPATH=OLD/src python -m pytest tests/faults/test_rows.py
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file, save_file

import headscape as hs
from commands import headscape
from killing import contents, hearing
from writers import tiny

pytestmark = pytest.mark.skipif(not os.environ.get("HEADSCAPE_FAULTS"), reason="part of make faults")
CODE = "from headscape.cli import main; main()"
LIMIT = 300
SHORT = ["--tokens", "16", "--batches", "3"]


def start(*arguments, before=hearing):
    """A command in an interpreter of its own, to be stopped from outside; `before` is called in it first."""
    words = [sys.executable, "-c", CODE, *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before)


def one_line(done, code=2):
    assert done.returncode == code, (done.args, done.returncode, done.stderr[-500:])
    assert len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr, done.stderr[-500:]
    return done.stderr


def attention(n=6, heads=4, batches=3, seed=0):
    X = np.random.default_rng(seed).gamma(0.5, size=(batches, heads, n, n)) * np.tri(n)
    return X / X.sum(axis=-1, keepdims=True)


@pytest.fixture
def imported(tmp_path):
    """A run of three batches without scores, organized, and how it was imported."""
    np.save(tmp_path / "a.npy", attention())
    how = ["import", tmp_path / "a.npy", "--layout", "batch,head,query,key", "--out", tmp_path / "R"]
    assert headscape(*how).returncode == 0
    assert headscape("organize", tmp_path / "R").returncode == 0
    return tmp_path / "R", how


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network") / "model"
    model = tiny()
    model.module.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    (folder.parent / "text.txt").write_text("the quick brown fox jumps over a lazy dog and runs away " * 200)
    return folder


def captured(network, place, *more, **how):
    text = network.parent / "text.txt"
    done = headscape("capture", network, "--text", text, *SHORT, "--out", place, *more, **how)
    assert done.returncode == 0, done.stderr
    return place


def test_f1_foreign_code_does_not_run(network, tmp_path):
    evil = tmp_path / "evil"
    shutil.copytree(network, evil)
    config = json.loads((evil / "config.json").read_text()) | {"model_type": "evil"}
    config |= {"auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}}
    (evil / "config.json").write_text(json.dumps(config))
    (evil / "evil.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    done = headscape("check", evil, said="y\n" * 100)
    assert not (tmp_path / "RAN").exists(), "foreign code ran"
    assert "does not run" in one_line(done)
    run = captured(network, tmp_path / "R")
    meta = json.loads((run / "run.json").read_text())
    meta["model"] |= {"source": str(evil), "location": str(evil)}
    (run / "run.json").write_text(json.dumps(meta))
    headscape("organize", run, said="y\n" * 100)
    assert not (tmp_path / "RAN").exists(), "foreign code ran through a run"


def test_f2_two_commands_do_not_mix(tmp_path):
    np.save(tmp_path / "a.npy", attention(64, 12, 6))
    layout = ["--layout", "batch,head,query,key"]
    runs = {}
    for name in ("both", "1", "2"):
        runs[name] = tmp_path / name
        assert headscape("import", tmp_path / "a.npy", *layout, "--out", runs[name]).returncode == 0
    first = start("organize", runs["both"], "--seed", 1)
    until = time.monotonic() + LIMIT
    while not list((runs["both"] / "organize").rglob("*.safetensors")) and time.monotonic() < until:
        time.sleep(0.02)
    second = headscape("organize", runs["both"], "--seed", 2)
    first.communicate(timeout=LIMIT)
    assert {first.returncode, second.returncode} <= {0, 2}
    found = contents(runs["both"] / "organize")
    for seed, code in ((1, first.returncode), (2, second.returncode)):
        if code == 0:
            assert headscape("organize", runs[str(seed)], "--seed", seed).returncode == 0
            assert contents(runs[str(seed)] / "organize").items() <= found.items()


@pytest.mark.parametrize("wrong", [["--kind", "scores"], ["--seed", "-1"]])
def test_f3_a_refused_request_changes_no_byte(imported, wrong):
    run, _ = imported
    (run / "organize" / "mine.txt").write_text("mine")
    before = contents(run)
    one_line(headscape("organize", run, *wrong))
    assert contents(run) == before


def test_f3_a_file_of_the_user_is_not_deleted(imported):
    run, _ = imported
    shutil.rmtree(run / "organize")
    (run / "organize").mkdir()
    (run / "organize" / "mine.txt").write_text("mine")
    headscape("organize", run)
    assert (run / "organize" / "mine.txt").read_text() == "mine"


def test_f4_changed_inputs_are_not_answered_with_old_results(imported):
    run, how = imported
    before = contents(run / "organize")
    np.save(how[1], attention(seed=1))
    again = headscape(*how)
    organized = headscape("organize", run)
    if again.returncode == 0 and organized.returncode == 0:
        assert contents(run / "organize") != before, "stale results"
    else:
        one_line(again)


def test_f5_a_lost_batch_is_said_and_does_not_shift_units(imported, tmp_path):
    run, _ = imported
    (run / "attention" / "batch-0001.safetensors").unlink()
    done = headscape("organize", run)
    assert done.returncode == 2 or "batch 1 is missing" in " ".join(done.stderr.split()), done.stderr
    fresh = tmp_path / "fresh"
    shutil.copytree(run, fresh, ignore=lambda folder, names: ["organize"] if folder == str(run) else [])
    assert headscape("organize", fresh).returncode == 0
    new = {name: data for name, data in contents(fresh / "organize").items() if name.endswith("result.safetensors")}
    assert new and new.items() <= contents(run / "organize").items()


def test_f6_other_weights_are_refused_by_name(network, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(network, model)
    shutil.copy(network.parent / "text.txt", tmp_path)
    run = captured(model, tmp_path / "R")
    weights = {name: a * 1.5 for name, a in load_file(model / "model.safetensors").items()}
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    more = ["--text", network.parent / "text.txt", "--heads", "2", "--windows", "3"]
    assert "not the model" in one_line(headscape("prune", run, *more, "-q"))


def test_f6_a_run_finds_its_model_from_anywhere(network, tmp_path):
    shutil.copytree(network, tmp_path / "model")
    text = network.parent / "text.txt"
    assert headscape("capture", "model", "--text", text, *SHORT, "--out", "R", cwd=tmp_path).returncode == 0
    (tmp_path / "elsewhere").mkdir()
    done = headscape("organize", tmp_path / "R", cwd=tmp_path / "elsewhere")
    assert done.returncode == 0 and "no induction scores" not in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_f7_a_signal_ends_everything_and_says_how_to_go_on(tmp_path, name):
    np.save(tmp_path / "a.npy", attention(96, 12, 6))
    run = tmp_path / "R"
    headscape("import", tmp_path / "a.npy", "--layout", "batch,head,query,key", "--out", run)
    process = start("organize", run, "--jobs", 2)
    until = time.monotonic() + LIMIT
    while not list((run / "organize").rglob("*")) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=LIMIT)
    _, alive = psutil.wait_procs(children, timeout=10)
    for child in alive:
        child.kill()
    assert not alive, "workers go on"
    assert process.returncode == 128 + getattr(signal, name) and "run it again" in said, said
    assert not list(run.rglob("*.partial"))


def test_f8_prune_goes_on_after_a_kill_in_its_export(network, tmp_path):
    run = captured(network, tmp_path / "R")
    assert headscape("organize", run).returncode == 0
    more = ["--text", network.parent / "text.txt", "--heads", "2", "--windows", "3", "--out", tmp_path / "small", "-q"]
    process = start("prune", run, *more)
    until = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < until:
        if any("small" in p.name for p in tmp_path.iterdir()):
            process.kill()
        time.sleep(0.002)
    process.communicate(timeout=LIMIT)
    again = headscape("prune", run, *more)
    assert again.returncode == 0, again.stderr
    assert sorted(p.name for p in tmp_path.iterdir() if "small" in p.name) == ["small"]


@pytest.mark.parametrize(
    ("array", "more"),
    [
        (np.full((4, 6, 6), 1e300), ["--dtype", "float32", "--kind", "scores"]),
        (-attention(batches=1)[0], []),
        (np.zeros((4, 0, 0)), []),
    ],
    ids=["1e300", "negative", "empty"],
)
def test_f9_import_refuses_what_cannot_be_attention(tmp_path, array, more):
    np.save(tmp_path / "a.npy", array)
    one_line(headscape("import", tmp_path / "a.npy", "--layout", "head,query,key", "--out", tmp_path / "R", *more))
    assert not (tmp_path / "R").exists()


def test_f9_a_mask_of_another_name_is_refused_at_once(tmp_path):
    np.save(tmp_path / "a.npy", attention(batches=1)[0])
    with pytest.raises(hs.InputError, match="mask"):
        hs.import_array(tmp_path / "a.npy", tmp_path / "R", layout="head,query,key", mask="none")
    assert not (tmp_path / "R").exists()


def test_f9_nan_images_leave_no_lone_run(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.full((4, 28, 28), np.nan, np.float32))
    out = tmp_path / "R"
    one_line(headscape("capture", "vit-fmnist", "--images", tmp_path / "a.npz", "--batches", 2, "--out", out, "-q"))
    assert not out.exists()


def test_f9_impossible_rotations_leave_no_lone_run(network, tmp_path):
    one_line(headscape("spectra", network, "--rotations", -1, "--out", tmp_path / "R"))
    assert not (tmp_path / "R").exists()


def test_f10_mistakes_of_the_user_are_exit_code_two(network, imported, tmp_path):
    run, how = imported
    broken = tmp_path / "broken"
    for name, act in {
        "model.safetensors": lambda p: p.write_bytes(p.read_bytes()[:1000]),
        "config.json": lambda p: p.write_text("{"),
        "tokenizer.json": lambda p: p.write_text("[]"),
        "headscape.json": lambda p: p.write_text("{"),
    }.items():
        shutil.copytree(network, broken)
        act(broken / name)
        one_line(headscape("check", broken))
        shutil.rmtree(broken)
    (tmp_path / "b.npz").write_bytes(b"x")
    one_line(headscape("import", tmp_path / "b.npz", "--out", tmp_path / "S"))
    one_line(headscape("import", how[1], "--layout", "head,head,query,key", "--out", tmp_path / "S"))
    one_line(headscape("check", "x" * 5000))


@pytest.mark.parametrize("change", [{"created": None}, {"model": []}, {"model": {"source": "[/red]"}}])
def test_f11_one_bad_run_does_not_hide_the_others(imported, change):
    run, _ = imported
    bad = run.with_name("bad")
    shutil.copytree(run, bad)
    meta = json.loads((bad / "run.json").read_text()) | change
    (bad / "run.json").write_text(json.dumps({k: v for k, v in meta.items() if v is not None}))
    done = headscape("runs", "list", run.parent)
    assert done.returncode == 0 and "bad" in done.stdout, done.stderr


@pytest.mark.parametrize("wrong", [["--layers", "0-99999999999"], ["--windows", "1000000000"], ["--budget", "200%"]])
def test_f12_unbounded_requests_are_refused(wrong, network, tmp_path):
    text = ["--text", network.parent / "text.txt"]
    asked = ["prune", captured(network, tmp_path / "R"), *text, "--evaluations", "2", "-q"]
    if "--layers" in wrong:
        asked = ["capture", network, *text, *SHORT, "--out", tmp_path / "S", "-q"]
    process = start(*asked, *wrong, before=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 * 10**9, 8 * 10**9)))
    out, err = process.communicate(timeout=LIMIT)
    said = one_line(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    assert wrong[0].strip("-") in said, said


PYTHON = [
    *("hs.Questionnaire(n_iter=float('nan')).fit(X)", "hs.Questionnaire(level_weight=float('inf')).fit(X)"),
    *("hs.Questionnaire(markov_alpha=float('nan')).fit(X)", "hs.Questionnaire(random_state=-1).fit(X)"),
    *("hs.diffusion_map(np.eye(4), t=float('nan'))", "hs.PartitionTree.dyadic(2.5)"),
    "hs.Questionnaire().fit(np.full((8, 8, 8), np.finfo(float).max))",
    "hs.scale_scores(None, [], float('nan')).__enter__()",
]


@pytest.mark.parametrize("call", PYTHON)
def test_f13_python_says_what_is_wrong_by_name(call):
    X = np.random.default_rng(0).random((8, 8, 8))
    with pytest.raises(hs.InputError):
        eval(call, {"hs": hs, "np": np, "X": X})


def test_f14_what_the_limit_cannot_hold_is_said(tmp_path):
    """The limit holds a fit, not a batch with its null and coefficients: 0.19 GB."""
    np.save(tmp_path / "a.npy", np.random.default_rng(0).random((320, 320, 24), dtype=np.float32))
    layout = ["--layout", "query,key,head", "--kind", "scores", "--dtype", "float32"]
    assert headscape("import", tmp_path / "a.npy", *layout, "--out", tmp_path / "R").returncode == 0
    done = headscape("organize", tmp_path / "R", "--kind", "scores", "--max-memory", "0.1", "--estimate")
    assert done.returncode == 0 and "MB" in done.stdout, done.stderr
    assert "fits into memory" not in done.stdout
