"""Ranking, choosing and judging share no input, and what is fitted is never judged on."""

import numpy as np
import pytest

import headscape as hs
from headscape.pruning.judges import sentence_pairs
from headscape.studies.prune.inputs import REPEATS, prepare_inputs
from headscape.studies.prune.pruning import Pruning
from prunable import JUDGE, RANK


def inputs_for(model, captured, inputs, windows, **more):
    return prepare_inputs(
        Pruning.of(captured, model, captured.blocks[0], inputs=inputs, windows=windows, **more), model, captured
    )


def windows_of(judge):
    keys = judge.parts["text"]
    tasks = [task for key, several in judge.pieces if key in keys for task in several]
    return {row.numpy().astype(np.int64).tobytes() for task in tasks for row in task.arguments["input_ids"]}


def ids_of(samples):
    return [sample.stored["input_ids"].tobytes() for sample in samples]


def test_no_window_is_ranked_on_and_judged_on(run, model):
    captured = hs.open_capture(run)
    found = inputs_for(model, captured, [*RANK, *JUDGE], 6)
    ranked, chosen, judged = set(ids_of(found.evidence.samples)), windows_of(found.choosing), windows_of(found.judging)
    assert chosen and judged and not (chosen & judged or ranked & chosen or ranked & judged)
    with pytest.raises(hs.InputError, match="were ranked on or repeat others; at least 4 others are needed"):
        inputs_for(model, captured, RANK, 6)


def test_inputs_that_repeat_are_judged_on_once(run, model):
    """A text given three times over would make n three times as large, and be chosen on and judged on."""
    captured = hs.open_capture(run)
    once, often = (inputs_for(model, captured, JUDGE * k, 12) for k in (1, 3))
    assert once.facts["judged_on"] == often.facts["judged_on"] == len(windows_of(often.judging))
    assert not windows_of(often.choosing) & windows_of(often.judging)
    with pytest.raises(hs.InputError, match="repeat others; at least 4"):
        inputs_for(model, captured, [JUDGE[0][:36]] * 9, 12)
    rows = [(f"the {word} ", word[::-1]) for word in ["one", "two", "three", "four"]] * 4
    with pytest.raises(hs.InputError, match="the task has 4 different rows"):
        inputs_for(model, captured, JUDGE, 4, task=rows)


def test_sentences_that_repeat_make_no_further_pairs():
    words = ["red", "green", "blue", "black", "white", "grey", "brown", "pink"]
    text = " ".join(f"The {word} house stood at the end of the road." for word in words)
    pairs = sentence_pairs([text, text, text], 40)
    assert len(pairs) == len(set(pairs)) and sorted(pairs) == sorted(sentence_pairs([text], 40))
    rest = sentence_pairs([text], 40, without={f"The {word} house stood at the end of the road." for word in words[:5]})
    assert {word for pair in rest for sentence in pair for word in sentence.split()} & set(words) == set(words[5:])


