"""The first screen quotes the input as people read it."""

from fakes import attention, make_run
from headscape.captures import open_capture
from headscape.report.gather import Scene
from headscape.report.summary import excerpt, facts


def test_word_pieces_are_quoted_as_words(tmp_path):
    pieces = ["[CLS]", "an", "aw", "##ful", "charge", "."]
    run = make_run(tmp_path / "run", attention(1, 1, 6), tokens=pieces)
    run.meta["inputs"]["kind"] = "text"
    assert excerpt(open_capture(run), run.meta["inputs"]) == "[CLS] an awful charge ."
    run = make_run(tmp_path / "other", attention(1, 1, 3), tokens=["An", " aw", "ful"])
    run.meta["inputs"]["kind"] = "text"
    assert excerpt(open_capture(run), run.meta["inputs"]) == "An awful"


def test_model_and_input_stay_one_line_and_the_rest_is_told_later(tmp_path):
    run = make_run(tmp_path / "run", attention(2, 3, 6))
    run.meta["model"]["quantized"] = "Q4_1 (4 bits; 0.7 % of the energy of the layers is rounding)"
    told = facts(run, Scene(open_capture(run).heads("decoder"), [], [], []), open_capture(run))
    assert told[0] == ("Model", "made up, none; 6 heads in 2 layers; 12,345 parameters; weights Q4_1")
    assert told[-1] == ("Weights", "quantized: Q4_1 (4 bits; 0.7 % of the energy of the layers is rounding)")


def told_of(run, **sections):
    for name, facts_of in sections.items():
        run.meta[name] = facts_of
    return dict(facts(run, Scene(open_capture(run).heads("decoder"), [], [], []), open_capture(run)))


def test_lengths_of_two_prompts_are_told_in_their_order(tmp_path):
    run = make_run(tmp_path / "run", attention(1, 1, 6))
    for lengths, said in (
        ([16, 14], " of 16 and 14 tokens;"),
        ([7, 7], " of 7 tokens;"),
        ([9, 3, 5], " of 3 to 9 tokens;"),
    ):
        assert said in told_of(run, inputs={"kind": "text", "lengths": lengths})["Input"]


def test_attention_from_memory_is_not_called_a_file(tmp_path):
    run = make_run(tmp_path / "run", attention(1, 1, 6))
    told = told_of(run, model={}, config={"kind": "memory"}, inputs={"kind": "memory"})
    assert told["Model"] == "1 head in 1 layer; attention given in memory, no model"
