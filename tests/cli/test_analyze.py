"""analyze: every architecture of the zoo, prompts of any lengths, and what is refused before a model is loaded."""

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import CliRunner

import headscape as hs
from commands import headscape, one_line_error
from headscape.cli import app
from headscape.studies import load_results
from zoo import ZOO, make

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "the",
    "cat",
    "slept",
    "while",
    "a",
    "dog",
    "ran",
    "to",
    "the",
    "mat",
]
BLOCKS = {"t5": ["encoder", "decoder", "decoder.cross"], "bart": ["encoder", "decoder", "decoder.cross"]}


def saved(name, folder):
    """A tiny model of the zoo as a folder with a tokenizer of words."""
    make(name).save_pretrained(folder)
    known = {word: 10 + i for i, word in enumerate(sorted(set(WORDS)))} | {"[UNK]": 3}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    return folder


def analyze(*arguments):
    done = CliRunner().invoke(app, ["analyze", *map(str, arguments), "-q"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", ZOO)
def test_every_architecture_has_its_landscape(name, tmp_path):
    folder, run = saved(name, tmp_path / name), tmp_path / "run"
    (tmp_path / "words.txt").write_text(" ".join(WORDS * 2))
    given = ["--batches", 2] if name == "vit" else ["--text", tmp_path / "words.txt", "--tokens", 12, "--batches", 2]
    analyze(folder, *given, "--out", run)
    captured = hs.open_capture(run)
    assert set(captured.blocks) == set(BLOCKS.get(name, captured.blocks)) and (
        name in BLOCKS or len(captured.blocks) == 1
    )
    results = load_results(hs.Run.open(run))
    assert [result.block for result in results] == captured.blocks
    for result in results:
        heads = captured.heads(result.block)
        assert [tuple(row) for row in result.heads[["block", "layer", "head"]].itertuples(index=False)] == heads
        assert result.tree.n_leaves == len(heads) == 8
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count('class="card head_map') == len(captured.blocks)
    assert 'class="problem"' not in page.split("<main>")[1].split("</main>")[0]
    found = hs.find_heads(run, "first", None)
    assert len(found) == 8 * len(captured.blocks)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved("llama", tmp_path_factory.mktemp("models") / "llama")


@pytest.mark.parametrize(
    "prompts", [["the"], ["the cat"], ["the cat sat"], ["the cat sat on a mat", "a dog ran", "the"]]
)
def test_prompts_of_any_number_and_length(llama, tmp_path, prompts):
    run = tmp_path / "run"
    analyze(llama, *[part for prompt in prompts for part in ("--prompt", prompt)], "--out", run)
    assert [len(X.query_tokens) for X in hs.open_capture(run)] == [len(prompt.split()) for prompt in prompts]
    result = hs.open_result(run, "organize")
    assert result.n_batches == len(prompts)
    verdicts = {f.claim or f.text: f.verdict for f in result.findings()}
    assert "holds" not in verdicts.values() or len(prompts) > 2
    assert (run / "report.html").is_file()


def test_two_prompts_stand_side_by_side(llama, tmp_path):
    run = tmp_path / "run"
    said = analyze(
        llama, "--prompt", "the cat sat on a mat", "--prompt", "the dog sat on a mat and slept", "--out", run
    )
    result = hs.open_result(run, "change")
    assert "changed most" in said
    ranked = result.ranked()
    assert ranked["change"].is_monotonic_decreasing and len(ranked) == 8
    place = hs.HeadId.parse(result.top[0])
    assert (place.layer, place.head) == tuple(ranked.loc[0, ["layer", "head"]])
    first, second = result.maps[0]
    assert (first.values.shape, second.values.shape) == ((6, 6), (8, 8))
    panels = result.figures()[0].data["panels"]
    assert panels[0]["high"] == panels[1]["high"]  # one scale for both
    assert "Two prompts side by side" in (run / "report.html").read_text(encoding="utf-8")


def test_scores_are_kept_when_asked(llama, tmp_path):
    analyze(llama, "--prompt", "the cat sat", "--keep", "probs,scores", "--out", tmp_path / "run")
    assert hs.open_capture(tmp_path / "run").kept == ["probs", "scores"]


def test_what_cannot_be_is_said_before_a_model_is_loaded(tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    for arguments, said in [
        (["smollm2-135m", "--prompt", " "], "prompt 1 is empty"),
        (["smollm2-135m", "--text", "empty.txt"], "the text is empty"),
        (["smollm2-135m", "--text", "none.txt"], "no file or folder 'none.txt'"),
        (["smollm2-135m", "--prompt", "a", "--text", "empty.txt"], "give --text or --prompt, not both"),
        (["smollm2-135m", "--keep", "maps"], "keep is a selection of probs"),
        (["smollm2-135m", "--keep", "hidden"], "analyze needs maps"),
        (["smollm2-135m", "--pool", "0"], "'--pool'"),
        (["./nosuchfolder"], "no model folder or .gguf file at nosuchfolder"),
    ]:
        assert said in one_line_error(headscape("analyze", *arguments, cwd=tmp_path), 2)
    done = headscape("analyze", "smollm2-135m", "--tokens", "-5", cwd=tmp_path)
    assert done.returncode == 2 and "greater than or equal to 1" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_what_the_network_does_not_have_is_said_before_it_is_run(llama, tmp_path):
    (tmp_path / "words.txt").write_text(" ".join(WORDS * 2))
    text = ["--text", str(tmp_path / "words.txt"), "--tokens", "12", "--batches", "2"]
    for arguments, said in [
        ([llama, *text, "--heads", "99"], "'99' is not a head"),
        ([llama, *text, "--heads", "99.1"], "has no head decoder.99.1"),
        ([llama, *text, "--heads", "decoder.99.0"], "has no head decoder.99.0"),
        ([llama, *text, "--block", "cross"], "has no block 'cross'; there are decoder"),
        ([llama, "--images", tmp_path / "words.txt"], "reads text, not images"),
        (["vit-fmnist", "--prompt", "the cat"], "reads images, not text"),
        (["vit-fmnist", *text], "reads images, not text"),
    ]:
        done = CliRunner().invoke(app, ["analyze", *map(str, arguments), "--out", str(tmp_path / "run")])
        assert done.exit_code != 0 and said in str(done.exception), done.output
        assert not (tmp_path / "run").exists()
