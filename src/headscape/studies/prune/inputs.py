"""The inputs of a pruning: for ranking and calibration, for selection, for judging. They share no window."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headscape.attention.inputs import read_texts, sample_images, sample_text
from headscape.attention.samples import Sample, replayed, samples_of
from headscape.attention.sites import select_heads
from headscape.captures import Capture
from headscape.errors import InputError
from headscape.fingerprints import digest
from headscape.pruning.abilities import Ability, abilities_of, by_name, read_tasks, repeats, task_ability
from headscape.pruning.ablation import Ablations
from headscape.pruning.compensation import Calibration, Fitted, calibrated, fit_compensation
from headscape.pruning.evidence import Evidence
from headscape.pruning.heal import AT_ONCE, heal
from headscape.pruning.judges import (
    Judge,
    LossJudge,
    SimilarityJudge,
    content_of,
    sentence_pairs,
    sentence_sample,
    sentences_of,
)
from headscape.storage import read_arrays, write_arrays
from headscape.tensor import HeadId

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.studies.prune.pruning import Pruning

__all__ = ["Prepared", "prepare_inputs"]

CHOOSING = 1 / 3  # share of the judging inputs, the first ones, on which a criterion is chosen
N_IMAGES = 240
CALIBRATING = 112  # calibration windows or images, those of the run included, before repeats are added
REPEATS = 0.25  # share of the calibration windows that repeat their first half
TASK_ROWS = 24  # of a user's task, at most, to calibrate and to choose on; twice as many to judge on


@dataclass
class Prepared:
    """A pruning ready to be evaluated in this process: what criteria may look at, the judges, and facts to record.

    The evidence is fitted on the ranking and calibration samples; for an encoder on their sentences, since sentences are
    what it is judged on. `controls` judges the completions of every ability after other contexts.
    """

    evidence: Evidence
    choosing: Judge
    judging: Judge
    facts: dict[str, Any]
    controls: Judge | None = None
    healing: Sequence[Sample] = ()
    _ablations: dict[str, Ablations] = field(default_factory=dict)

    @property
    def data(self) -> dict[str, str]:
        """Content hashes of the inputs."""
        samples = {"ranked": self.evidence.samples, "fitted": self.evidence.fit}
        samples |= {"healed": self.healing} if self.healing else {}
        found = {name: [content_of(sample.stored) for sample in several] for name, several in samples.items()}
        found |= {"chosen": [key for key, _ in self.choosing.pieces], "judged": [key for key, _ in self.judging.pieces]}
        return {name: digest(hashes) for name, hashes in found.items()}

    def judge(self, on: str) -> Judge:
        """The judge on the selection ("choose") or judging inputs ("judge"), the "control", or some ranking inputs ("rank")."""
        known = {"choose": self.choosing, "judge": self.judging, "control": self.controls}
        return known.get(on.partition(":")[0]) or self.evidence.brief_judge

    def keys(self, on: str) -> list[str]:
        """The pieces to judge on; "choose:2" are two of every ability."""
        most = on.partition(":")[2]
        return self.judge(on).keys(int(most) if most else None)

    def ablations(self, on: str) -> Ablations:
        """The model, ready to be run without some heads."""
        name = on.partition(":")[0]
        if name not in self._ablations:
            self._ablations[name] = Ablations(self.judge(on), lambda: self.evidence.moments)
        return self._ablations[name]

    def calibrate(self, path: Path, step: Callable[[], None] = lambda: None) -> None:
        """Calibrate, or read the file of a calibration that was made before."""
        if "calibration" in vars(self.evidence):
            return
        if not path.exists():
            made = calibrated(self.evidence.network, self.evidence.fit or self.evidence.samples, step)
            arrays = {name: moment.cpu().numpy() for name, moment in made.moments.items()}
            write_arrays(path, arrays | {"power": np.array(list(made.power.values()))})
        arrays, _ = read_arrays(path)
        names = [site.name for site in self.evidence.network.sites]
        moments = {name: torch.from_numpy(arrays[name].copy()) for name in names}
        power = dict(zip(names, arrays["power"].tolist(), strict=True))
        vars(self.evidence)["calibration"] = Calibration(moments, power)

    def fit(
        self, heads: Sequence[HeadId], compensation: str, steps: int = 0, step: Callable[[], None] = lambda: None
    ) -> dict[str, Fitted]:
        """Fit the compensation of removed heads, and heal it by some steps of distillation."""
        moments = None if compensation == "none" else self.evidence.moments
        network, samples = self.evidence.network, self.healing or self.evidence.fit
        fitted = fit_compensation(network, select_heads(network, heads), moments, compensation)
        return heal(network, fitted, samples, steps, self.evidence.seed, step) if steps else fitted


def prepare_inputs(pruning: Pruning, model: Model, captured: Capture) -> Prepared:
    """Take the ranking samples from the capture and the others from the inputs of the pruning.

    Inputs are a text file, a folder or a list of texts; images and labels for a classifier. None takes the prose or the
    images that ship with headscape. A quarter of them is kept for calibration unless other text is given for that.
    Windows and images used for ranking or calibration are not judged on.
    """
    if pruning.windows < 3:
        raise InputError(f"{pruning.windows} windows to judge on are too few for an interval; give at least 3")
    if not 0 <= pruning.repeats < 1:
        raise InputError(f"the share of repeats lies between 0 and 1, not {pruning.repeats:g}")
    if pruning.task is not None and model.task != "causal-lm":
        raise InputError(
            f"a task of prompts and completions is for a model that predicts text, and {model.source} does not"
        )
    ranked, seed = replayed(model, captured), pruning.seed
    evidence = Evidence(captured.heads(pruning.block), model=model, samples=ranked, seed=seed, unit=pruning.unit)
    tokens = 1 if model.images is not None else int(ranked[0].stored["input_ids"].size)  # images have none
    if model.task == "encoder":
        return _sentences(evidence, pruning, tokens)
    given = pruning.inputs
    if given is None:
        given = sample_images() if model.images is not None else [sample_text("judge")]
    found, facts = samples_of(model, given, tokens, seed=seed, shown=False)
    seen = {content_of(sample.stored) for sample in ranked}
    more, spare = _more(pruning, model, tokens, seen, len(ranked))
    seen |= {content_of(sample.stored) for sample in more or ()}
    left = _new(found, seen)
    if len(left) < 4:
        raise InputError(
            f"{len(found)} windows or images to judge on, of which {len(found) - len(left)} were ranked on or repeat "
            "others; at least 4 others are needed: give more text or images"
        )
    order = np.random.default_rng(seed).permutation(len(left))
    if more is None:  # from the end, whatever the number of windows
        kept = min(max(0, CALIBRATING - len(ranked)), len(left) // 4)
        more, order = [left[i] for i in sorted(order[len(order) - kept :])], order[: len(order) - kept]
        spare = [left[i] for i in order]
    needed = N_IMAGES if model.images is not None else round(pruning.windows / (1 - CHOOSING))
    left = [left[i] for i in sorted(order[:needed])]  # more windows keep those of fewer
    cut = max(1, round(len(left) * CHOOSING))
    rows = _rows(pruning, model)
    evidence.fit = _mixture(model, [*ranked, *more], rows.get("calibrate", []), pruning)
    tested = {content_of(sample.stored) for sample in left}
    new = [sample for sample in spare if content_of(sample.stored) not in tested]
    new = new[: max(0, round(pruning.heal * AT_ONCE * (1 - pruning.repeats)) - len(ranked) - len(more))]
    healing = _mixture(model, [*ranked, *more, *new], rows.get("calibrate", []), pruning) if new else []
    choosing, judging = (
        _abilities(model, part, rows.get(name, []), seed + i)
        for i, (name, part) in enumerate((("choose", left[:cut]), ("judge", left[cut:])))
    )
    both = choosing.keys() & judging.keys()  # few windows may be enough for an ability in one part only
    choosing, judging = ({name: found[name] for name in found if name in both} for found in (choosing, judging))
    facts |= {"ranked": len(ranked), "chosen_on": cut, "judged_on": len(left) - cut, "calibrated_on": len(more)}
    facts |= {"repeats": len(evidence.fit) - len(ranked) - len(more) - len(rows.get("calibrate", []))}
    choose = LossJudge(model, left[:cut], seed, by_name(choosing))
    judge = LossJudge(model, left[cut:], seed, by_name(judging))
    controls = LossJudge(model, [], seed, by_name(choosing, control=True)) if choosing else None
    return Prepared(evidence, choose, judge, facts, controls, healing)


def _new(found: Sequence[Sample], seen: set[str]) -> list[Sample]:
    """The inputs not seen before, each once: one that repeats would count twice, or be chosen on and judged on."""
    return list({key: one for one in reversed(found) if (key := content_of(one.stored)) not in seen}.values())[::-1]


def _more(
    pruning: Pruning, model: Model, tokens: int, seen: set[str], n_ranked: int = 0
) -> tuple[list[Sample] | None, list[Sample]]:
    """Calibration inputs given besides the samples of the run (None where a part of the inputs serves instead), and more."""
    given = pruning.calibrate
    if given is None and (pruning.inputs is not None or model.images is not None):
        return None, []
    sample = given is None or (isinstance(given, str) and given == "sample")
    found, _ = samples_of(model, [sample_text("rank")] if sample else given, tokens, seed=pruning.seed, shown=False)
    left = _new(found, seen)
    order = np.random.default_rng(pruning.seed).permutation(len(left))
    cut = max(0, CALIBRATING - n_ranked)
    return [left[i] for i in sorted(order[:cut])], [left[i] for i in order[cut:]]


def _rows(pruning: Pruning, model: Model) -> dict[str, list[tuple[str, str]]]:
    """The rows of the user's task, to calibrate, to choose and to judge on."""
    if pruning.task is None:
        return {}
    rows = read_tasks(pruning.task) if isinstance(pruning.task, (str, Path)) else [tuple(row) for row in pruning.task]
    rows = list(dict.fromkeys(rows))
    if len(rows) < 8:
        raise InputError(
            f"the task has {len(rows)} different rows; at least 8 are needed to calibrate, choose and judge on"
        )
    rows = [rows[i] for i in np.random.default_rng(pruning.seed).permutation(len(rows))]
    quarter = min(len(rows) // 4, TASK_ROWS)
    parts = (rows[:quarter], rows[quarter : 2 * quarter], rows[2 * quarter : 4 * quarter])
    return dict(zip(("calibrate", "choose", "judge"), parts, strict=True))


def _mixture(model: Model, text: Sequence[Sample], rows: Sequence[tuple[str, str]], pruning: Pruning) -> list[Sample]:
    """The calibration samples: text, windows that repeat themselves, and rows of the user's task."""
    found = list(text)
    if model.task != "causal-lm":
        return found
    share = pruning.repeats
    windows = [sample.stored["input_ids"] for sample in text]
    found += repeats(model, windows, round(share / (1 - share) * len(text)), pruning.seed)
    for i, task in enumerate(task_ability(model, rows).tasks if rows else ()):
        ids = task.arguments["input_ids"][0].numpy()
        found.append(Sample(task.arguments, {}, {"input_ids": ids}, ["task", i]))
    return found


def _abilities(
    model: Model, samples: Sequence[Sample], rows: Sequence[tuple[str, str]], seed: int
) -> Mapping[str, Ability]:
    """Abilities beside the loss on text: shown in half as many windows."""
    if model.task != "causal-lm":
        return {}
    windows = [sample.stored["input_ids"] for sample in samples[: max(2, len(samples) // 2)]]
    return abilities_of(model, windows, seed) | ({"task": task_ability(model, rows)} if rows else {})


def _sentences(evidence: Evidence, pruning: Pruning, tokens: int) -> Prepared:
    """For an encoder: sentence pairs for selection and judging, and the other sentences to fit on."""
    model, ranked = evidence.network, evidence.samples
    decode = partial(model.tokenizer.decode, skip_special_tokens=True)
    more = [] if pruning.calibrate is None else _more(pruning, model, tokens, set())[0] or []
    evidence.texts = [str(decode(sample.stored["input_ids"].tolist())) for sample in ranked]
    texts = [*evidence.texts, *(str(decode(sample.stored["input_ids"].tolist())) for sample in more)]
    whole = "\n".join([sample_text("judge")] if pruning.inputs is None else read_texts(pruning.inputs))
    cut = whole.rfind(". ", 0, int(len(whole) * CHOOSING)) + 1
    chosen_on = set(sentences_of([whole[:cut]]))
    parts = [
        sentence_pairs([part], seed=evidence.seed, without=seen)
        for part, seen in ((whole[:cut], ()), (whole[cut:], chosen_on))
    ]
    choose, judge = (SimilarityJudge(model, pairs) for pairs in parts)
    judged = {tuple(row) for part in (choose, judge) for task in part.tasks for row in task["input_ids"].tolist()}
    found = [sentence_sample(model, sentence) for sentence in sentences_of(texts)]
    fit = [sample for sample in found if tuple(sample.stored["input_ids"].tolist()) not in judged]
    fit.sort(key=lambda sample: sample.stored["input_ids"].size)  # equal lengths share a forward pass
    facts = {"ranked": len(ranked), "chosen_on": len(parts[0]), "judged_on": len(parts[1]), "kind": "sentence pairs"}
    evidence.fit = fit or ranked
    return Prepared(evidence, choose, judge, facts | {"fitted_on": len(fit), "calibrated_on": len(more)})
