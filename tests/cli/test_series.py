"""headscape series: from runs and from saved checkpoints, as a user meets it.

Also tests report.series_page, studies.series.checkpoints.
"""

import json
import re

import pytest
import torch

import headscape as hs
from commands import closing, headscape, one_line_error
from headscape.studies.series import capture_checkpoints
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
    assert (
        "3 checkpoints, from step 0 to 20" in page
        and re.search(r'"sliders": ?\[\{"active": ?0', page)
        and "step 20" in page
        and "This picture is missing" not in page
    )
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
    saved = tmp_path / "saved"
    PreTrainedTokenizerFast(tokenizer_object=plain).save_pretrained(saved / "checkpoint-5")
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog ran far " * 6)
    options = ["--text", tmp_path / "text.txt", "--tokens", "16", "--batches", "2", "--quiet"]
    done = headscape("series", saved, "--out", tmp_path / "out", *options)  # the second reads as the first does
    assert done.returncode == 0, done.stderr
    assert list(hs.Run.open(tmp_path / "out" / "step-00000010").finished_batches) == [0, 1]
    assert (tmp_path / "out" / "series.html").is_file()
    assert "--out" in one_line_error(headscape("series", saved, *options), 2)
    (saved / "checkpoint-5" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    failed = one_line_error(headscape("series", saved, "--out", tmp_path / "none", *options), 2)
    assert "no tokenizer in" in failed and "--tokenizer" in failed and not (tmp_path / "none").exists()
    done = headscape("series", saved, "--out", tmp_path / "given", *options, "--tokenizer", tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "tokenizer.json").rename(saved / "tokenizer.json")  # where a trainer puts that of its last model
    capture_checkpoints(saved, tmp_path / "text.txt", tmp_path / "beside", tokens=16, batches=2)
    runs = [hs.open_capture(tmp_path / out / "step-00000010") for out in ("out", "given", "beside")]
    assert len({run.tensor(1).values.tobytes() for run in runs}) == 1
    assert runs[2].tensor(1).query_tokens == runs[0].tensor(1).query_tokens


def test_checkpoints_that_see_images_take_the_sample(tmp_path):
    for step in (1, 2):
        make("vit").save_pretrained(tmp_path / "saved" / f"checkpoint-{step}")
    capture_checkpoints(tmp_path / "saved", None, tmp_path / "out", batches=1)
    assert hs.Run.open(tmp_path / "out" / "step-00000002").meta["inputs"]["kind"] == "images"


def test_mistakes_are_one_line(runs, tmp_path):
    assert "no folder" in one_line_error(headscape("series", tmp_path / "nowhere"), 2)
    assert "0 runs" in one_line_error(headscape("series", tmp_path), 2)
    assert "--out" in one_line_error(headscape("series", runs / "runs" / "step-0", runs / "runs" / "step-10"), 2)
