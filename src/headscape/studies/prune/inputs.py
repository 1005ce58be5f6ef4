"""The three sets of inputs of the prune study: to rank on, to choose on, to judge on. They share no window."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.attention.inputs import read_texts, sample_images, sample_text
from headscape.attention.samples import Sample, replayed, samples_of
from headscape.captures import Capture
from headscape.errors import InputError
from headscape.pruning.judges import (
    Judge,
    LossJudge,
    SimilarityJudge,
    sentence_pairs,
    sentence_sample,
    sentences_of,
)

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["Inputs", "inputs_of"]

CHOOSING = 1 / 3  # share of the judging inputs on which a criterion is chosen, the first ones
N_IMAGES = 240
CALIBRATING = 64  # windows or images at most


@dataclass(frozen=True)
class Inputs:
    """Ranking samples with their texts, what is fitted on, and the judges to choose and to judge by.

    `fit` is for novelty and compensation: the ranking samples and those to calibrate on; for an encoder their
    sentences, since sentences are what it is judged on. `facts` are recorded.
    """

    rank: Sequence[Sample]
    fit: Sequence[Sample]
    texts: Sequence[str]
    choose: Judge
    judge: Judge
    facts: dict[str, Any]


def inputs_of(model: Model, captured: Capture, inputs: Any, windows: int, seed: int, calibrate: Any = None) -> Inputs:
    """Take the ranking samples from the capture and the others from `inputs`.

    Inputs are a text file, a folder or a list of texts; images and labels for a classifier. None takes the prose or the
    images that ship with headscape. Windows and images that were ranked or calibrated on are left out.
    """
    if windows < 3:
        raise InputError(f"{windows} windows to judge on are too few for an interval; give at least 3")
    ranked = replayed(model, captured)
    more: list[Sample] = []
    if calibrate is not None:
        if model.images is not None:
            more, _ = samples_of(model, calibrate, batches=None, seed=seed)
        else:
            more, _ = samples_of(model, calibrate, int(ranked[0].stored["input_ids"].size), seed=seed)
        known = {_content(sample) for sample in ranked}
        more = [sample for sample in more if _content(sample) not in known][:CALIBRATING]
    if model.task == "encoder":
        return _sentences(model, ranked, more, inputs, seed)
    seen = {_content(sample) for sample in [*ranked, *more]}
    if model.images is not None:
        given = inputs if inputs is not None else sample_images()
        found, facts = samples_of(model, given, batches=None, seed=seed)
        left = [sample for sample in found if _content(sample) not in seen]
        order = np.random.default_rng(seed).permutation(len(left))[:N_IMAGES]
        left = [left[i] for i in sorted(order)]
    else:
        tokens = int(ranked[0].stored["input_ids"].size)
        given = inputs if inputs is not None else [sample_text("judge")]
        found, facts = samples_of(model, given, tokens, seed=seed)
        left = [sample for sample in found if _content(sample) not in seen]
        needed = round(windows / (1 - CHOOSING))
        if len(left) > needed:
            left = [left[i] for i in sorted(np.random.default_rng(seed).choice(len(left), needed, replace=False))]
    if len(left) < 4:
        raise InputError(
            f"{len(found)} windows or images to judge on, of which {len(found) - len(left)} were ranked on; at least 4 "
            "others are needed: give more text or images"
        )
    cut = max(1, round(len(left) * CHOOSING))
    facts |= {"ranked": len(ranked), "chosen_on": cut, "judged_on": len(left) - cut, **_calibrated(more)}
    choose, judge = (LossJudge(model, part, seed) for part in (left[:cut], left[cut:]))
    return Inputs(ranked, [*ranked, *more], (), choose, judge, facts)


def _content(sample: Sample) -> bytes:
    return b"".join(array.tobytes() for array in sample.stored.values())


def _calibrated(more: Sequence[Sample]) -> dict[str, Any]:
    digest = hashlib.sha256(b"".join(map(_content, more))).hexdigest()[:16]
    return {"calibrated_on": len(more), "calibration": digest} if more else {}


def _sentences(model: Model, ranked: Sequence[Sample], more: Sequence[Sample], inputs: Any, seed: int) -> Inputs:
    def text(sample: Sample) -> str:
        return str(model.tokenizer.decode(sample.stored["input_ids"].tolist(), skip_special_tokens=True))

    texts = [text(sample) for sample in ranked]
    given = read_texts(inputs) if inputs is not None else [sample_text("judge")]
    whole = "\n".join(given)
    cut = whole.rfind(". ", 0, int(len(whole) * CHOOSING)) + 1
    parts = [sentence_pairs([part], seed=seed) for part in (whole[:cut], whole[cut:])]
    choose, judge = (SimilarityJudge(model, pairs) for pairs in parts)
    judged = {tuple(row) for part in (choose, judge) for task in part.tasks for row in task["input_ids"].tolist()}
    found = [sentence_sample(model, sentence) for sentence in sentences_of([*texts, *map(text, more)])]
    fit = [sample for sample in found if tuple(sample.stored["input_ids"].tolist()) not in judged]
    fit.sort(key=lambda sample: sample.stored["input_ids"].size)  # equal lengths share a forward pass
    facts = {"ranked": len(ranked), "chosen_on": len(parts[0]), "judged_on": len(parts[1]), "kind": "sentence pairs"}
    facts |= {"fitted_on": len(fit), **_calibrated(more)}
    return Inputs(ranked, fit or ranked, texts, choose, judge, facts)
