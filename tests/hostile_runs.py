"""Run directories with damaged, exchanged or missing files."""

import json
import os
import shutil
from functools import partial

import numpy as np
from safetensors.numpy import save_file

from spoiling import cut, edited, folder_instead, looped, rearranged, retold, write


def _spoiled_runs():
    file = "run.json"

    def told(**changes):
        return lambda run: edited(run / file, **changes)

    def model(**changes):
        return lambda run: edited(run / file, model={**json.loads((run / file).read_text())["model"], **changes})

    def batch(act, *values):
        return lambda run: act(run / "attention" / "batch-0001.safetensors", *values)

    def arrays(change):
        return batch(rearranged, change)

    def header(change):
        return batch(retold, change)

    def study(name, act, *values):
        return lambda run: [act(path, *values) for path in (run / "organize").rglob(name)]

    def fill(value, *where):
        def change(found):
            for name in [n for n in found if n.startswith("probs/")]:
                found[name][where] = value

        return change

    def shaped(change):
        def changed(found):
            for name in [n for n in found if n.startswith("probs/")]:
                found[name] = np.ascontiguousarray(change(found[name]))

        return changed

    def one_shaped(found):
        name = next(n for n in found if n.startswith("probs/"))
        found[name] = np.ascontiguousarray(found[name][:, :5])

    def without(found):
        del found[next(n for n in found if n.startswith("probs/"))]

    found = {
        "run.json garbage": lambda run: write(run / file, b"\xff{"),
        "run.json empty": lambda run: write(run / file, ""),
        "run.json list": lambda run: write(run / file, []),
        "run.json null": lambda run: write(run / file, "null"),
        "run.json deep": lambda run: write(run / file, "[" * 100_000),
        "run.json loop": lambda run: looped(run / file),
        "run.json unreadable": lambda run: (run / file).chmod(0),
        "run.json folder": lambda run: folder_instead(run / file),
        "run.json bare": lambda run: write(run / file, {"format": 1, "created": "x"}),
        "format of another": told(format=99),
        "format text": told(format="1"),
        "created gone": told(created=None),
        "created odd": told(created="[/red] \x1b[31m"),
        "model list": told(model=[]),
        "model empty": told(model={}),
        "model source a number": model(source=3, location=None),
        "model location a list": model(location=["x"]),
        "model location a loop": model(location="/proc/self/cwd/loop"),
        "model location long": model(location="x" * 5000),
        "model location with zero": model(location="a\0b"),
        "model dtype odd": model(dtype="int3"),
        "model dtype number": model(dtype=7),
        "model fingerprint other": model(fingerprint="0" * 64),
        "model fingerprint number": model(fingerprint=5),
        "model notes odd": model(notes=5, licence=[], quantized={}),
        "config list": told(config=[]),
        "config empty": told(config={}),
        "config batches text": told(config={"batches": "many", "tokens": "x", "seed": None}),
        "config batches huge": told(config={"batches": 10**18, "tokens": -1, "seed": -1}),
        "inputs list": told(inputs=[]),
        "inputs odd": told(inputs={"kind": 3, "texts": -1, "sha256": [], "windows": "x"}),
        "parity odd": told(parity=[1], versions=3, headscape=[]),
        "batch cut": batch(cut),
        "batch empty": batch(write, b""),
        "batch no safetensors": batch(write, b"x" * 500),
        "batch loop": batch(looped),
        "batch folder": batch(folder_instead),
        "batch unreadable": batch(lambda path: path.chmod(0)),
        "batch gone": batch(lambda path: path.unlink()),
        "every batch gone": lambda run: shutil.rmtree(run / "attention"),
        "attention a file": lambda run: (shutil.rmtree(run / "attention"), write(run / "attention", b"x")),
        "batch with another name": lambda run: write(run / "attention" / "batch-xx.safetensors", b"x"),
        "batch without header": batch(lambda p: save_file({"probs/decoder.0": np.zeros((1, 2, 2), np.float32)}, p)),
        "batch nan": arrays(fill(np.nan, 0, 5, 2)),
        "batch all nan": arrays(fill(np.nan, ...)),
        "batch infinite": arrays(fill(np.inf, 0, 5, 2)),
        "batch negative": arrays(fill(-1.0, ...)),
        "batch zero": arrays(fill(0.0, ...)),
        "batch large": arrays(fill(60_000.0, ...)),
        "batch other tokens": arrays(shaped(lambda a: a[:, :7, :7])),
        "batch one key": arrays(shaped(lambda a: a[:, :1, :1])),
        "batch no key": arrays(shaped(lambda a: a[:, :0, :0])),
        "batch other heads": arrays(shaped(lambda a: a[:2])),
        "batch two axes": arrays(shaped(lambda a: a[0])),
        "batch four axes": arrays(shaped(lambda a: a[None])),
        "batch whole numbers": arrays(shaped(lambda a: a.astype(np.int32))),
        "batch one layer shaped": arrays(one_shaped),
        "batch one layer gone": arrays(without),
        "header list": header(lambda info: []),
        "header empty": header(lambda info: {}),
        "header blocks list": header(lambda info: {**info, "blocks": []}),
        "header blocks empty": header(lambda info: {**info, "blocks": {}}),
        "header layers list": header(lambda info: {**info, "layers": []}),
        "header layers odd": header(lambda info: {**info, "layers": {"decoder": {"x": "y"}}}),
        "header layers more": header(lambda info: {**info, "layers": {"decoder": {"0": [0, 1], "77": [0]}}}),
        "header keep odd": header(lambda info: {**info, "keep": 3}),
        "header mask odd": header(lambda info: _in_block(info, mask="none")),
        "header tokens short": header(lambda info: _in_block(info, query_tokens=["a"], key_tokens=["b"])),
        "header tokens odd": header(lambda info: _in_block(info, query_tokens=5, key_tokens=[1, None])),
        "header tokens hostile": header(lambda i: _in_block(i, query_tokens=["</script><script>x"] * 16)),
        "header pool odd": header(lambda info: {**info, "pool": -3}),
        "study.json garbage": study("study.json", write, b"\xff"),
        "study.json list": study("study.json", write, []),
        "study.json odd": study("study.json", write, {"settings": [], "inputs": 3}),
        "study.json gone": study("study.json", lambda path: path.unlink()),
        "result.json garbage": study("result.json", write, "{"),
        "result.json list": study("result.json", write, []),
        "result.json empty object": study("result.json", write, {}),
        "result.json folder": study("result.json", folder_instead),
        "result.json of another format": study("result.json", edited),
        "result arrays cut": study("result.safetensors", cut),
        "result arrays empty": study("result.safetensors", write, b""),
        "result arrays gone": study("result.safetensors", lambda path: path.unlink()),
        "result tables odd": study("*.csv", write, b"\xff\xfe\0"),
        "units cut": lambda run: [cut(path) for path in (run / "organize" / "units").iterdir()],
        "units empty": lambda run: [write(path, b"") for path in (run / "organize" / "units").iterdir()],
        "units a file": lambda run: (shutil.rmtree(run / "organize" / "units"), write(run / "organize" / "units", b"")),
        "study a file": lambda run: (shutil.rmtree(run / "organize"), write(run / "organize", b"x")),
        "study a loop": lambda run: looped(run / "organize"),
        "study unreadable": lambda run: (run / "organize").chmod(0),
        "run unreadable": lambda run: run.chmod(0),
        "run read-only": _read_only,
        "run a file": lambda run: (shutil.rmtree(run), write(run, b"x")),
        "run a loop": looped,
        "locks garbage": lambda run: [write(lock, b"\xff{") for lock in _locks(run)],
        "locks lists": lambda run: [write(lock, []) for lock in _locks(run)],
        "locks odd": lambda run: [
            write(lock, dict.fromkeys(("pid", "host", "started", "birth"), "x")) for lock in _locks(run)
        ],
        "locks folders": lambda run: [lock.mkdir() for lock in _locks(run)],
        "locks of another machine": lambda run: [write(lock, _elsewhere()) for lock in _locks(run)],
        "locks of no process": lambda run: [
            write(lock, _elsewhere() | {"host": os.uname().nodename, "pid": 10**30}) for lock in _locks(run)
        ],
    }
    return found


