"""No folder's own code runs, whatever is answered on standard input, and a broken folder is one line."""

import contextlib
import io
import json
import sys

import numpy as np
import pytest

import headscape as hs
from headscape.attention.loading import read_config, read_tokenizer
from headscape.cli import main
from zoo import make

EVIL = """
from pathlib import Path
Path({marker!r}).write_text("ran")
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
class Config(PretrainedConfig):
    model_type = "strange"
class Model(PreTrainedModel):
    config_class = Config
class Words(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def evil(tmp_path):
    """A model folder that asks transformers to import evil.py, and the file which that import would leave."""
    folder, marker = tmp_path / "strange", tmp_path / "marker"
    make("llama").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "strange", "architectures": ["Model"]}
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {"tokenizer_class": "Words", "auto_map": {"AutoTokenizer": ["evil.Words", "evil.Words"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "evil.py").write_text(EVIL.format(marker=str(marker)))
    return folder, marker


@pytest.fixture
def run_of_evil(evil, tmp_path):
    """A stranger's run that says its model is that folder."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(3, 2, 4, 12, 12)).astype(np.float32)
    np.save(tmp_path / "scores.npy", scores)
    path = tmp_path / "run"
    hs.import_array(tmp_path / "scores.npy", path, layout="batch,layer,head,query,key", kind="scores")
    meta = json.loads((path / "run.json").read_text())
    meta["model"] = {"source": str(evil[0]), "fingerprint": "0" * 64}
    (path / "run.json").write_text(json.dumps(meta))
    return path


def answer(monkeypatch, capsys, *arguments):
    """Run a command that is told "y" whenever it asks; its exit code and what it said."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 100))
    monkeypatch.setattr(sys, "argv", ["headscape", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    return stopped.value.code, " ".join((said.out + said.err).split())


@pytest.mark.parametrize(
    "command",
    [
        ["check", "MODEL"],
        ["capture", "MODEL", "--out", "OUT"],
        ["analyze", "MODEL", "--out", "OUT"],
        ["spectra", "MODEL", "--out", "OUT"],
        ["prompt", "MODEL", "--out", "OUT"],
        ["collapse", "MODEL", "--out", "OUT"],
        ["train", "gpt", "--tokenizer", "MODEL", "--out", "OUT"],
        ["prune", "RUN"],
        ["gaussian", "RUN"],
        ["spectra", "RUN"],
        ["organize", "RUN", "--random-weights"],
        ["softmax", "RUN", "--random-weights"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_no_command_runs_the_code_of_a_folder(command, evil, run_of_evil, tmp_path, monkeypatch, capsys):
    folder, marker = evil
    places = {"MODEL": folder, "RUN": run_of_evil, "OUT": tmp_path / "out"}
    code, said = answer(monkeypatch, capsys, *(places.get(word, word) for word in command))
    assert not marker.exists(), "the folder's code was run"
    assert code == 2, said
    assert "does not run" in said and "wrap_module" in said and "evil." in said, said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("study", ["organize", "collapse"])
def test_a_study_that_can_do_without_its_model_says_why_it_does(study, run_of_evil, evil, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 100))
    monkeypatch.setattr(sys, "argv", ["headscape", study, str(run_of_evil)])
    with contextlib.suppress(SystemExit):
        main()
    assert not evil[1].exists()
    assert "does not run" in " ".join("".join(capsys.readouterr()).split())


def test_a_known_architecture_loads_without_the_code_beside_it(tmp_path):
    folder, marker = tmp_path / "llama", tmp_path / "marker"
    make("llama").save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(EVIL.format(marker=str(marker)))
    assert hs.load_model(folder).family == "llama"
    assert not marker.exists()


def test_a_class_that_is_no_network_is_not_called(tmp_path):
    make("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["pipeline"]}))
    assert type(hs.load_model(tmp_path).module).__name__ == "LlamaModel"


def test_attention_from_a_hub_kernel_is_refused(tmp_path):
    make("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"attn_implementation": "someone/kernel"}))
    with pytest.raises(hs.InputError, match="someone/kernel"):
        hs.load_model(tmp_path)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("model.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"),
        ("tokenizer.json", b"{}"),
    ],
)
def test_a_broken_folder_is_one_line(tmp_path, file, content):
    make("llama").save_pretrained(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(hs.InputError) as error:
        hs.load_model(tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("layers", [10**15, float("inf")])
def test_more_layers_than_can_be_built_are_refused(layers, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "clip", "text_config": {"num_hidden_layers": layers}})
    )
    with pytest.raises(hs.InputError, match=r"config.json says num_hidden_layers = .*; up to 10,000 layers are built"):
        read_config(tmp_path)


def test_an_impossible_configuration_is_one_line(tmp_path):
    make("gpt2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_head": 0}))
    with pytest.raises(hs.InputError, match="cannot be read as a model"):
        hs.load_model(tmp_path)


def test_a_tokenizer_with_its_own_code_is_refused(evil):
    with pytest.raises(hs.InputError, match="does not run"):
        read_tokenizer(evil[0])
    assert not evil[1].exists()
