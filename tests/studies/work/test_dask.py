"""Units run by Dask: the same bytes as by the local engine, lost workers, and clusters that cannot be used."""

import os
import shutil
import signal
import socket
import threading
import time
from multiprocessing import forkserver

import dask
import psutil
import pytest
from distributed import Client, LocalCluster

import engine_units
import headscape as hs
from engine_runs import call, make_run
from headscape.captures import open_capture
from headscape.studies.compare.study import compare
from headscape.studies.organize import study as organize_module
from headscape.studies.organize.study import organize
from headscape.studies.prune.study import prune
from headscape.studies.softmax.study import softmax
from headscape.studies.work import dask as engine_dask
from headscape.studies.work.dask import DaskEngine
from headscape.studies.work.engines import LocalEngine, make_engine
from headscape.studies.work.how import Work
from headscape.version import __version__
from killing import FORKS
from prunable import contents

pytestmark = pytest.mark.xdist_group("dask")
LIMIT = 300  # seconds a test may take on a very busy machine; each takes a few on a quiet one


@pytest.fixture(autouse=True, scope="module")
def _forked():
    """Workers come from the server that has imported everything; a user's are started one by one, to the same effect."""
    forkserver.ensure_running()  # before processes are counted
    with dask.config.set({"distributed.worker.multiprocessing-method": FORKS.get_start_method()}):
        yield


