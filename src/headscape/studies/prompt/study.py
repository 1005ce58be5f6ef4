"""What does attention do in a few-shot prompt? Maps of words and clues, beside random weights and edited spectra."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.runs import Run
from headscape.studies.prompt.maps import (
    MEASURES,
    by_words,
    cosine_test,
    cosines,
    distance_map,
    measure_map,
    uniform_map,
)
from headscape.studies.prompt.result import PromptResult
from headscape.studies.prompt.text import (
    Entry,
    Layout,
    Text,
    chat_text,
    choose_shots,
    find_entry,
    plain_text,
    read_table,
)
from headscape.studies.work.old import Progress, Say, Steps, cores, read_arrays, study_folder, write_arrays

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.studies.prompt.versions import Version

__all__ = ["ALPHAS", "prompt"]

Array = npt.NDArray[Any]
ALPHAS = (0.5, 0.707, 1.414, 2.0)
"""Factors on the spectra of W_q and W_k; scores are multiplied by their squares."""
ROOM = 24
"""Tokens kept free for a clue."""


def prompt(
    model: Model,
    run: Run | str | Path | None = None,
    *,
    word: str = "Ant",
    shots: int = 3,
    table: str | Path | None = None,
    prompts: int = 6,
    alphas: Sequence[float] = ALPHAS,
    control: Model | None = None,
    chat: bool = False,
    permutations: int = 500,
    threads: int | None = None,
    random_state: int = 0,
    progress: Progress = lambda done, total: None,
    say: Say = lambda _: None,
) -> PromptResult:
    """Ask a causal model for crossword clues by example, and look at its attention (experiments E1 to E8).

    Parameters
    ----------
    model
        A causal language model with a fast tokenizer.
    run
        A run directory: each prompt of each version is stored when done, and a killed study goes on.
    word, shots
        The target that is drawn, and how many examples precede it: others of its category.
    table
        A CSV with columns word, clue and category; by default the one of the package.
    prompts
        How many targets the numbers come from: the word and others of its category, each with examples of its own.
    alphas
        Factors on the spectra of W_q and W_k, all layers at once.
    control
        The same architecture with random weights.
    chat
        Put the prompt into the model's chat template.

    Raises
    ------
    InputError
        If the model is not causal, the prompt is too long, the word is unknown (the nearest are offered), the table
        lacks a column, or has too few words for the shots.
    """
    from headscape.studies.prompt.versions import check_model, versions_of

    if prompts < 1 or permutations < 1:
        raise InputError(f"prompts and permutations must be at least 1, not {prompts} and {permutations}")
    if any(not alpha > 0 or alpha == 1 for alpha in alphas):
        raise InputError(f"alphas are numbers above 0 other than 1, not {', '.join(map(str, alphas))}")
    entries = read_table(table)
    target = find_entry(entries, word)
    choose_shots(entries, target, shots, random_state)  # said before a model is asked
    check_model(model)
    facts = {
        "format": 1,
        "model": model.fingerprint,
        "control": None if control is None else control.fingerprint,
        "word": target.word,
        "shots": shots,
        "chat": chat,
        "permutations": permutations,
        "seed": random_state,
        "table": [list(entry) for entry in entries] if table is not None else None,
    }
    opened = Run.open(run) if isinstance(run, str | Path) else run
    with (
        study_folder(opened, PromptResult.study, facts, say) as folder,
        _threads(threads or cores()),
        one_blas_thread(),
    ):
        from headscape.statistics.edits import scaling_law

        law = scaling_law(model)
        study = _Study(
            model, entries, _targets(entries, target, prompts, random_state), shots, chat, random_state, folder
        )
        study.texts  # noqa: B018 - a prompt that is too long is said now
        versions = versions_of(model, control, alphas, law, random_state)
        steps = Steps(progress, len(versions) * len(study.targets))
        for version in versions:
            study.measure(version, permutations, steps)
        settings = {key: facts[key] for key in ("word", "shots", "chat", "permutations", "seed")}
        settings |= {"source": model.source, "alphas": list(alphas), "table": None if table is None else str(table)}
        result = study.summary(versions, law, settings)
    if opened is not None:
        result.save(opened.path / result.study)
    return result


@contextmanager
def _threads(n: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _targets(table: Sequence[Entry], target: Entry, n: int, seed: int) -> list[Entry]:
    """The target and others of its category."""
    others = [e for e in table if e.category == target.category and e.word.casefold() != target.word.casefold()]
    chosen = np.random.default_rng(seed).permutation(len(others))[: n - 1]
    return [target, *(others[i] for i in chosen)]


@dataclass(frozen=True)
class _Study:
    """The prompts of a model, and the files of what was found of them."""

    model: Model
    table: list[Entry]
    targets: list[Entry]
    shots: int
    chat: bool
    seed: int
    folder: Path

    @cached_property
    def texts(self) -> list[Text]:
        """The prompts, each checked to fit into the context with its clue."""
        from headscape.studies.prompt.versions import encode

        found = []
        for target in self.targets:
            examples = choose_shots(self.table, target, self.shots, self.seed)
            tokenizer = self.model.tokenizer
            found.append(chat_text(tokenizer, target, examples) if self.chat else plain_text(target, examples))
            encode(self.model, found[-1], ROOM)
        return found

    def path(self, version: str, i: int) -> Path:
        return self.folder / f"{version.replace(' ', '-')}-{i:04d}.safetensors"

    def clue(self, version: str, i: int) -> str:
        return read_arrays(self.path(version, i), lambda _: False)[1]["clue"]

    def shown(self, i: int) -> tuple[list[int], Layout]:
        """The text all versions are shown: the prompt and the clue the trained model wrote."""
        from headscape.studies.prompt.versions import encode

        return encode(self.model, self.texts[i].with_answer(self.clue("trained", i)))

    def measure(self, version: Version, permutations: int, steps: Steps) -> None:
        """All prompts of a version that are not there yet."""
        todo = [i for i in range(len(self.targets)) if not self.path(version.name, i).exists()]
        if todo:
            with version.change():
                for i in todo:
                    self._measure(version, i, permutations)
                    steps.one()
        for _ in range(len(self.targets) - len(todo)):
            steps.one()

    def _measure(self, version: Version, i: int, permutations: int) -> None:
        from headscape.studies.prompt.versions import clue_loss, encode, greedy_clue, look, vectors_of

        ids, _ = encode(version.model, self.texts[i])
        clue = greedy_clue(version.model, ids, ROOM)
        own = clue if version.name == "trained" else self.clue("trained", i)
        ids, layout = encode(self.model, self.texts[i].with_answer(own))
        maps = look(version.model, ids)
        solved = self.texts[i].with_answer(("" if self.chat else " ") + self.targets[i].clue)
        arrays: dict[str, Array] = {
            "measures": _measures(maps.mean, layout, maps.entropies),
            "weighted": _measures(maps.weighted, layout, maps.entropies),
            "loss": np.array([clue_loss(version.model, *encode(self.model, solved))]),
        }
        if version.name == "trained":
            arrays["uniform"] = _measures(uniform_map(len(ids))[None], layout, np.ones(1))[0]
            arrays["distance"] = _measures([distance_map(A) for A in maps.mean], layout, maps.entropies)
        if version.name in ("trained", "random weights"):
            cosine = cosines(vectors_of(version.model, ids))
            tests = [cosine_test(maps.mean, cosine, permutations, self.seed, skip_first=skip) for skip in (False, True)]
            arrays["cosine"] = np.concatenate([np.stack(test, axis=1) for test in tests], axis=1)
        if i == 0:
            arrays["mean"] = maps.mean
            if version.name == "trained":
                arrays["by_size"] = maps.weighted
                arrays["cosines"] = cosines(vectors_of(version.model, ids))
        write_arrays(self.path(version.name, i), arrays, {"clue": clue, "by_output": json.dumps(maps.by_output)})

    def summary(self, versions: Sequence[Version], law: Any, settings: dict[str, Any]) -> PromptResult:
        """Read the files and put the result together."""
        names = [version.name for version in versions]

        def gather(what: str, version: str = "trained") -> Array:
            paths = [self.path(version, i) for i in range(len(self.targets))]
            return np.stack([read_arrays(path, lambda name: name == what)[0][what] for path in paths])

        _, layout = self.shown(0)
        first = read_arrays(self.path("trained", 0))[0]
        maps = {name: read_arrays(self.path(name, 0), lambda n: n == "mean")[0]["mean"] for name in names}
        content, kept = np.flatnonzero(layout.content), np.flatnonzero(layout.content_words())
        tested = [name for name in ("trained", "random weights") if name in names]
        words = layout.word_strings()
        return PromptResult(
            versions=names,
            targets=[target.word for target in self.targets],
            clues={name: [self.clue(name, i) for i in range(len(self.targets))] for name in names},
            measures=np.stack([gather("measures", name) for name in names]),
            losses=np.stack([gather("loss", name)[:, 0] for name in names]),
            weighted=gather("weighted"),
            uniform=gather("uniform"),
            distance=gather("distance"),
            cosine=np.stack([gather("cosine", name) for name in tested]),
            token_maps=_part(first["mean"], content),
            token_cosines=_part(first["cosines"], content),
            word_maps={name: _part(by_words(m, layout.words), kept).astype(np.float32) for name, m in maps.items()},
            weighted_words=_part(by_words(first["by_size"], layout.words), kept).astype(np.float32),
            tokens=[layout.tokens[i] for i in content],
            words=[words[i] for i in kept],
            text=self.texts[0].text,
            law_error=float(law.error),
            law_exception=str(law.exception),
            settings=settings,
        )


def _part(maps: Array, kept: Array) -> Array:
    """Some rows and the same columns."""
    return np.ascontiguousarray(maps[..., kept[:, None], kept])


def _measures(maps: Any, layout: Layout, entropies: Array) -> Array:
    """(n_layer, n_measure)."""
    rows = [measure_map(A, layout, float(h)) for A, h in zip(maps, entropies, strict=True)]
    return np.array([[row[name] for name in MEASURES] for row in rows], dtype=np.float64)
