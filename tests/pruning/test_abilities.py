"""Abilities are judged on completions that the context gives away, beside the same completions after other contexts."""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.loss import task_loss
from headscape.pruning import abilities
from headscape.pruning.abilities import abilities_of, read_tasks, repeats, task_ability
from tiny import Letters
from zoo import make


class Words(Letters):
    """A word is a token, a long one two; what separates words is none."""

    def encode(self, text, add_special_tokens=True, verbose=True):
        parts = [part for word in text.split() for part in ([word] if len(word) < 6 else [word[:3], word[3:]])]
        return [10 + sum(map(ord, part)) % 80 for part in parts]


@pytest.fixture(scope="module")
def model():
    return hs.wrap_module(make("llama"), tokenizer=Words())


@pytest.fixture(scope="module")
def windows():
    return [np.random.default_rng(i).integers(10, 90, 96) for i in range(8)]


def test_the_second_half_is_judged_and_the_control_differs_in_the_first_alone(model, windows):
    found = abilities_of(model, windows)
    assert list(found) == ["copy.random", "copy.text", "retrieval"]
    for name in ("copy.random", "copy.text"):
        for task, control in zip(found[name].tasks, found[name].control, strict=True):
            ids, other = task.arguments["input_ids"][0], control.arguments["input_ids"][0]
            assert (ids[:48] == ids[48:]).all() and (ids[48:] == other[48:]).all() and (ids[:48] != other[:48]).any()
            assert task.spans == control.spans == ((49, 96),)
    assert (found["copy.text"].tasks[0].arguments["input_ids"][0, :48].numpy() == windows[0][:48]).all()


def test_facts_are_asked_for_at_several_distances(model, windows):
    found = abilities_of(model, windows)["retrieval"]
    for task, control in zip(found.tasks, found.control, strict=True):
        ids, other = (one.arguments["input_ids"][0].tolist() for one in (task, control))
        distances = []
        lives = Words().encode("lives in")
        for (start, stop), (a, b) in zip(task.spans, control.spans, strict=True):
            asked = ids[start - 3 : start]  # the end of a NAME, lives in
            stated = [i for i in range(start - 3) if ids[i : i + 3] == asked]
            assert stated and asked[1:] == lives
            assert other[a - 3 : b] == ids[start - 3 : stop]  # the same answer, after other facts
            distances.append(start - 3 - stated[0])
        assert len(set(distances)) > 1
        assert ids[task.spans[0][0] - 3 :] == other[control.spans[0][0] - 3 :] and ids != other
    assert any(t.spans != c.spans for t, c in zip(found.tasks, found.control, strict=True))  # of different lengths
    assert "retrieval" not in abilities_of(model, [w[:20] for w in windows])  # no room for facts


def test_four_facts_need_a_window_of_which_a_third_is_text(model, monkeypatch):
    """In words of one token: four facts of four tokens and as many questions leave 15 of 47 tokens, but 14 of 46."""
    monkeypatch.setattr(abilities, "NAMES", ("Anna", "Emma", "Rita", "Otto"))
    monkeypatch.setattr(abilities, "PLACES", ("Rome", "Oslo", "Bern", "Lima"))
    for length, enough in ((47, True), (46, False)):
        found = abilities_of(model, [np.arange(10, 10 + length)] * 2)
        assert ("retrieval" in found) == enough, length
        if enough:
            assert all(len(task.spans) == 4 for task in found["retrieval"].tasks)


def test_a_loss_for_every_span_alone(model, windows):
    task = abilities_of(model, windows)["retrieval"].tasks[0]
    with torch.no_grad():
        values, right = task_loss(model, task)
        logits = model.module(**task.arguments).logits[0].log_softmax(-1)
    ids = task.arguments["input_ids"][0]
    expected = [-logits[torch.arange(a - 1, b - 1), ids[a:b]].mean().item() for a, b in task.spans]
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    assert right.dtype == torch.bool and len(right) == len(task.spans)


def test_repeats_to_calibrate_on_are_others_than_those_judged(model, windows):
    found = repeats(model, windows, 4, seed=0)
    judged = {t.arguments["input_ids"].numpy().tobytes() for t in abilities_of(model, windows)["copy.random"].tasks}
    assert len(found) == 4 and not {s.arguments["input_ids"].numpy().tobytes() for s in found} & judged
    assert (found[1].stored["input_ids"][:48] == windows[0][:48]).all()  # every second one is of text


def test_a_task_of_ones_own(model, tmp_path):
    file = tmp_path / "task.jsonl"
    file.write_text(
        '{"prompt": "two plus two is", "completion": "four"}\n\n{"prompt": "sea", "completion": "shore line"}\n'
    )
    rows = read_tasks(file)
    found = task_ability(model, rows)
    assert [task.spans for task in found.tasks] == [((4, 5),), ((1, 3),)]
    assert [task.spans for task in found.control] == [((1, 2),), ((4, 6),)]  # after the prompt of the next row
    file.write_text("no json")
    with pytest.raises(hs.InputError, match=r"task\.jsonl, line 1: not of the form"):
        read_tasks(file)
    with pytest.raises(hs.InputError, match="no file"):
        read_tasks(tmp_path / "none.jsonl")
    with pytest.raises(hs.InputError, match="empty prompt or completion"):
        task_ability(model, [("a", "")])
    with pytest.raises(hs.InputError, match="for a model that predicts text"):
        task_ability(hs.wrap_module(make("bert"), tokenizer=Words()), rows)
