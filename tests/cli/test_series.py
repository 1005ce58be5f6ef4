"""headscape series: from runs and from saved checkpoints, as a user meets it."""

import json

import pytest
import torch

import headscape as hs
from commands import closing, headscape, one_line_error
from tiny import attention
from zoo import make


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("cli-series")
    for step in (0, 10, 20):
        hs.from_attentions(
            [[layer[None] for layer in attention(seed)] for seed in (step, step + 1)],
            out=place / "runs" / f"step-{step}",
        )
    return place


def test_a_folder_of_runs_becomes_tables_and_a_page_with_a_slider(runs):
    done = headscape("series", runs / "runs", "--quiet", cwd=runs)
    assert done.returncode == 0, done.stderr
    assert "by step" in done.stdout and "heads end without one" in done.stdout
    assert closing(done.stdout)[1] == str(runs / "runs" / "series.html")
    page = (runs / "runs" / "series.html").read_text()
    assert '"sliders"' in page and "step 20" in page and "This picture is missing" not in page
    found = json.loads(headscape("series", runs / "runs", "--json", "--quiet", cwd=runs).stdout)
    assert {"findings", "births", "steps", "heads", "history"} == set(found)
    assert [row["step"] for row in found["steps"]] == [0, 10, 20]


def test_saved_checkpoints_are_captured_first(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["[UNK]", "the", "cat", "sat", "on", "mat", "and", "dog", "ran", "far"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    for step in (5, 10):
        make("gpt2").save_pretrained(tmp_path / "saved" / f"checkpoint-{step}")
        PreTrainedTokenizerFast(tokenizer_object=plain).save_pretrained(tmp_path / "saved" / f"checkpoint-{step}")
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran far " * 6)
    options = ["--text", tmp_path / "text.txt", "--tokens", "16", "--batches", "2", "--quiet"]
    done = headscape("series", tmp_path / "saved", "--out", tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr
    assert list(hs.Run.open(tmp_path / "out" / "step-00000010").finished_batches) == [0, 1]
    assert (tmp_path / "out" / "series.html").is_file()
    one_line_error(headscape("series", tmp_path / "saved", *options), 2)


def test_mistakes_are_one_line(runs, tmp_path):
    assert "no folder" in one_line_error(headscape("series", tmp_path / "nowhere"), 2)
    assert "0 runs" in one_line_error(headscape("series", tmp_path), 2)
    assert "--out" in one_line_error(headscape("series", runs / "runs" / "step-0", runs / "runs" / "step-10"), 2)
