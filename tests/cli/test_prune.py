"""The command prune: what it prints, writes and refuses."""

import json
import sys

import numpy as np
import pytest

import headscape as hs
from headscape.cli import main
from prunable import contents


@pytest.fixture
def command(monkeypatch, capfd):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["headscape", "prune", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capfd.readouterr()
        return stopped.value.code or 0, printed.out, printed.err

    return call


@pytest.fixture(scope="module")
def vit_run(tmp_path_factory, load):
    folder = tmp_path_factory.mktemp("vit") / "run"
    hs.capture(load("vit-fmnist"), hs.sample_images(), batches=6, out=folder)
    return folder


OPTIONS = ["--threads", "1", "--quiet"]


def test_it_proposes_writes_a_smaller_model_and_does_not_mind_being_asked_again(vit_run, tmp_path, command):
    small = tmp_path / "small"
    request = [vit_run, "--budget", "5%", "--out", small, "--kind", "ragged", *OPTIONS]
    code, out, err = command(*request, "--json")
    assert code == 0, err
    printed = json.loads(out)
    assert printed["heads"] and printed["compensation"] == "linear" and "parameters" in printed["export"]
    assert {"criterion", "findings", "abilities", "classes", "recipe"} < set(printed)
    accuracy = printed["abilities"][0]  # not the loss, beside a cost in accuracy
    assert 0.6 < accuracy["intact"] <= 1 and 0.4 < accuracy["now"] <= 1
    smaller = hs.load_model(small)
    assert sum(site.n_heads for site in smaller.sites) == 36 - len(printed["heads"])
    images, labels = hs.sample_images()
    before = hs.loss(hs.load_model("vit-fmnist"), (images, labels)).accuracy
    assert hs.loss(smaller, (images, labels)).accuracy > before - 0.15
    written, kept = contents(small), contents(vit_run)
    code, out, err = command(*request)  # as after a kill between export and print
    assert code == 0, err
    assert f"removed: {' '.join(printed['heads'])}" in " ".join(out.split()) and "logits" in out
    assert contents(small) == written and contents(vit_run) == kept
    code, _, err = command(vit_run, "--budget", "1%", "--out", small, "--kind", "ragged", *OPTIONS)
    assert code == 2 and "not an empty folder" in err and contents(vit_run) == kept


def test_mistakes_are_named_in_one_line(vit_run, tmp_path, command):
    kept = contents(vit_run)
    for arguments, message in (
        (["--budget", "0%"], "the budget must be above 0 %"),
        (["--budget", "much"], "'much' is not a number"),
        (["--heads", "400"], "400 heads are to be removed and vit-fmnist has 36"),
        (["--kind", "tiny"], "kind is one of auto, gguf, masked, ragged, uniform"),
        (["--out", "x.gguf", "--kind", "ragged"], "kind gguf writes a file that ends in .gguf"),
        (["--out", "x.gguf", "--numbers", "q2"], "number type of a GGUF file is one of f16, q8_0, q4_1"),
        (["--budget", "copy=2%"], "no ability 'copy' to budget; here there are accuracy"),
        (["--budget", "accuracy=1%,accuracy=2%"], "names each once with a share"),
        (["--budget", "accuracy=1%,copy"], "names each once with a share"),
        (["--out", "x.gguf"], "GGUF files are written for Llama-type models, not for vit"),
        (["--out", "small", "--numbers", "q8_0"], "q8_0 is a number type of GGUF files"),
        (["--repeats", "nan"], "the share of repeats lies between 0 and 1"),
        (["--heal", "3"], "healing distils the next token"),
        (["--task", "any.jsonl"], "for a model that predicts text, and vit-fmnist does not"),
        (["--criterion", "best"], "no criterion 'best'"),
        (["--out", str(vit_run)], "not an empty folder"),
        (["--text", "a", "--images", "b"], "give --text or --images, not both"),
    ):
        code, _, err = command(vit_run, "--quiet", *arguments)
        assert code == 2 and message in " ".join(err.split()), err
        assert contents(vit_run) == kept, "refused before anything is computed"
    np.save(tmp_path / "a.npy", np.full((1, 2, 2, 8, 8), 1 / 8))
    hs.import_array(tmp_path / "a.npy", tmp_path / "own", layout="batch,layer,head,query,key", mask="full")
    code, _, err = command(tmp_path / "own")
    assert code == 2 and "was imported and has no model" in " ".join(err.split())
