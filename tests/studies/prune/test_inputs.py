"""Ranking, choosing and judging share no input, and what is fitted is never judged on."""

import numpy as np
import pytest

import headscape as hs
from headscape.studies.prune.inputs import prepare_inputs
from headscape.studies.prune.pruning import Pruning
from headscape.studies.prune.study import prune
from prunable import JUDGE, QUICK, RANK


def inputs_for(model, captured, inputs, windows, **more):
    return prepare_inputs(
        Pruning.of(captured, model, captured.blocks[0], inputs=inputs, windows=windows, **more), model, captured
    )


def windows_of(judge):
    return {row.numpy().astype(np.int64).tobytes() for task in judge.tasks for row in task.arguments["input_ids"]}


def ids_of(samples):
    return [sample.stored["input_ids"].tobytes() for sample in samples]


def test_no_window_is_ranked_on_and_judged_on(run, model):
    captured = hs.open_capture(run)
    found = inputs_for(model, captured, [*RANK, *JUDGE], 6)
    ranked, chosen, judged = set(ids_of(found.evidence.samples)), windows_of(found.choosing), windows_of(found.judging)
    assert chosen and judged and not (chosen & judged or ranked & chosen or ranked & judged)
    with pytest.raises(hs.InputError, match="were ranked on; at least 4 others are needed"):
        inputs_for(model, captured, RANK, 6)


def test_more_windows_keep_those_of_fewer(run, model):
    captured = hs.open_capture(run)
    few, more = (inputs_for(model, captured, JUDGE, n) for n in (4, 8))
    assert (few.facts["chosen_on"], few.facts["judged_on"]) == (2, 4)
    assert (more.facts["chosen_on"], more.facts["judged_on"]) == (4, 8)
    kept = windows_of(more.choosing) | windows_of(more.judging)
    assert windows_of(few.choosing) | windows_of(few.judging) < kept and len(kept) == 12


def test_more_text_to_calibrate_on_is_never_judged_on(run, model):
    captured = hs.open_capture(run)
    plain = inputs_for(model, captured, JUDGE, 4)
    found = inputs_for(model, captured, JUDGE, 4, calibrate=[*RANK, JUDGE[0][:40]])
    ranked, fitted = ids_of(found.evidence.samples), ids_of(found.evidence.fit)
    more = fitted[len(ranked) :]
    assert (
        fitted[: len(ranked)] == ranked
        and more
        and not set(more) & set(ranked)
        and len(plain.evidence.fit) == len(ranked)
    )
    assert not (windows_of(found.choosing) | windows_of(found.judging)) & set(more)
    assert found.facts["calibrated_on"] == len(more) and plain.facts["calibrated_on"] == 0
    assert found.data["fitted"] != plain.data["fitted"] and found.data["ranked"] == plain.data["ranked"]
    options = {"model": model, "inputs": JUDGE, "criterion": "novelty", "compensation": "linear", "n_heads": 4}
    one, other = (
        prune(captured, calibrate=calibrate, **options, **QUICK).curve("proposal", proposal=True).costs
        for calibrate in (None, [JUDGE[0][:40]])
    )
    n = min(one.shape[-1], other.shape[-1])
    assert not np.allclose(one[..., :n], other[..., :n])


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
