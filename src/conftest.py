"""Names that the examples in docstrings may use (docs/api.md lists them), each made once and only where it is used."""

import re

import numpy as np
import pytest


@pytest.fixture(scope="session")
def model():
    """A tiny GPT-2 with random weights that reads letters."""
    import torch
    import transformers
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    import headscape as hs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    letters = Tokenizer(models.WordLevel({chr(code): code - 32 for code in range(32, 127)}, unk_token="?"))
    letters.pre_tokenizer, letters.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=letters, unk_token="?")
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512, "vocab_size": 95}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, initializer_range=0.1)
    return hs.wrap_module(transformers.GPT2LMHeadModel(config).eval(), tokenizer=tokenizer, name="tiny")


@pytest.fixture(scope="session")
def run(model, tmp_path_factory):
    """Its attention on four inputs of 16 letters, as a run directory."""
    import headscape as hs

    path = tmp_path_factory.mktemp("runs") / "tiny"
    hs.capture(model, [hs.sample_text()[:400]], tokens=16, batches=4, keep=("probs", "scores"), out=path)
    return path


@pytest.fixture(scope="session")
def X(run):  # noqa: N802
    """The attention of its first input."""
    import headscape as hs

    return hs.open_capture(run).tensor(0)


@pytest.fixture(autouse=True)
def _names(request, doctest_namespace, tmp_path, monkeypatch):
    """What an example mentions; it runs in an empty folder."""
    import headscape as hs

    monkeypatch.chdir(tmp_path)
    source = "".join(example.source for example in request.node.dtest.examples)
    used = set(re.findall(r"\w+", source)) - set(re.findall(r"(\w+) =", source))  # its own names come first
    made = {name: request.getfixturevalue(name) for name in ("model", "run", "X") if name in used}
    doctest_namespace.update({"hs": hs, "np": np} | made)