@pytest.fixture(autouse=True)
def _limited():
    def ring(*_):
        pytest.fail(f"not done in {LIMIT} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def organized(tmp_path_factory):
    """Runs organized by the local engine: what all others must equal."""
    runs = [make_run(tmp_path_factory.mktemp("organized") / name, seed) for seed, name in enumerate("ab")]
    for run in runs:
        organize(run, threads=1)
    return runs


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler and two workers that are there already."""
    with LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        silence_logs=50,
        memory_limit=0,
        local_directory=str(tmp_path_factory.mktemp("dask")),
    ) as found:
        found.wait_for_workers(2)
        yield found


@pytest.fixture
def on_workers(cluster):
    """Run a function on both workers, beside any study."""
    with Client(cluster, set_as_default=False) as client:
        yield client.run


def processes():
    return {p.pid for p in psutil.Process().children(recursive=True) if "resource_tracker" not in " ".join(p.cmdline())}


def test_two_worker_processes_give_the_same_bytes_as_the_local_engine(tmp_path, organized, monkeypatch, capfd):
    before = processes()
    run = make_run(tmp_path)
    seen = []
    checked = engine_dask._folder_checked

    def looks_around(client, folder):
        ours = [psutil.Process(pid) for pid in (os.getpid(), *(processes() - before))]
        seen.extend(c.laddr.ip for p in ours for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN)
        seen.append(len(client.nthreads()))
        checked(client, folder)

    monkeypatch.setattr(engine_dask, "_folder_checked", looks_around)
    code, _, said = call(monkeypatch, capfd, "organize", run, "--engine", "dask", "--jobs", "2", "--resume")
    assert code == 0, said
    assert seen.pop() == 2
    assert set(seen) == {"127.0.0.1"} and len(seen) >= 3  # a scheduler and two workers, for this machine only
    assert "2 workers at tcp://127.0.0.1:" in said and "distributed" not in said
    assert contents(run / "organize") == contents(organized[0] / "organize")
    assert {p.name for p in run.iterdir()} == {"attention", "organize", "run.json"}
    assert processes() == before


def test_a_scheduler_that_is_there_gives_the_same_bytes(tmp_path, cluster, organized):
    engine = DaskEngine(scheduler=cluster.scheduler_address)
    for name in ("local", "dask"):
        run = make_run(tmp_path / name, kind="scores")
        softmax(run, threads=1, engine=engine if name == "dask" else "local")
        compare(organized, out=tmp_path / name / "out", draws=20, engine=engine if name == "dask" else "local")
    assert len(contents(tmp_path / "local" / "run" / "softmax")) > 4
    assert contents(tmp_path / "dask") == contents(tmp_path / "local") | {
        "run/run.json": (tmp_path / "dask" / "run" / "run.json").read_bytes()  # says when it was made
    }


def test_a_worker_killed_in_the_middle_costs_one_unit_and_changes_no_byte(tmp_path, organized, monkeypatch, capfd):
    before = processes()
    run = make_run(tmp_path)
    monkeypatch.setattr(organize_module, "measure_batch", engine_units.waits_to_be_killed)
    killed, said = [], []

    def kill():
        while not (tmp_path / "marker").exists():
            time.sleep(0.02)
        killed.append(int((tmp_path / "marker").read_text()))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    organize(run, engine=DaskEngine(2), say=said.append)
    killer.join(5)
    assert len(killed) == 1 and killed[0] != os.getpid()
    assert contents(run / "organize") == contents(organized[0] / "organize")  # and no half a file
    assert any("is lost; its unit is done again" in line for line in said)
    assert not any("failed" in line for line in said)
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""
    assert processes() == before


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a tiny Llama that reads words, and a text of them."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    from zoo import make

    folder = tmp_path_factory.mktemp("tiny") / "llama"
    make("llama").save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(99)} | {"[UNK]": 99}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    for name, step in (("text", 5), ("other", 7)):
        (folder.parent / f"{name}.txt").write_text(" ".join(f"w{i * step % 97}" for i in range(120)))
    return folder


def test_ablations_by_workers_that_load_the_model_give_the_same_bytes(tmp_path, cluster, tiny):
    model = hs.load_model(tiny, device="cpu")
    criteria = ("gradient", "output_norm", "leave_one_out")
    for name in ("local", "dask"):
        run = tmp_path / name / "run"
        hs.capture(model, tiny.parent / "text.txt", tokens=12, batches=3, out=run)
        engine = DaskEngine(scheduler=cluster.scheduler_address) if name == "dask" else "local"
        options = {
            "model": model,
            "inputs": tiny.parent / "other.txt",
            "criteria": criteria,
            "windows": 4,
            "threads": 1,
        }
        prune(run, budget=0.05, evaluations=4, fractions=(0.2, 0.4), study=True, engine=engine, **options)
    found = contents(tmp_path / "dask" / "run" / "prune")
    assert found == contents(tmp_path / "local" / "run" / "prune")
    assert sum(name.startswith("units/evaluation-") for name in found) > 20


def test_studies_of_a_model_by_workers_that_load_it_give_the_same_bytes(tmp_path, cluster, tiny):
    from headscape.studies.claims import claims
    from headscape.studies.collapse import collapse
    from headscape.studies.gaussian import gaussian
    from headscape.studies.prompt import prompt
    from headscape.studies.spectra import spectra

    words = tmp_path / "words.csv"
    words.write_text("word,clue,category\n" + "".join(f"w{i},w{i + 9} w{i + 20},x\n" for i in range(1, 9)))
    model, control = (hs.load_model(tiny, device="cpu", random_init=seed) for seed in (None, 0))
    handed = []

    class Counted(DaskEngine):
        def run(self, function, units):
            handed.append(function)
            return super().run(function, units)

    engines = {"local": "local", "dask": Counted(scheduler=cluster.scheduler_address)}
    for name, engine in engines.items():
        run, how = tmp_path / name / "run", {"engine": engine, "threads": 1}
        hs.capture(model, tiny.parent / "text.txt", tokens=24, batches=3, keep=("probs", "hidden"), out=run)
        spectra(model, run, control=control, rotations=20, **how)
        gaussian(run, model=model, control=control, batches=3, **how)
        collapse(run, model=model, control=control, batches=2, **how)
        prompt(model, run, table=words, word="w1", shots=1, prompts=1, alphas=(2.0,), permutations=9, **how)
        before = len(handed)
        claims(run, only=["spectra"], quick=True, **how)
        assert len(handed) > before or name != "dask"  # the studies behind the claims are computed there too
    for study in ("spectra", "gaussian", "collapse", "prompt", "claims"):
        found = contents(tmp_path / "dask" / "run" / study)
        assert found and found == contents(tmp_path / "local" / "run" / study), study


def test_checkpoints_captured_by_workers_have_the_same_bytes(tmp_path, cluster, tiny):
    from headscape.studies.series import capture_checkpoints, series

    for step in (1, 2):
        shutil.copytree(tiny, tmp_path / "saved" / f"checkpoint-{step}")
    for name in ("local", "dask"):
        engine = DaskEngine(scheduler=cluster.scheduler_address) if name == "dask" else "local"
        how = {"engine": engine, "threads": 1}
        asked = {"tokens": 12, "batches": 2, "work": Work.of(**how)}
        series(capture_checkpoints(tmp_path / "saved", tiny.parent / "text.txt", tmp_path / name, **asked), **how)
    for part in ("step-00000001/attention", "step-00000002/attention", "series"):
        found = contents(tmp_path / "dask" / part)
        assert found and found == contents(tmp_path / "local" / part), part


def test_workers_do_not_take_other_weights_for_the_model(tmp_path, cluster, tiny):
    model = hs.load_model(tiny, device="cpu", random_init=3)
    run = tmp_path / "run"
    hs.capture(model, tiny.parent / "text.txt", tokens=12, batches=3, out=run)
    engine = DaskEngine(scheduler=cluster.scheduler_address)
    with pytest.raises(hs.InputError, match="llama has other weights here than where the study was started"):
        prune(run, model=model, inputs=tiny.parent / "other.txt", criteria=["output_norm"], windows=4, engine=engine)
    assert not list((run / "prune").glob("units/evaluation-*"))


@pytest.mark.parametrize("name", ["local", "two jobs", "dask"])
def test_a_failing_unit_is_reported_and_the_rest_finishes(name, tmp_path, request, organized, monkeypatch):
    if name == "dask":
        engine = DaskEngine(scheduler=request.getfixturevalue("cluster").scheduler_address)
    else:
        engine = LocalEngine(2 if name == "two jobs" else 1)
    run, said, bar = make_run(tmp_path), [], []
    monkeypatch.setattr(organize_module, "measure_batch", engine_units.fails_on_batch_2)
    with pytest.raises(hs.HeadscapeError) as raised:
        organize(run, engine=engine, threads=1, say=said.append, progress=lambda *at: bar.append(at))
    assert raised.value.exit_code == 1
    assert str(raised.value) == (
        "1 of 4 units failed: batch 2 (RuntimeError: the disk is on fire); the others are kept: the same command "
        "redoes only what is missing"
    )
    assert "failed: batch 2: RuntimeError: the disk is on fire" in said
    assert bar[-1] == (4, 4)
    done = {p: p.stat().st_mtime_ns for p in (run / "organize" / "units").glob("batch-*")}
    assert [p.name[:10] for p in sorted(done)] == ["batch-0000", "batch-0001", "batch-0003"]
    monkeypatch.undo()
    organize(run, engine=engine, threads=1, resume=True)
    assert {p: p.stat().st_mtime_ns for p in done} == done
    assert contents(run / "organize") == contents(organized[0] / "organize")


def test_a_unit_that_kills_every_worker_is_given_up_and_the_rest_finishes(tmp_path):
    texts = ["one", "deadly", "two", "three"]
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        engine = DaskEngine(2)
        with engine.started([tmp_path], lambda _: None):
            found = dict(engine.run(engine_units.kills_its_worker, [(tmp_path / text, text) for text in texts]))
    assert found.pop(1).cause == "every worker that took it died, perhaps because memory ran out"
    assert set(found.values()) == {None}
    assert {p.name for p in tmp_path.iterdir()} == {"one", "two", "three"}


def start(engine, *folders):
    with engine.started(folders, lambda _: None):
        raise AssertionError("it should not have come so far")


@pytest.mark.parametrize(
    "address", ["localhost:8786", "tcp://", "tcp://host", "http://host:1", "tcp://host:0", "tcp://h:70000", ""]
)
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(hs.InputError, match="is not the address of a scheduler; give one as tcp://HOST:PORT"):
        make_engine("dask", 2, address)


@pytest.mark.parametrize("silent", [False, True])
def test_a_scheduler_that_does_not_answer_is_one_line(tmp_path, silent, monkeypatch, capfd):
    assert engine_dask.ANSWER_SECONDS == 10
    monkeypatch.setattr(engine_dask, "ANSWER_SECONDS", 1.0)
    run = make_run(tmp_path)
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        if silent:
            door.listen()
        address = f"tcp://127.0.0.1:{door.getsockname()[1]}"
        code, _, said = call(monkeypatch, capfd, "organize", run, "--engine", "dask", "--scheduler", address)
    assert code == 2
    assert said.startswith(f"error: no Dask scheduler answered at {address} within 1 s") and said.count("\n") == 1
    assert not (run / "organize").exists()


def test_a_worker_is_not_a_scheduler(tmp_path, cluster):
    with pytest.raises(hs.InputError, match="is a Worker of Dask; give the address of its scheduler"):
        start(DaskEngine(scheduler=next(iter(cluster.scheduler_info["workers"]))), tmp_path)


def test_a_scheduler_without_workers_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_dask, "ANSWER_SECONDS", 1.0)
    options = {"dashboard_address": "127.0.0.1:0"}
    with (
        LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=None, scheduler_kwargs=options) as empty,
        pytest.raises(hs.InputError, match="has no worker; start some with `dask worker tcp://127"),
    ):
        start(DaskEngine(scheduler=empty.scheduler_address), tmp_path)


def test_workers_of_another_version_are_refused(tmp_path, cluster, on_workers):
    engine = DaskEngine(scheduler=cluster.scheduler_address)
    ours = __version__
    on_workers(engine_units.has_version, "0.0.1")
    try:
        with pytest.raises(
            hs.InputError, match=rf"worker tcp://127.0.0.1:\d+ has headscape 0.0.1, this is {__version__}"
        ):
            start(engine, tmp_path)
        # one that comes when the check is over
        found = on_workers(engine_dask._on_worker, ours, engine_units.writes, (tmp_path / "a", ""))
        assert {failure.cause for failure in found.values()} == {
            f"its worker has headscape 0.0.1, this is {__version__}"
        }
        on_workers(engine_units.has_version, None)
        with pytest.raises(hs.InputError, match="has no headscape, this is"):
            start(engine, tmp_path)
    finally:
        on_workers(engine_units.has_version, ours)


def test_a_run_directory_the_workers_cannot_see_is_refused(tmp_path, cluster, on_workers):
    run = make_run(tmp_path)
    engine = DaskEngine(scheduler=cluster.scheduler_address)
    on_workers(engine_units.is_blind_to, str(tmp_path))
    try:
        with pytest.raises(
            hs.InputError, match=r"worker tcp://.* cannot use .*run \(No such file or directory\); the run"
        ):
            organize(run, engine=engine)
    finally:
        on_workers(engine_units.is_blind_to, None)
    assert {p.name for p in run.iterdir()} == {"attention", "run.json"}
    shutil.copytree(run, tmp_path / "copy")
    token = tmp_path / "copy" / ".headscape-0"
    token.write_text("of another machine")
    assert engine_dask._sees(token) == "another file of that name"


def test_what_is_only_in_memory_is_refused_by_dask(tmp_path, organized):
    captured = hs.Capture.in_memory([open_capture(organized[0]).batch(0)])
    with pytest.raises(hs.InputError, match="works on files that all workers see, .* give a run directory"):
        organize(captured, engine="dask")
    with pytest.raises(hs.InputError, match="works on files"):
        compare(organized, draws=20, engine="dask")


def test_a_study_gives_up_when_nobody_is_left(monkeypatch):
    class Cluster:
        status = "running"

        def __init__(self):
            self.workers = {"tcp://a:1": 1, "tcp://b:1": 1}

        def nthreads(self):
            if self.workers is None:
                raise OSError("no connection")
            return self.workers

    monkeypatch.setattr(engine_dask, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(engine_dask, "GONE_SECONDS", 0.05)
    for left, line in (({}, "no worker is left since"), (None, "the scheduler is gone since")):
        client, said = Cluster(), []
        watch = engine_dask._Watch(client, said.append)
        client.workers = {"tcp://b:1": 1}
        watch.look()
        assert said == ["worker tcp://a:1 is lost; its unit is done again"]
        client.workers = left
        watch.look()
        time.sleep(0.06)
        with pytest.raises(hs.HeadscapeError, match=line):
            watch.look()