@pytest.mark.parametrize("windows", [6, 8, 10])
def test_other_abilities_are_shown_in_half_of_the_windows_of_their_part(run, model, windows):
    found = inputs_for(model, hs.open_capture(run), [hs.sample_text("judge")[:800]], windows)
    parts = {"chosen_on": found.choosing, "judged_on": found.judging}
    assert {name: len(judge.parts["copy.text"]) for name, judge in parts.items()} == {
        name: max(2, found.facts[name] // 2) for name in parts
    }


def test_more_windows_keep_those_of_fewer(run, model):
    captured = hs.open_capture(run)
    few, more = (inputs_for(model, captured, JUDGE, n) for n in (4, 8))
    assert (few.facts["chosen_on"], few.facts["judged_on"]) == (2, 4)
    assert (more.facts["chosen_on"], more.facts["judged_on"]) == (4, 8)
    kept = windows_of(more.choosing) | windows_of(more.judging)
    assert windows_of(few.choosing) | windows_of(few.judging) < kept and len(kept) == 12


def test_what_is_calibrated_on_is_text_and_repeats_and_never_judged_on(run, model):
    captured = hs.open_capture(run)
    plain = inputs_for(model, captured, JUDGE, 4)
    found = inputs_for(model, captured, JUDGE, 4, calibrate=[*RANK, JUDGE[0][:40]])
    for one in (plain, found):
        ranked, n = ids_of(one.evidence.samples), one.facts["calibrated_on"]
        text, repeated = ids_of(one.evidence.fit)[: len(ranked) + n], one.evidence.fit[len(ranked) + n :]
        assert text[: len(ranked)] == ranked and n and len(set(text)) == len(text)
        assert not (windows_of(one.choosing) | windows_of(one.judging)) & set(text)
        assert (
            len(repeated) == one.facts["repeats"] and abs(len(repeated) - REPEATS * (len(text) + len(repeated))) <= 0.5
        )
        for sample in repeated:
            ids = sample.stored["input_ids"]
            assert (ids[:6] == ids[6:]).all()
    assert found.data["fitted"] != plain.data["fitted"] and found.data["ranked"] == plain.data["ranked"]
    assert inputs_for(model, captured, JUDGE, 4, repeats=0.0).facts["repeats"] == 0


def test_healing_takes_new_windows_of_the_calibration_text_and_none_that_is_judged_on(run, model):
    captured, text = hs.open_capture(run), [hs.sample_text("judge")[:4000]]
    for given in ({}, {"calibrate": text}):  # a part of the text, and the same text for both
        plain, found = (inputs_for(model, captured, text, 4, heal=heal, **given) for heal in (0, 60))
        assert not plain.healing and "healed" not in plain.data and plain.data["fitted"] == found.data["fitted"]
        fitted, healed = set(ids_of(found.evidence.fit)), ids_of(found.healing)
        assert not (windows_of(found.choosing) | windows_of(found.judging)) & set(healed)
        assert len(healed) > len(fitted) and len(set(healed) - fitted) > 3
        assert sum(sample.origin[0] == "repeats" for sample in found.healing) == round(len(healed) * REPEATS)
    few = inputs_for(model, captured, text, 4, heal=1)
    assert not few.healing, "what is calibrated on is enough"


def test_a_task_is_split_into_rows_to_calibrate_choose_and_judge_on(run, model):
    rows = [
        (f"the {word} ", word[::-1])
        for word in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    ]
    found = inputs_for(model, hs.open_capture(run), JUDGE, 4, task=rows)
    parts = [found.choosing.parts["task"], found.judging.parts["task"]]
    assert [len(part) for part in parts] == [2, 4] and not set(parts[0]) & set(parts[1])
    assert [s.origin for s in found.evidence.fit[-2:]] == [["task", 0], ["task", 1]]


def test_an_encoder_is_fitted_on_sentences_it_is_not_judged_on(load):
    """Second moments on long windows are not those of sentences, and an encoder is judged on sentences."""
    model = load("minilm-l6")
    captured = hs.capture(model, [hs.sample_text("rank")], tokens=128, batches=2)
    judged = hs.sample_text("judge")
    found = inputs_for(model, captured, [judged], 4)
    sizes = [sample.stored["input_ids"].size for sample in found.evidence.fit]
    assert len(sizes) == found.facts["fitted_on"] > 4 and max(sizes) < 64 and sizes == sorted(sizes)
    fitted = [
        model.tokenizer.decode(s.stored["input_ids"].tolist(), skip_special_tokens=True) for s in found.evidence.fit
    ]
    assert all(any(text in whole for whole in found.evidence.texts) for text in fitted)
    again = inputs_for(model, captured, [judged], 4, calibrate=[judged[: len(judged) // 2]])
    tasks = [*again.choosing.tasks, *again.judging.tasks]
    sentences = {tuple(row) for task in tasks for row in task["input_ids"].tolist()}
    assert not sentences & {tuple(s.stored["input_ids"].tolist()) for s in again.evidence.fit}
    assert len(again.evidence.fit) > len(found.evidence.fit)
