"""Clues after other numbers of examples: what is asked, and losses beside those of the network itself."""

import dataclasses

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.mean_maps import mean_maps
from headscape.intervals import mean_interval
from headscape.statistics.maps import row_entropy
from headscape.studies.prompt.maps import MEASURES, measure_map
from headscape.studies.prompt.study import prompt, request
from headscape.studies.prompt.sweep import ARMS, ask
from headscape.studies.prompt.text import choose_shots, plain_text, read_table
from headscape.studies.prompt.versions import encode
from writers import tiny

SHOTS = (0, 1, 3)
ENTRIES, TARGETS = request("Ant", 2, prompts=2)


@pytest.fixture(scope="module")
def asked():
    return ask(ENTRIES, TARGETS, 2, SHOTS, plain_text, 0)


@pytest.fixture(scope="module")
def swept():
    options = {"shots": 2, "prompts": 2, "alphas": (), "permutations": 3, "threads": 1, "sweep": SHOTS}
    return prompt(tiny(), None, control=tiny(seed=1), **options).sweep


def parts(text, segment):
    return [text.text[a:b].strip() for a, b, name, _ in text.spans if name == segment]


def test_more_examples_stand_in_front_and_exchanged_ones_keep_words_and_clues(asked):
    clue = {entry.word: entry.clue for entry in read_table()}
    for i, target in enumerate(TARGETS):
        three, one = (asked[k][0][i] for k in (3, 1))
        assert parts(three, "word")[-1:] == parts(one, "word") and target.word not in parts(three, "word")
        assert parts(asked[0][0][i], "word") == [] and parts(three, "target") == [target.word]
        words, clues = (parts(asked[3][2][i], name) for name in ("word", "clue"))
        assert words == parts(three, "word") and sorted(clues) == sorted(clue[word] for word in words)
        assert not any(clue[word] == other for word, other in zip(words, clues, strict=True))
        assert parts(asked[1][2][i], "clue") != parts(one, "clue")  # one example is exchanged too
        assert all(parts(part[i], "answer") == [target.clue] for part in asked[3][1:])


@pytest.mark.parametrize("shots", [0, 1, 3, 5, 9])
def test_after_as_many_examples_as_the_prompt_has_stand_the_same_ones(shots):
    """'After 3' in the table of the sweep is the prompt whose maps are drawn, and every step adds to the one before."""
    counts = (0, 1, 3, 5, 21)
    found = ask(ENTRIES, TARGETS, shots, counts, plain_text, 4)
    for i, target in enumerate(TARGETS):
        own = [entry.word for entry in choose_shots(ENTRIES, target, shots, 4)]
        words = {k: parts(found[k][0][i], "word") for k in counts}
        for k in counts:
            nearest = min(k, shots)
            assert words[k][k - nearest :] == own[shots - nearest :] and words[21][21 - k :] == words[k]
        assert len(set(words[21])) == 21 and target.word not in words[21]


def test_losses_are_never_below_zero(swept):
    few = dataclasses.replace(swept, losses=np.array([[[7.0, 2.0]] * 3] * 3))
    assert mean_interval([7.0, 2.0]).low < 0 and all(one.low == 0 for one in few.loss("examples"))


def slow_loss(model, text, answer):
    """Mean of -log p over the tokens that come after the prompt, one position at a time."""
    ids = encode(model, text)[0]
    start = len(encode(model, text.__class__(text.text[: -len(answer)], text.spans[:-1]))[0])
    with torch.no_grad():
        logits = model.module(input_ids=torch.tensor([ids])).logits[0].double()
    return np.mean([float(torch.logsumexp(logits[i - 1], 0) - logits[i - 1, ids[i]]) for i in range(start, len(ids))])


def test_losses_are_those_of_the_network_for_the_targets_clue(swept, asked):
    for arm, part, model in zip(ARMS, (1, 2, 1), (tiny(), tiny(), tiny(seed=1)), strict=True):
        for k, shots in enumerate(SHOTS):
            for i, target in enumerate(TARGETS):
                expected = slow_loss(model, asked[shots][part][i], f" {target.clue}")
                assert swept.losses[ARMS.index(arm), k, i] == pytest.approx(expected, rel=1e-5)
    np.testing.assert_array_equal(swept.losses[0, 0], swept.losses[1, 0])  # nothing to exchange


def test_maps_and_measures_are_those_of_the_prompt_with_its_clue(swept, asked):
    model = tiny()
    ids, layout = encode(model, asked[3][1][1])
    maps = mean_maps(model, ids, row_entropy).mean
    for layer, A in enumerate(maps):
        assert swept.measures[2, 1, layer, MEASURES.index("first")] == pytest.approx(measure_map(A, layout)["first"])
    words = swept.words[2][1]
    assert swept.maps[2][1].shape == (len(words), len(words)) and len(set(swept.word_shots[2][1])) == 4
    ant = [i for i, shot in enumerate(layout.shots) if shot == 3 and layout.segments[i] == "target"]
    last = words.index(TARGETS[1].word)
    assert swept.maps[2][1][last, last] == pytest.approx(maps[1][np.ix_(ant, ant)].sum(), rel=1e-5)


def test_a_table_has_a_row_per_word(swept):
    words = [target.word for target in TARGETS]
    frame = swept.table(words)
    assert list(frame["word"]) == words and list(frame.columns[1:3]) == ["after 0", "loss after 0"]
    np.testing.assert_array_equal(frame["loss after 3"], swept.losses[0, 2])


@pytest.mark.parametrize("sweep", [(3,), (3, 1), (1, 1), (-1, 3)])
def test_a_sweep_is_two_numbers_in_order(sweep):
    with pytest.raises(hs.InputError, match="in rising order"):
        request("Ant", 2, prompts=2, sweep=sweep)


def test_more_examples_than_words_are_refused():
    with pytest.raises(hs.InputError, match="900 shots were requested"):
        request("Ant", 2, prompts=2, sweep=(1, 900))
