"""What does attention do in a few-shot prompt? Maps of words and clues, beside random weights and edited spectra.

These are the experiments of chapter 8 of M. V. Wertich, "Exploring the Hidden Structures of Attention Layers in
Transformer Models through the Lens of Gaussian Distributions" (bachelor thesis, Johannes Gutenberg University Mainz,
2024).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.errors import InputError
from headscape.runs import Run
from headscape.statistics.maps import by_words
from headscape.storage import read_arrays
from headscape.studies.prompt.result import PromptResult
from headscape.studies.prompt.sweep import ask, check_sweep, sweep_of
from headscape.studies.prompt.text import Entry, Layout, chat_text, choose_shots, find_entry, plain_text, read_table
from headscape.studies.work.folder import working_folder
from headscape.studies.work.handing import models_for
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import Loader, model_run
from headscape.studies.work.units import run_units

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.studies.prompt.versions import Task

__all__ = ["ALPHAS", "prompt", "request"]

Array = npt.NDArray[Any]
ALPHAS = (0.5, 0.707, 1.414, 2.0)
"""Factors on the spectra of W_q and W_k; scores are multiplied by their squares."""


def request(
    word: str = "Ant",
    shots: int = 3,
    table: str | Path | None = None,
    prompts: int = 6,
    alphas: Sequence[float] = ALPHAS,
    permutations: int = 500,
    random_state: int = 0,
    sweep: Sequence[int] = (),
) -> tuple[list[Entry], list[Entry]]:
    """Check what can be checked without a model: the table, and the targets (the word, then others of its category)."""
    for name, value, low in (("shots", shots, 0), ("prompts", prompts, 1), ("permutations", permutations, 1)):
        integer(name, value, low)
    check_seed(random_state)
    shown = ", ".join(map(str, alphas))
    if any(not alpha > 0 or alpha == 1 or math.isinf(alpha) for alpha in alphas):
        raise InputError(f"alphas are numbers above 0 other than 1 (which is the model as it is), not {shown}")
    if len({f"{alpha:.3g}" for alpha in alphas}) < len(alphas):
        raise InputError(f"alphas must differ in their first three digits: {shown}")
    entries = read_table(table)
    target = find_entry(entries, word)
    choose_shots(entries, target, shots, random_state)
    check_sweep(sweep, entries, target)
    words: dict[str, Entry] = {}  # of a word in several rows the first: its prompt would count twice
    for entry in entries:
        if entry.category == target.category and entry.word.casefold() != target.word.casefold():
            words.setdefault(entry.word.casefold(), entry)
    others = list(words.values())
    chosen = np.random.default_rng(random_state).permutation(len(others))[: prompts - 1]
    return entries, [target, *(others[i] for i in chosen)]


def prompt(
    model: Model,
    run: Run | str | Path | None = None,
    *,
    word: str = "Ant",
    shots: int = 3,
    table: str | Path | None = None,
    prompts: int = 6,
    alphas: Sequence[float] = ALPHAS,
    control: Model | bool | None = None,
    chat: bool = False,
    permutations: int = 500,
    sweep: Sequence[int] = (),
    random_state: int = 0,
    **how: Unpack[How],
) -> PromptResult:
    """Have a causal model write crossword clues by example, and look at its attention (experiments E1 to E8).

    Parameters
    ----------
    model
        A causal language model with a fast tokenizer.
    run
        A run directory, made if it does not exist: each version of the model is stored when done, and a killed study
        resumes.
    word, shots
        The target whose maps are drawn, and how many examples precede it: others of its category.
    table
        A CSV with columns word, clue and category; by default the one of the package.
    prompts
        How many targets the numbers come from: the word and others of its category, each with its own examples.
    alphas
        Factors on the spectra of W_q and W_k, all layers at once.
    control
        The same architecture with random weights. True draws them.
    chat
        Put the prompt into the model's chat template.
    sweep
        Numbers of examples, such as (0, 1, 3, 5, 8): clues for the same words are also written after each of them, with
        the examples' clues in place and exchanged. After `shots` of them stand the same examples as in the prompt.
    how
        jobs (versions of the model at a time), threads, engine, resume, progress, say: see
        `headscape.studies.work.how.How`.

    Raises
    ------
    InputError
        If the model is not causal, the prompt is too long, the word is unknown (the nearest are suggested), the table
        lacks a column, or has too few words for the shots; nothing is written then.

    >>> result = hs.prompt(model, shots=1, prompts=2, alphas=(2.0,), permutations=10)
    >>> {finding.claim: finding.verdict for finding in result.findings() if finding.claim}
    {'prompt.depth': 'cannot tell', 'prompt.shots': 'cannot tell', ...}
    """
    from headscape.studies.prompt.versions import LONGEST, Task, check_model, encode

    work = Work.of(**how)
    entries, targets = request(word, shots, table, prompts, alphas, permutations, random_state, sweep)
    check_model(model)
    write = partial(chat_text, model.tokenizer) if chat else plain_text
    texts = [write(target, choose_shots(entries, target, shots, random_state)) for target in targets]
    before = "" if chat else " "
    asked = ask(entries, targets, shots, sweep, write, random_state, before) if sweep else {}
    for text in [*texts, *(asked[sweep[-1]][0] if sweep else [])]:
        encode(model, text, LONGEST)  # one that is too long is refused now
    if control is True:
        control = Loader(model.device).load(model.source, model.dtype, random_state)
    models = {"model": model} | ({"control": control} if control else {})
    facts = {"word": targets[0].word, "shots": shots, "prompts": prompts, "alphas": list(alphas), "chat": chat}
    facts |= {"permutations": permutations, "seed": random_state}
    facts |= {"table": None if table is None else [list(entry) for entry in entries]}
    inputs = {name: one.fingerprint for name, one in models.items()} | {"dtype": model.dtype}
    solved = [t.with_answer(before + e.clue) for t, e in zip(texts, targets, strict=True)]
    task = Task(texts, solved, permutations, random_state, work.threads)
    make = model_run(model, run, "prompt", random_state)
    swept = facts | ({"sweep": list(sweep)} if sweep else {})
    with working_folder(run, PromptResult.study, swept, inputs, work, make) as folder:
        found = _measured(models, alphas, task, lambda version: folder.unit("version", facts, inputs, version), work)
        if sweep:
            found["sweep"] = sweep_of(models, asked, lambda *one: folder.unit("sweep", swept, inputs, one), work)
        named = {"source": model.source, "dtype": model.dtype, "table": None if table is None else str(table)}
        result = PromptResult(
            targets=[target.word for target in targets], text=texts[0].text, settings=swept | named, **found
        )
        folder.save(result)
    return result


def _measured(
    models: Mapping[str, Model],
    alphas: Sequence[float],
    task: Task,
    unit: Callable[[Mapping[str, Any]], Path],
    work: Work,
) -> dict[str, Any]:
    """Measure every version of the model; the trained one first, because all are given the clues that it writes."""
    from headscape.statistics.edits import scaling_law
    from headscape.studies.prompt.versions import encode, measure_version, versions_of

    law = scaling_law(models["model"])
    versions = versions_of(alphas, "control" in models, law.exception.startswith("QK-norm"))
    paths = {version.name: unit(vars(version)) for version in versions}
    given, work = models_for(work, models)
    steps = work.stage("versions of the model", len(versions))
    for part, asked in ((versions[:1], task), (versions[1:], replace(task, trained=paths["trained"]))):
        units = {
            v.name: (paths[v.name], given["control" if v.name == "random weights" else "model"], v, asked) for v in part
        }
        run_units(measure_version, units, work, steps)
    read = {name: read_arrays(path) for name, path in paths.items()}
    clues = {name: json.loads(said["clues"]) for name, (_, said) in read.items()}
    _, layout = encode(models["model"], task.texts[0].with_answer(clues["trained"][0]))
    arrays = {name: found for name, (found, _) in read.items()}
    return {"clues": clues, "law_error": law.error, "law_exception": law.exception, **_fields(arrays, layout)}


def _fields(found: Mapping[str, Mapping[str, Array]], layout: Layout) -> dict[str, Any]:
    """What was measured of every version, as fields of the result."""
    trained = found["trained"]
    tokens, words = np.flatnonzero(layout.content), np.flatnonzero(layout.content_words())
    strings, first = layout.word_strings(), [int(np.argmax(layout.words == w)) for w in words]

    def drawn(maps: Array) -> Array:
        return _part(by_words(maps, layout.words), words).astype(np.float32)

    return {
        "versions": list(found),
        "measures": np.stack([arrays["measures"] for arrays in found.values()]),
        "losses": np.stack([arrays["loss"] for arrays in found.values()]),
        **{name: trained[name] for name in ("weighted", "uniform", "distance")},
        "cosine": np.stack([arrays["cosine"] for arrays in found.values() if "cosine" in arrays]),
        "token_maps": _part(trained["map_mean"], tokens),
        "token_cosines": _part(trained["map_cosines"], tokens),
        "word_maps": {name: drawn(arrays["map_mean"]) for name, arrays in found.items()},
        "weighted_words": drawn(trained["map_weighted"]),
        "tokens": [layout.tokens[i] for i in tokens],
        "words": [strings[i] for i in words],
        "token_shots": layout.shots[tokens].tolist(),
        "word_shots": layout.shots[first].tolist(),
    }


def _part(maps: Array, kept: Array) -> Array:
    """Some rows and the same columns."""
    return np.ascontiguousarray(maps[..., kept[:, None], kept])
