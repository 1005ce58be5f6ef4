"""Hostile inputs of every kind: each spoils a copy of something good and names the commands that are to meet it.

`FAMILIES[family]` gives cases by name; a case is called with the folder it may work in and returns argument lists.
"""

import inspect
import io
import json
import os
import pickle
import shutil
import struct
import typing
import zipfile
from functools import partial

import numpy as np
from safetensors.numpy import load_file, save_file

SHORT = ["--tokens", "8", "--batches", "2", "--keep", "probs,scores,hidden", "--out", "new"]
NUMBERS = ("nan", "inf", "-inf", "1e99", "-1", "0", "9" * 30, "", "x")


def write(path, content):
    """Bytes, text or JSON as a file."""
    path.unlink(missing_ok=True)
    if not isinstance(content, (bytes, str)):
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogateescape"))


def edited(path, **changes):
    """Change entries of a JSON file."""
    write(path, {**json.loads(path.read_text()), **changes})


def cut(path, share=0.5):
    data = path.read_bytes()
    write(path, data[: int(len(data) * share)])


def looped(path):
    """A link to itself in the place of a file or folder."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(path)


def folder_instead(path):
    path.unlink()
    path.mkdir()


def rearranged(path, change):
    """Change the arrays of a safetensors file, keeping what its header says beside them."""
    from headscape.storage import read_arrays, write_arrays

    arrays, said = read_arrays(path)
    arrays = {name: np.array(array) for name, array in arrays.items()}
    change(arrays)
    write_arrays(path, arrays, said)


def retold(path, change):
    """Change what the header of a batch says."""
    from headscape.storage import read_arrays, write_arrays

    arrays, said = read_arrays(path)
    info = json.loads(said["headscape"])
    write_arrays(path, arrays, {"headscape": json.dumps(change(info))})


# models


def _spoiled_models():
    def spoil(file, act, *values, **named):
        return lambda folder: act(folder / file, *values, **named)

    def config(**changes):
        return spoil("config.json", edited, **changes)

    weights = "model.safetensors"
    found = {
        "weights cut": spoil(weights, cut),
        "weights empty": spoil(weights, write, b""),
        "weights no safetensors": spoil(weights, write, b"x" * 1000),
        "weights header huge": spoil(weights, write, b"\xff" * 64),
        "weights loop": spoil(weights, looped),
        "weights folder": spoil(weights, folder_instead),
        "weights unreadable": lambda folder: (folder / weights).chmod(0),
        "folder unreadable": lambda folder: folder.chmod(0),
        "weights of another shape": lambda folder: _reshaped(folder / weights),
        "weights nan": lambda folder: _weights_nan(folder / weights),
        "weights lack a layer": lambda folder: _lacking(folder / weights),
        "weights index to nowhere": _index_to_nowhere,
        "config list": spoil("config.json", write, [1, 2]),
        "config null": spoil("config.json", write, "null"),
        "config empty": spoil("config.json", write, ""),
        "config cut": spoil("config.json", cut),
        "config not utf-8": spoil("config.json", write, b"\xff\xfe{}"),
        "config deep": spoil("config.json", write, "[" * 100_000),
        "config loop": spoil("config.json", looped),
        "config folder": spoil("config.json", folder_instead),
        "config unreadable": lambda folder: (folder / "config.json").chmod(0),
        "config gone": lambda folder: (folder / "config.json").unlink(),
        "type unknown": config(model_type="nosuch"),
        "type a list": config(model_type=["llama"]),
        "architectures unknown": config(architectures=["NoSuch"]),
        "architectures a number": config(architectures=3),
        "architectures of another": config(architectures=["BertForMaskedLM"]),
        "adapter beside": lambda folder: write(folder / "adapter_config.json", {"peft_type": "LORA"}),
        "adapter alone": _adapter_alone,
        "tokenizer gone": lambda folder: [p.unlink() for p in folder.glob("tokenizer*")],
        "tokenizer cut": spoil("tokenizer.json", cut),
        "tokenizer list": spoil("tokenizer.json", write, []),
        "tokenizer empty object": spoil("tokenizer.json", write, {}),
        "tokenizer config list": spoil("tokenizer_config.json", write, []),
        "tokenizer config cut": spoil("tokenizer_config.json", cut),
        "tokenizer beyond the embedding": _large_ids,
        "generation config cut": lambda folder: write(folder / "generation_config.json", "{"),
        "headscape notes list": lambda folder: write(folder / "headscape.json", []),
        "headscape notes odd": lambda folder: write(folder / "headscape.json", {"prefix": "x", "licence": 3}),
        "headscape notes cut": lambda folder: write(folder / "headscape.json", "{"),
        "plan odd": lambda folder: write(folder / "headscape_plan.json", [1]),
        "card not utf-8": lambda folder: write(folder / "README.md", b"license: \xff\n"),
        "kernel of the hub": config(attn_implementation="evil/kernel"),
    }
    sizes = ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "vocab_size")
    odd = {
        "nan": float("nan"),
        "0": 0,
        "-1": -1,
        "huge": 10**15,
        "text": "many",
        "list": [1],
        "none": None,
        "half": 1.5,
    }
    odd["infinite"] = float("inf")
    for size in (*sizes, "max_position_embeddings", "head_dim", "intermediate_size", "rms_norm_eps"):
        found |= {f"{size} {name}": config(**{size: value}) for name, value in odd.items()}
    return found


def _reshaped(path):
    arrays = load_file(path)
    save_file({name: a[..., :-1].copy() for name, a in arrays.items()}, path, {"format": "pt"})


def _weights_nan(path):
    arrays = load_file(path)
    save_file({name: np.full_like(a, np.nan) for name, a in arrays.items()}, path, {"format": "pt"})


def _lacking(path):
    arrays = load_file(path)
    save_file({name: a for name, a in arrays.items() if ".1." not in name}, path, {"format": "pt"})


def _index_to_nowhere(folder):
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../../elsewhere.safetensors")}
    write(folder / "model.safetensors.index.json", index)


def _adapter_alone(folder):
    for file in folder.iterdir():
        file.unlink()
    write(folder / "adapter_config.json", {"peft_type": "LORA", "base_model_name_or_path": "x"})
    save_file({"a": np.zeros(3, np.float32)}, folder / "adapter_model.safetensors")


def _large_ids(folder):
    said = json.loads((folder / "tokenizer.json").read_text())
    said["model"]["vocab"] = {token: i + 10_000 for token, i in said["model"]["vocab"].items()}
    write(folder / "tokenizer.json", said)


def _model_case(spoil, place):
    spoil(place / "model")
    text = ["--text", "text.txt"]
    yield ["check", "model"]
    yield ["capture", "model", *text, *SHORT]
    yield ["spectra", "model", "--rotations", "2", "--out", "new"]
    yield ["organize", "run"]
    yield ["prune", "organized", *text, "--heads", "2", "--windows", "3", "--criterion", "l1_all", "--out", "new"]
    yield ["prompt", "model", "--prompts", "1", "--shots", "1", "--alphas", "2", "--out", "new"]


# texts, images, arrays


def _texts():
    return {
        "binary": bytes(range(256)) * 40,
        "empty": b"",
        "blank": b" \n\t " * 100,
        "one huge line": b"word " * 400_000,
        "not utf-8": b"abc \xff\xfe" * 500,
        "zeros": b"\0" * 4000,
        "zeros between words": b"a word\0and " * 500,
        "byte order mark": b"\xef\xbb\xbf" + b"a word and " * 500,
        "lone surrogates": "a word \ud800".encode("utf-8", "surrogatepass") * 300,
        "control characters": "".join(map(chr, range(1, 32))).encode() * 200,
        "right to left and joined": "‮abc ‍👩‍👩‍👧 é ".encode() * 300,
        "too short": b"word",
    }


def _text_case(content, place):
    write(place / "text.txt", content)
    yield ["capture", "model", "--text", "text.txt", *SHORT]
    yield ["analyze", "model", "--text", "text.txt", "--tokens", "8", "--batches", "1", "--out", "new"]
    yield ["prune", "organized", "--text", "text.txt", "--heads", "2", "--windows", "3", "--criterion", "l1_all"]
    yield ["collapse", "model", "--text", "text.txt", "--tokens", "8", "--batches", "2", "--no-cells", "--out", "new2"]
    yield ["train", "gpt", "--text", "text.txt", *TRAINED]


def _text_places():
    def folder(place):
        (place / "text.txt").unlink()
        (place / "text.txt").mkdir()

    def nothing_in(place):
        folder(place)
        write(place / "text.txt" / "a.bin", b"x")

    def binary_in(place):
        folder(place)
        write(place / "text.txt" / "a.txt", b"\xff" * 300)

    return {
        "folder empty": folder,
        "folder without text": nothing_in,
        "folder with a binary": binary_in,
        "loop": lambda place: looped(place / "text.txt"),
        "unreadable": lambda place: (place / "text.txt").chmod(0),
        "gone": lambda place: (place / "text.txt").unlink(),
        "pipe": lambda place: ((place / "text.txt").unlink(), os.mkfifo(place / "text.txt")),
    }


def _text_place_case(act, place):
    act(place)
    yield ["capture", "model", "--text", "text.txt", *SHORT]
    yield ["prune", "organized", "--text", "text.txt", "--heads", "2", "--windows", "3"]
    yield ["train", "gpt", "--text", "text.txt", *TRAINED]


def _png(width=28, height=28):
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (width, height), 100).save(file, "PNG")
    return file.getvalue()


def _bomb():
    import zlib

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


class Evil:
    def __reduce__(self):
        return os.mkdir, ("EVIL",)


def _images():
    good = np.zeros((4, 28, 28), np.uint8)
    pickled = np.empty(1, object)
    pickled[0] = Evil()
    damaged = bytearray(_npz(images=np.arange(3136, dtype=np.uint8).reshape(4, 28, 28)))
    damaged[200:400] = b"x" * 200
    return {
        "cut.png": _png()[:40],
        "empty.png": b"",
        "text.png": b"no picture",
        "bomb.png": _bomb(),
        "tiny.png": _png(1, 1),
        "long.png": _png(5000, 1),
        "none.npz": _npz(images=np.zeros((0, 28, 28), np.uint8)),
        "flat.npz": _npz(images=np.zeros((4, 0, 0), np.uint8)),
        "complex.npz": _npz(images=good.astype(complex)),
        "words.npz": _npz(images=np.array(["a", "b"])),
        "pickled.npz": _npz(images=pickled),
        "nan.npz": _npz(images=np.full((4, 28, 28), np.nan)),
        "infinite.npz": _npz(images=np.full((4, 28, 28), np.inf)),
        "five axes.npz": _npz(images=np.zeros((1, 2, 3, 4, 5), np.uint8)),
        "one axis.npz": _npz(images=np.zeros(5, np.uint8)),
        "no axis.npz": _npz(images=np.uint8(3)),
        "other name.npz": _npz(x=good),
        "labels short.npz": _npz(images=good, labels=np.zeros(2, int)),
        "labels words.npz": _npz(images=good, labels=np.array(["a"] * 4)),
        "labels nan.npz": _npz(images=good, labels=np.full(4, np.nan)),
        "labels wild.npz": _npz(images=good, labels=np.array([-5, 99, 0, 10**12])),
        "cut.npz": _npz(images=good)[:100],
        "damaged.npz": bytes(damaged),
        "no zip.npz": b"x" * 300,
        "pickle.npz": pickle.dumps(Evil()),
        "other.xyz": b"x",
    }


def _image_case(name, content, place):
    write(place / name, content)
    short = ["--batches", "2", "--keep", "probs", "--out", "new"]
    yield ["capture", "vit-fmnist", "--images", name, *short]
    yield ["prune", "seen", "--images", name, "--heads", "2", "--windows", "3", "--criterion", "l1_all"]
    yield ["train", "vit", "--images", name, *TRAINED]


def _npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _npy_header(shape, descr="<f4"):
    text = str({"descr": descr, "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def _arrays():
    good = np.tril(np.ones((4, 6, 6))) / np.arange(1, 7)[:, None]
    pickled = np.empty(1, object)
    pickled[0] = Evil()
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("a.npy", _npy(pickled))
    return {
        "cut.npy": _npy(good)[:200],
        "pickled.npy": _npy(pickled),
        "pickled.npz": inner.getvalue(),
        "zip without arrays.npz": b"PK\x05\x06" + b"\0" * 18,
        "no zip.npz": b"xx",
        "claims terabytes.npy": _npy_header((10**6, 10**6, 10**3)),
        "claims overflow.npy": _npy_header((2**62, 2**62, 4)),
        "claims negative.npy": _npy_header((-1, 4, 4)),
        "claims objects.npy": _npy_header((3,), "|O") + pickle.dumps(Evil()),
        "no axis.npy": _npy(np.float64(1)),
        "empty.npy": _npy(np.zeros((0, 6, 6))),
        "no tokens.npy": _npy(np.zeros((4, 0, 0))),
        "two axes.npy": _npy(good[0]),
        "complex.npy": _npy(good.astype(complex)),
        "words.npy": _npy(np.array([["a"] * 3] * 3)),
        "dates.npy": _npy(np.zeros((4, 6, 6), "datetime64[s]")),
        "nan.npy": _npy(np.full((4, 6, 6), np.nan)),
        "large.npy": _npy(np.full((4, 6, 6), 1e300)),
        "negative.npy": _npy(-good),
        "above one.npy": _npy(3 * good),
        "cut.safetensors": b"\x10\0\0\0\0\0\0\0{}",
        "empty.safetensors": b"",
        "other.txt": b"1 2 3",
    }


def _array_case(name, content, place):
    write(place / name, content)
    for more in ([], ["--dtype", "float32"], ["--kind", "scores"], ["--name", "nosuch"]):
        yield ["import", name, "--layout", "head,query,key", "--out", f"new{len(more)}{more[-1:]}", *more]
    yield ["import", name, "--layout", "head,head,key", "--out", "new"]
    yield ["import", name, "--mask", "none", "--layout", "head,query,key", "--out", "new"]


# runs


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


# where results go


def _targets():
    return {
        "a file": lambda target: write(target, b"mine"),
        "a loop": looped,
        "a link to nowhere": lambda target: target.symlink_to("nowhere/at/all"),
        "a folder of mine": lambda target: (target.mkdir(), write(target / "thesis.txt", b"mine")),
        "read-only": lambda target: (target.mkdir(), target.chmod(0o555)),
        "below read-only": lambda target: target.parent.chmod(0o555),
        "below a file": lambda target: (target.parent.rmdir(), write(target.parent, b"mine")),
        "a long name": None,
        "a name with zero": None,
        "odd signs": None,
    }


def _target_case(name, act, place):
    (place / "to").mkdir()
    target = {"a long name": "x" * 300, "a name with zero": "a\x01b", "odd signs": "[red] *?\n'\" é"}.get(name, "new")
    if act is not None:
        act(place / "to" / target)
    out, text = f"to/{target}", ["--text", "text.txt"]
    yield ["capture", "model", *text, *SHORT[:-1], out]
    yield ["analyze", "model", *text, "--tokens", "8", "--batches", "1", "--out", f"{out}"]
    yield ["import", "good.npy", "--layout", "head,query,key", "--out", out]
    yield ["compare", "organized", "other", "--draws", "20", "--out", out]
    yield ["spectra", "model", "--rotations", "2", "--no-control", "--out", out]
    yield ["prune", "organized", *text, "--heads", "2", "--windows", "3", "--criterion", "l1_all", "--out", out]
    yield [
        "prune",
        "organized",
        *text,
        "--heads",
        "2",
        "--windows",
        "3",
        "--criterion",
        "l1_all",
        "--out",
        f"{out}.gguf",
    ]
    yield ["prompt", "model", "--prompts", "1", "--shots", "1", "--alphas", "2", "--no-control", "--out", out]
    yield ["series", "organized", "other", "--out", out]
    yield ["report", "organized", "--figures", out]
    yield ["collapse", "--table1", "--seeds", "1", "--depth", "1", "--out", out]
    yield ["train", "gpt", *text, *TRAINED[:-1], out]


# numbers

TRAINED = ["--arms", "standard", "--seeds", "1", "--rates", "0.001", "--steps", "2", "--search-steps", "1"]
TRAINED += ["--batch", "2", "--layers", "1", "--heads", "1", "--dim", "8", "--evaluations", "1", "--out", "trained"]
GOOD = {
    "analyze": ["model", "--text", "text.txt", "--tokens", "8", "--batches", "1", "--out", "new"],
    "heads": ["organized"],
    "check": ["model"],
    "capture": ["model", "--text", "text.txt", *SHORT],
    "import": ["good.npy", "--layout", "head,query,key", "--out", "new"],
    "organize": ["run", "--no-model"],
    "report": ["organized"],
    "softmax": ["run", "--heads", "decoder.0.0", "--batches", "2", "--iterations", "1", "--no-model"],
    "prune": ["organized", "--text", "text.txt", "--windows", "3", "--criterion", "l1_all", "--evaluations", "1"],
    "compare": ["organized", "other", "--out", "compared", "--draws", "20"],
    "spectra": ["model", "--rotations", "2", "--no-control", "--out", "new"],
    "gaussian": ["run", "--no-model"],
    "prompt": ["model", "--prompts", "1", "--shots", "1", "--alphas", "2", "--no-control", "--out", "new"],
    "collapse": ["model", "--text", "text.txt", "--tokens", "8", "--batches", "2", "--no-cells", "--out", "new"],
    "train": ["gpt", "--text", "text.txt", *TRAINED],
    "series": ["organized", "other", "--out", "followed"],
}
WORDS = {  # options that are words and hold numbers
    "capture": ["layers", "heads"],
    "analyze": ["heads"],
    "organize": ["heads", "device"],
    "softmax": ["heads", "show"],
    "prune": ["budget", "fractions", "repeats", "task-by", "unit", "kind", "compensation", "criterion", "criteria"],
    "prompt": ["alphas", "word"],
    "train": ["rates", "alpha", "alpha-hidden", "init", "autocast", "augment", "arms", "device"],
}


def _numeric_options():
    """By command, the options that take a number: read off the commands themselves."""
    from headscape.cli import _name, app

    for command in app.registered_commands:
        parameters = inspect.signature(command.callback, eval_str=True).parameters.values()
        hints = {p.name: typing.get_args(p.annotation)[0] for p in parameters if typing.get_args(p.annotation)}
        numeric = {int, float, int | None, float | None}
        names = [name.replace("_", "-") for name, hint in hints.items() if hint in numeric]
        yield _name(command), [*names, *WORDS.get(_name(command), [])]


def _number_case(command, option, place):
    for value in NUMBERS:
        yield [command, *GOOD[command], f"--{option}={value}"]


def families():
    """All cases: by family, by name, a function of the folder in which the commands will run."""
    return {
        "model": {name: partial(_model_case, spoil) for name, spoil in _spoiled_models().items()},
        "text": {name: partial(_text_case, content) for name, content in _texts().items()}
        | {name: partial(_text_place_case, act) for name, act in _text_places().items()},
        "image": {name: partial(_image_case, name, content) for name, content in _images().items()},
        "array": {name: partial(_array_case, name, content) for name, content in _arrays().items()},
        "run": {name: partial(_run_case, spoil) for name, spoil in _spoiled_runs().items()},
        "target": {name: partial(_target_case, name, act) for name, act in _targets().items()},
        "number": {
            f"{command} {option}": partial(_number_case, command, option)
            for command, options in _numeric_options()
            if command in GOOD
            for option in options
        },
    }