def _in_block(info, **changes):
    return {**info, "blocks": {name: {**facts, **changes} for name, facts in info["blocks"].items()}}


def _locks(run):
    keys = [path.parent for path in run.glob("*/*/study.json")]
    return [run / "capture.lock", *(key.with_name(f"{key.name}.lock") for key in keys)]


def _elsewhere():
    return {"pid": 1, "host": "elsewhere", "started": "2020-01-01", "birth": "1"}


def _read_only(run):
    for path in [run, *(p for p in run.rglob("*") if p.is_dir())]:
        path.chmod(0o555)


def _run_case(spoil, place):
    spoil(place / "organized")
    text = ["--text", "text.txt"]
    yield ["organize", "organized"]
    yield ["organize", "organized", "--seed", "7", "--no-model"]
    yield ["report", "organized"]
    yield ["heads", "organized"]
    yield ["softmax", "organized", "--heads", "decoder.0.0", "--batches", "2", "--iterations", "1", "--no-model"]
    yield ["prune", "organized", *text, "--heads", "2", "--windows", "3", "--criterion", "l1_all"]
    yield ["compare", "organized", "other", "--out", "compared", "--draws", "20"]
    yield ["gaussian", "organized", "--no-model"]
    yield ["collapse", "organized", "--no-model"]
    yield ["spectra", "organized", "--rotations", "2", "--no-control"]
    yield ["series", "organized", "other", "--out", "followed"]
    yield ["runs", "list", "."]
    yield ["runs", "list", "organized"]
    yield [
        "capture",
        "model",
        *text,
        "--tokens",
        "16",
        "--batches",
        "4",
        "--keep",
        "probs,scores,hidden",
        "--out",
        "organized",
    ]


def families():
    """The family of runs: by name, a function of the folder in which the commands will run."""
    return {"run": {name: partial(_run_case, spoil) for name, spoil in _spoiled_runs().items()}}
