"""Clues after more and fewer examples: the same words after every number of them (Wertich 2024, appendix A.1, A.4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.errors import InputError
from headscape.intervals import Interval, mean_interval
from headscape.statistics.maps import by_words, row_entropy
from headscape.storage import read_arrays, write_arrays
from headscape.studies.prompt.maps import MEASURES, measure_map
from headscape.studies.prompt.text import Entry, Text, choose_shots
from headscape.studies.work.handing import models_for
from headscape.studies.work.how import Work
from headscape.studies.work.units import run_units

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.sending import Named

__all__ = ["ARMS", "Asked", "Sweep", "ask", "check_sweep", "measure_asked", "sweep_of"]

Array = npt.NDArray[Any]
ARMS = ("examples", "clues exchanged", "random weights")
"""Whose loss is known: of the prompts, of the same with every example's clue at another word, of random weights."""


@dataclass(frozen=True)
class Sweep:
    """What was found after each number of examples.

    losses is (n_arm, n_shots, n_prompt) by `ARMS`, nats per token of the target's clue of the table, NaN where there is
    none; measures (n_shots, n_prompt, n_layer, n_measure) by `maps.MEASURES`, of the prompt with that clue. maps holds
    for every number of examples and every word the map between words of the middle layer, words and word_shots its axis.
    """

    shots: Sequence[int]
    clues: Sequence[Sequence[str]]
    losses: Array
    measures: Array
    maps: Sequence[Sequence[Array]]
    words: Sequence[Sequence[Sequence[str]]]
    word_shots: Sequence[Sequence[Sequence[int]]]

    def loss(self, arm: str) -> list[Interval]:
        """Mean over words after each number of examples; empty where the arm was not measured."""
        values = self.losses[ARMS.index(arm)]
        return [] if np.isnan(values).all() else [mean_interval(row).within(0, np.inf) for row in values]

    def change(self, arm: str) -> Array:
        """Loss after most examples less that after fewest, at least one, by word."""
        own = self.losses[ARMS.index(arm)]
        few = next(i for i, k in enumerate(self.shots) if k > 0 or len(self.shots) == 2)
        return np.asarray(own[-1] - own[few])

    def measure(self, name: str) -> Array:
        """A measure, mean over layers: (n_shots, n_prompt)."""
        return np.asarray(self.measures[..., MEASURES.index(name)].mean(axis=2))

    def table(self, targets: Sequence[str]) -> pd.DataFrame:
        """One row per word: the clue, and the loss of the table's own, after each number of examples."""
        columns: dict[str, Any] = {"word": list(targets)}
        for k, clues, losses in zip(self.shots, self.clues, self.losses[0], strict=True):
            columns[f"after {k}"] = [clue.strip() or "(nothing)" for clue in clues]
            columns[f"loss after {k}"] = losses
        return pd.DataFrame(columns)


@dataclass(frozen=True)
class Asked:
    """One number of examples: the prompts, each with the table's clue, and that with the examples' clues exchanged."""

    texts: Sequence[Text]
    solved: Sequence[Text]
    exchanged: Sequence[Text]
    threads: int
    whole: bool
    """Clues, maps and exchanged examples too, not the loss alone."""


def check_sweep(sweep: Sequence[int], entries: Sequence[Entry], target: Entry) -> None:
    """Raise an `InputError` unless there are two numbers of examples or more, in order, that the table can give."""
    if not sweep:
        return
    if any(not isinstance(k, int) or k < 0 for k in sweep) or sorted(set(sweep)) != list(sweep) or len(sweep) < 2:
        shown = ", ".join(map(str, sweep))
        raise InputError(f"a sweep takes two or more numbers of examples from 0 on, in rising order, not {shown}")
    choose_shots(entries, target, sweep[-1])


