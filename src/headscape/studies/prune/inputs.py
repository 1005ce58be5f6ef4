"""The inputs of a pruning made ready in three parts: to rank on, to choose on, to judge on. They share no window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from headscape.attention.inputs import read_texts, sample_images, sample_text
from headscape.attention.samples import Sample, replayed, samples_of
from headscape.attention.sites import select_heads
from headscape.captures import Capture
from headscape.errors import InputError
from headscape.fingerprints import digest
from headscape.pruning.ablation import Ablations
from headscape.pruning.compensation import Fitted, fit_compensation
from headscape.pruning.evidence import Evidence
from headscape.pruning.judges import (
    Judge,
    LossJudge,
    SimilarityJudge,
    content_of,
    sentence_pairs,
    sentence_sample,
    sentences_of,
)
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.studies.prune.pruning import Pruning

__all__ = ["Prepared", "prepare_inputs"]

CHOOSING = 1 / 3  # share of the judging inputs, the first ones, on which a criterion is chosen
N_IMAGES = 240
CALIBRATING = 64  # windows or images at most


@dataclass
class Prepared:
    """A pruning ready to be evaluated in this process: what criteria may look at, the judges, and facts to record.

    The evidence is fitted on the ranking samples and those to calibrate on; for an encoder on their sentences, since
    sentences are what it is judged on.
    """

    evidence: Evidence
    choosing: Judge
    judging: Judge
    facts: dict[str, Any]
    _ablations: dict[str, Ablations] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, str]:
        """Content hashes of the inputs."""
        samples = {"ranked": self.evidence.samples, "fitted": self.evidence.fit}
        found = {name: [content_of(sample.stored) for sample in several] for name, several in samples.items()}
        found |= {"chosen": [key for key, _ in self.choosing.pieces], "judged": [key for key, _ in self.judging.pieces]}
        return {name: digest(hashes) for name, hashes in found.items()}

    def judge(self, on: str) -> Judge:
        """The judge on the inputs to "choose" on, to "judge" on, or on a few of those to "rank" on."""
        return {"choose": self.choosing, "judge": self.judging}.get(on) or self.evidence.brief_judge

    def ablations(self, on: str) -> Ablations:
        """The model, ready to be run without some heads."""
        if on not in self._ablations:
            self._ablations[on] = Ablations(self.judge(on), lambda: self.evidence.moments)
        return self._ablations[on]

    def fit(self, heads: Sequence[HeadId], compensation: str) -> dict[str, Fitted]:
        """Fit the compensation of removed heads."""
        moments = None if compensation == "none" else self.evidence.moments
        network = self.evidence.network
        return fit_compensation(network, select_heads(network, heads), moments, compensation)


def prepare_inputs(pruning: Pruning, model: Model, captured: Capture) -> Prepared:
    """Take the ranking samples from the capture and the others from the inputs of the pruning.

    Inputs are a text file, a folder or a list of texts; images and labels for a classifier. None takes the prose or the
    images that ship with headscape. Windows and images that were ranked or calibrated on are left out.
    """
    if pruning.windows < 3:
        raise InputError(f"{pruning.windows} windows to judge on are too few for an interval; give at least 3")
    ranked, seed = replayed(model, captured), pruning.seed
    evidence = Evidence(captured.heads(pruning.block), model=model, samples=ranked, seed=seed)
    tokens = 0 if model.images is not None else int(ranked[0].stored["input_ids"].size)
    more: list[Sample] = []
    if pruning.calibrate is not None:
        sample = isinstance(pruning.calibrate, str) and pruning.calibrate == "sample"
        given = [sample_text("rank")] if sample else pruning.calibrate
        known = {content_of(sample.stored) for sample in ranked}
        found, _ = samples_of(model, given, tokens, seed=seed)
        more = [sample for sample in found if content_of(sample.stored) not in known][:CALIBRATING]
    if model.task == "encoder":
        return _sentences(evidence, pruning.inputs, more)
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
    evidence.fit = [*ranked, *more]
    return Prepared(evidence, LossJudge(model, left[:cut], seed), LossJudge(model, left[cut:], seed), facts)


def _sentences(evidence: Evidence, inputs: Any, more: Sequence[Sample]) -> Prepared:
    """For an encoder: pairs of sentences to choose and judge on, and the other sentences to fit on."""
    model, ranked = evidence.network, evidence.samples
    decode = partial(model.tokenizer.decode, skip_special_tokens=True)
    evidence.texts = [str(decode(sample.stored["input_ids"].tolist())) for sample in ranked]
    texts = [*evidence.texts, *(str(decode(sample.stored["input_ids"].tolist())) for sample in more)]
    whole = "\n".join([sample_text("judge")] if inputs is None else read_texts(inputs))
    cut = whole.rfind(". ", 0, int(len(whole) * CHOOSING)) + 1
    parts = [sentence_pairs([part], seed=evidence.seed) for part in (whole[:cut], whole[cut:])]
    choose, judge = (SimilarityJudge(model, pairs) for pairs in parts)
    judged = {tuple(row) for part in (choose, judge) for task in part.tasks for row in task["input_ids"].tolist()}
    found = [sentence_sample(model, sentence) for sentence in sentences_of(texts)]
    fit = [sample for sample in found if tuple(sample.stored["input_ids"].tolist()) not in judged]
    fit.sort(key=lambda sample: sample.stored["input_ids"].size)  # equal lengths share a forward pass
    facts = {"ranked": len(ranked), "chosen_on": len(parts[0]), "judged_on": len(parts[1]), "kind": "sentence pairs"}
    evidence.fit = fit or ranked
    return Prepared(evidence, choose, judge, facts | {"fitted_on": len(fit), "calibrated_on": len(more)})
