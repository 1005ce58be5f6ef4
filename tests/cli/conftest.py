"""A small run, and a small model with a text, that commands are tried on."""

import pytest

import headscape as hs
from prunable import JUDGE, reader


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three inputs of a tiny Llama in a folder, probabilities and scores, for one module."""
    place = tmp_path_factory.mktemp("command")
    hs.capture(reader(place / "model"), JUDGE, tokens=24, batches=3, keep=("probs", "scores"), out=place / "run")
    return place / "run"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with a tiny Llama and the tokenizer of a bundled model cut to its vocabulary."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    from zoo import make

    folder = tmp_path_factory.mktemp("tiny") / "llama"
    make("llama").save_pretrained(folder)
    words = {f"w{i}": i for i in range(99)} | {"[UNK]": 99}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    text = folder.parent / "text.txt"
    text.write_text(" ".join(f"w{i % 97}" for i in range(400)))
    return folder, text