def ask(
    entries: Sequence[Entry],
    targets: Sequence[Entry],
    shots: int,
    sweep: Sequence[int],
    write: Callable[[Entry, Sequence[Entry]], Text],
    seed: int,
    before: str = " ",
) -> dict[int, tuple[list[Text], list[Text], list[Text]]]:
    """Prompts by number of examples: plain, with the table's clue, and that with clues exchanged.

    More examples are put in front of those already there, so that the nearest stay the same; after `shots` of them stand
    those of the study's own prompt.
    """
    found: dict[int, tuple[list[Text], list[Text], list[Text]]] = {k: ([], [], []) for k in sweep}
    for target in targets:
        own = choose_shots(entries, target, shots, seed)
        others = [one for one in entries if not any(one is other for other in own)]
        shown = [*choose_shots(others, target, max(sweep[-1] - shots, 0), seed), *own]
        shown = shown[len(shown) - sweep[-1] :]
        wrong = [one._replace(clue=other.clue) for one, other in zip(shown, [*shown[1:], *shown[:1]], strict=True)]
        for k, (texts, solved, exchanged) in found.items():
            texts.append(write(target, shown[len(shown) - k :]))
            solved.append(texts[-1].with_answer(before + target.clue))
            exchanged.append(write(target, wrong[len(wrong) - k :]).with_answer(before + target.clue))
    return found


def measure_asked(path: Path, given: Model | Named, asked: Asked) -> None:
    """A unit: one number of examples, all words."""
    from headscape.attention.mean_maps import mean_maps
    from headscape.attention.sending import received
    from headscape.geometry.diffusion import one_blas_thread
    from headscape.studies.prompt.versions import clue_loss, encode, greedy_clue

    arrays: dict[str, Array] = {}
    said: dict[str, Any] = {}
    with received(given, asked.threads) as model, one_blas_thread():
        for name, texts in {"examples": asked.solved, "exchanged": asked.exchanged if asked.whole else []}.items():
            arrays[name] = np.array([clue_loss(model, *encode(model, text), of=("answer",)) for text in texts])
        if asked.whole:
            said["clues"] = [greedy_clue(model, encode(model, text)[0]) for text in asked.texts]
            said["words"], said["word_shots"], measures = [], [], []
            for i, text in enumerate(asked.solved):
                ids, layout = encode(model, text)
                found = mean_maps(model, ids, row_entropy)
                kept, strings = np.flatnonzero(layout.content_words()), layout.word_strings()
                arrays[f"map {i}"] = by_words(found.mean[len(found.mean) // 2], layout.words)[np.ix_(kept, kept)]
                said["words"].append([strings[w] for w in kept])
                said["word_shots"].append([int(layout.shots[np.argmax(layout.words == w)]) for w in kept])
                rows = [measure_map(A, layout, float(h)) for A, h in zip(found.mean, found.measured, strict=True)]
                measures.append([[row[name] for name in MEASURES] for row in rows])
            arrays["measures"] = np.array(measures)
    write_arrays(path, arrays, {"said": json.dumps(said)})


def sweep_of(
    models: Mapping[str, Model],
    asked: Mapping[int, tuple[list[Text], list[Text], list[Text]]],
    unit: Callable[..., Path],
    work: Work,
) -> Sweep:
    """Ask the model, and random weights beside it ("control"), after every number of examples."""
    paths = {(name, k): unit(name, k, [text.text for text in asked[k][2]]) for name in models for k in asked}
    given, work = models_for(work, models)
    units = {
        f"{name}, {k} examples": (path, given[name], Asked(*asked[k], work.threads, name == "model"))
        for (name, k), path in paths.items()
    }
    run_units(measure_asked, units, work, work.stage("numbers of examples", len(units)))
    read = {key: read_arrays(path) for key, path in paths.items()}
    own = [read["model", k] for k in asked]
    said = [json.loads(facts["said"]) for _, facts in own]
    none = np.full_like(own[0][0]["examples"], np.nan)
    control = [read["control", k][0]["examples"] if "control" in models else none for k in asked]
    losses = [[arrays["examples"] for arrays, _ in own], [arrays["exchanged"] for arrays, _ in own], control]
    return Sweep(
        shots=list(asked),
        losses=np.array(losses),
        measures=np.stack([arrays["measures"] for arrays, _ in own]),
        maps=[[arrays[f"map {i}"].astype(np.float32) for i in range(len(none))] for arrays, _ in own],
        **{name: [one[name] for one in said] for name in ("clues", "words", "word_shots")},
    )
