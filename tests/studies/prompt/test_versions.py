"""The model's part of the few-shot study: encoding, clues, losses and maps."""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.studies.prompt.study import prompt
from headscape.studies.prompt.text import choose_shots, find_entry, plain_text, read_table
from headscape.studies.prompt.versions import check_model, clue_loss, encode, greedy_clue
from writers import tiny

ANT = find_entry(read_table(), "Ant")
SHOTS = choose_shots(read_table(), ANT, 3)


def test_models_that_cannot_write():
    from zoo import make

    with pytest.raises(hs.InputError, match=r"\(masked-lm\) is not a causal language model and cannot write a clue"):
        check_model(hs.wrap_module(make("bert")))
    with pytest.raises(hs.InputError, match="no fast tokenizer"):
        check_model(hs.wrap_module(make("llama")))
    model = tiny(positions=200)
    with pytest.raises(hs.InputError, match=r"the prompt has \d+ tokens and 24 more .* takes 200; use fewer shots"):
        prompt(model, shots=3)
    with pytest.raises(hs.InputError, match="200 more"):
        encode(model, plain_text(ANT, []), 200)


def test_the_prefix_of_a_model_stands_before_the_text():
    model = tiny()
    model.prefix = (1,)
    ids, layout = encode(model, plain_text(ANT, SHOTS))
    assert ids[0] == 1 and layout.tokens[0] == "<s>" and layout.segments[0] == "start"
    assert model.tokenizer.decode(ids[1:]) == plain_text(ANT, SHOTS).text == "".join(layout.tokens[1:])


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_greedy_clue_is_the_argmax_again_and_again(kind):
    model = tiny(kind)
    ids, _ = encode(model, plain_text(ANT, SHOTS[:1]))
    whole = list(ids)
    with torch.no_grad():
        for _ in range(6):
            whole.append(int(model.module(input_ids=torch.tensor([whole])).logits[0, -1].argmax()))
    text = model.tokenizer.decode(whole[len(ids) :])
    assert greedy_clue(model, ids, 6) == text.lstrip("\n").split("#")[0].split("\n")[0]


@pytest.mark.parametrize(("answer", "expected"), [("small.#\nWord", "small."), ("\nso\nit", "so"), ("abc</s>d", "abc")])
def test_a_clue_ends_at_its_sign_a_line_or_the_end(answer, expected, monkeypatch):
    model = tiny()
    wanted = model.tokenizer(answer)["input_ids"]
    step = iter(range(99))

    def forward(**_):
        logits = torch.zeros(1, 1, 320)
        logits[0, 0, wanted[next(step)]] = 1
        return type("Result", (), {"logits": logits, "past_key_values": None})

    monkeypatch.setattr(model.module, "forward", forward)
    assert greedy_clue(model, [3, 4], len(wanted)) == expected


def test_the_loss_is_over_clues_alone():
    model = tiny()
    text = plain_text(ANT, SHOTS[:1]).with_answer(" Small.")
    ids, layout = encode(model, text)
    with torch.no_grad():
        logs = torch.log_softmax(model.module(input_ids=torch.tensor([ids])).logits[0].double(), -1)
    wanted = [i for i, s in enumerate(layout.segments) if s in ("clue", "answer")]
    assert "".join(layout.tokens[i] for i in wanted) == f" {SHOTS[0].clue} Small."
    expected = -np.mean([float(logs[i - 1, ids[i]]) for i in wanted])
    assert clue_loss(model, ids, layout) == pytest.approx(expected, rel=1e-5)
