"""The inputs of a pruning, split in three: to rank on, to choose on, to judge on. They share no window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.attention.inputs import read_texts, sample_images, sample_text
from headscape.attention.samples import Sample, replayed, samples_of
from headscape.captures import Capture
from headscape.errors import InputError
from headscape.fingerprints import digest
from headscape.pruning.judges import (
    Judge,
    LossJudge,
    SimilarityJudge,
    content_of,
    sentence_pairs,
    sentence_sample,
    sentences_of,
)

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.studies.prune.pruning import Pruning

__all__ = ["Split", "split_inputs"]

CHOOSING = 1 / 3  # share of the judging inputs, the first ones, on which a criterion is chosen
N_IMAGES = 240
CALIBRATING = 64  # windows or images at most


@dataclass(frozen=True)
class Split:
    """Ranking samples with their texts, what novelty and compensation are fitted on, and the judges.

    `fit` is the ranking samples and those to calibrate on; for an encoder their sentences, since sentences are what it
    is judged on. `facts` are recorded.
    """

    rank: Sequence[Sample]
    fit: Sequence[Sample]
    texts: Sequence[str]
    choose: Judge
    judge: Judge
    facts: dict[str, Any]

    @property
    def data(self) -> dict[str, str]:
        """Content hashes of the inputs."""
        samples = {"ranked": self.rank, "fitted": self.fit}
        judges = {"chosen": self.choose, "judged": self.judge}
        return {name: digest([content_of(sample.stored) for sample in found]) for name, found in samples.items()} | {
            name: digest([key for key, _ in judge.pieces]) for name, judge in judges.items()
        }


def split_inputs(pruning: Pruning, model: Model, captured: Capture) -> Split:
    """Take the ranking samples from the capture and the others from the inputs of the pruning.

    Inputs are a text file, a folder or a list of texts; images and labels for a classifier. None takes the prose or the
    images that ship with headscape. Windows and images that were ranked or calibrated on are left out.
    """
    if pruning.windows < 3:
        raise InputError(f"{pruning.windows} windows to judge on are too few for an interval; give at least 3")
    ranked, seed = replayed(model, captured), pruning.seed
    tokens = 0 if model.images is not None else int(ranked[0].stored["input_ids"].size)
    more: list[Sample] = []
    if pruning.calibrate is not None:
        given = [sample_text("rank")] if pruning.calibrate == "sample" else pruning.calibrate
        known = {content_of(sample.stored) for sample in ranked}
        found, _ = samples_of(model, given, tokens, seed=seed)
        more = [sample for sample in found if content_of(sample.stored) not in known][:CALIBRATING]
    if model.task == "encoder":
        return _sentences(pruning, model, ranked, more)
    given = pruning.inputs
    if given is None:
        given = sample_images() if model.images is not None else [sample_text("judge")]
    found, facts = samples_of(model, given, tokens, seed=seed)
    seen = {content_of(sample.stored) for sample in [*ranked, *more]}
    left = [sample for sample in found if content_of(sample.stored) not in seen]
    if len(left) < 4:
        raise InputError(
            f"{len(found)} windows or images to judge on, of which {len(found) - len(left)} were ranked on; at least 4 "
            "others are needed: give more text or images"
        )
    needed = N_IMAGES if model.images is not None else round(pruning.windows / (1 - CHOOSING))
    order = np.random.default_rng(seed).permutation(len(left))[:needed]  # more windows keep those of fewer
    left = [left[i] for i in sorted(order)]
    cut = max(1, round(len(left) * CHOOSING))
    facts |= {"ranked": len(ranked), "chosen_on": cut, "judged_on": len(left) - cut, "calibrated_on": len(more)}
    choose, judge = (LossJudge(model, part, seed) for part in (left[:cut], left[cut:]))
    return Split(ranked, [*ranked, *more], (), choose, judge, facts)


def _sentences(pruning: Pruning, model: Model, ranked: Sequence[Sample], more: Sequence[Sample]) -> Split:
    def text(sample: Sample) -> str:
        return str(model.tokenizer.decode(sample.stored["input_ids"].tolist(), skip_special_tokens=True))

    texts = [text(sample) for sample in ranked]
    whole = "\n".join([sample_text("judge")] if pruning.inputs is None else read_texts(pruning.inputs))
    cut = whole.rfind(". ", 0, int(len(whole) * CHOOSING)) + 1
    parts = [sentence_pairs([part], seed=pruning.seed) for part in (whole[:cut], whole[cut:])]
    choose, judge = (SimilarityJudge(model, pairs) for pairs in parts)
    judged = {tuple(row) for part in (choose, judge) for task in part.tasks for row in task["input_ids"].tolist()}
    found = [sentence_sample(model, sentence) for sentence in sentences_of([*texts, *map(text, more)])]
    fit = [sample for sample in found if tuple(sample.stored["input_ids"].tolist()) not in judged]
    fit.sort(key=lambda sample: sample.stored["input_ids"].size)  # equal lengths share a forward pass
    facts = {"ranked": len(ranked), "chosen_on": len(parts[0]), "judged_on": len(parts[1]), "kind": "sentence pairs"}
    facts |= {"fitted_on": len(fit), "calibrated_on": len(more)}
    return Split(ranked, fit or ranked, texts, choose, judge, facts)
