"""Hostile inputs of every kind: each spoils a copy of something good and names the commands that are to meet it.

`families()[family]` gives cases by name; a case is called with the folder it may work in and returns argument lists.
"""

import inspect
import json
import typing
from functools import partial

import numpy as np
from safetensors.numpy import load_file, save_file

import hostile_inputs
import hostile_runs
from spoiling import SHORT, TRAINED, cut, edited, folder_instead, looped, write

NUMBERS = ("nan", "inf", "-inf", "1e99", "-1", "0", "9" * 30, "", "x")


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
    from headscape.cli import app
    from headscape.cli.help import name_of

    for command in app.registered_commands:
        parameters = inspect.signature(command.callback, eval_str=True).parameters.values()
        hints = {p.name: typing.get_args(p.annotation)[0] for p in parameters if typing.get_args(p.annotation)}
        numeric = {int, float, int | None, float | None}
        names = [name.replace("_", "-") for name, hint in hints.items() if hint in numeric]
        yield name_of(command), [*names, *WORDS.get(name_of(command), [])]


def _number_case(command, option, place):
    for value in NUMBERS:
        yield [command, *GOOD[command], f"--{option}={value}"]


def families():
    """All cases: by family, by name, a function of the folder in which the commands will run."""
    return {
        "model": {name: partial(_model_case, spoil) for name, spoil in _spoiled_models().items()},
        **hostile_inputs.families(),
        **hostile_runs.families(),
        "target": {name: partial(_target_case, name, act) for name, act in _targets().items()},
        "number": {
            f"{command} {option}": partial(_number_case, command, option)
            for command, options in _numeric_options()
            if command in GOOD
            for option in options
        },
    }
