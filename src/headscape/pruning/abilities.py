"""Abilities that an average loss hides: copying, long-range retrieval, and a task that the user supplies.

Every ability is judged by the loss on completions whose context says what they are. Its control is the loss on the same
completions after the context of another item: where the intact model does no better than that, it lacks the ability.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from headscape.attention.inputs import frame_of
from headscape.attention.loss import Task
from headscape.attention.models import Model
from headscape.attention.samples import Sample
from headscape.errors import InputError

__all__ = ["Ability", "abilities_of", "read_tasks", "repeats", "task_ability"]

Ids = npt.NDArray[np.int64]
NAMES = ("Anna", "Peter", "Maria", "Thomas", "Laura", "Daniel", "Emma", "Robert", "Julia", "Michael", "Sarah", "David")
PLACES = (
    "Paris",
    "London",
    "Berlin",
    "Rome",
    "Madrid",
    "Vienna",
    "Tokyo",
    "Moscow",
    "Cairo",
    "Athens",
    "Dublin",
    "Oslo",
)
FACTS = 4
"""Facts stated per window; each is asked for at its end, so there are as many distances."""
ASKED = 4
"""How often each window of text is used, every time with other facts: answers vary more than windows do."""


@dataclass(frozen=True)
class Ability:
    """Forward passes that test an ability, and the same completions after the contexts of other items."""

    tasks: Sequence[Task]
    control: Sequence[Task]


def _task(ids: Sequence[int], spans: Sequence[tuple[int, int]]) -> Task:
    row = torch.tensor([list(ids)])
    return Task({"input_ids": row}, row, 1, tuple(spans))


def _body(model: Model, window: Ids) -> tuple[list[int], list[int]]:
    """The tokens that precede every text, and a window without its special tokens."""
    before, after = frame_of(model.tokenizer, False, model.prefix)
    return before, [int(i) for i in window[len(before) : len(window) - len(after)]]


def _vocabulary(model: Model) -> Ids:
    """The tokens to draw from: all but the special ones."""
    special = set(getattr(model.tokenizer, "all_special_ids", [])) | set(model.prefix)
    return np.array([i for i in range(model.config.vocab_size) if i not in special], dtype=np.int64)


def repeats(model: Model, windows: Sequence[Ids], n: int, seed: int = 0) -> list[Sample]:
    """Calibration windows that repeat their first half: random tokens and text in turn."""
    rng, words = np.random.default_rng([seed, 1]), _vocabulary(model)
    found = []
    for i in range(n if windows else 0):
        before, body = _body(model, windows[i // 2 % len(windows)])
        half = body[: len(body) // 2] if i % 2 else [int(t) for t in rng.choice(words, len(body) // 2)]
        ids = np.array([*before, *half, *half], dtype=np.int64)
        found.append(Sample({"input_ids": torch.from_numpy(ids)[None]}, {}, {"input_ids": ids}, ["repeats", i]))
    return found


def abilities_of(model: Model, windows: Sequence[Ids], seed: int = 0) -> dict[str, Ability]:
    """Copying of random tokens and of text, and long-range retrieval, in windows as long as those given.

    Empty for a model that does not predict the next token, and for windows too short to hold the facts.
    """
    if model.task != "causal-lm" or len(windows) < 2:
        return {}
    rng, words = np.random.default_rng([seed, 2]), _vocabulary(model)
    bodies = [_body(model, window) for window in windows]
    half = len(bodies[0][1]) // 2
    if half < 2:
        return {}
    drawn = [[int(t) for t in rng.choice(words, half)] for _ in windows]
    found = {
        "copy.random": _copying(bodies[0][0], drawn),
        "copy.text": _copying(bodies[0][0], [body[:half] for _, body in bodies]),
    }
    asked = [_asked(model, before, body, rng) for before, body in bodies for _ in range(ASKED)]
    if all(asked):
        items = [one for one in asked if one is not None]
        others = [*items[1:], items[0]]
        swapped = []
        for (ids, spans, start), (other, _, stop) in zip(items, others, strict=True):
            moved = [(a + stop - start, b + stop - start) for a, b in spans]  # contexts may differ in length
            swapped.append(_task([*other[:stop], *ids[start:]], moved))
        found["retrieval"] = Ability([_task(ids, spans) for ids, spans, _ in items], swapped)
    return found


def _copying(before: list[int], halves: Sequence[list[int]]) -> Ability:
    """The second of two equal halves, except its first token; in the control, the next window's half comes first."""
    start = len(before) + len(halves[0])
    spans = [(start + 1, start + len(halves[0]))]
    others = [*halves[1:], halves[0]]
    return Ability(
        [_task([*before, *half, *half], spans) for half in halves],
        [_task([*before, *other, *half], spans) for half, other in zip(halves, others, strict=True)],
    )


def _asked(
    model: Model, before: list[int], body: list[int], rng: np.random.Generator
) -> tuple[list[int], list[tuple[int, int]], int] | None:
    """Facts spread over a window of text and asked for at its end: ids, spans of the answers, start of the questions.

    None where the window is too short.
    """

    def encode(text: str) -> list[int]:
        return [int(i) for i in model.tokenizer.encode(text, add_special_tokens=False)]

    pairs = list(zip(rng.choice(NAMES, FACTS, replace=False), rng.choice(PLACES, FACTS, replace=False), strict=True))
    facts = [encode(f"\n{name} lives in {place}.\n") for name, place in pairs]
    questions = [(encode(f"\n{name} lives in"), encode(f" {place}")) for name, place in pairs]
    room = len(body) - sum(map(len, facts)) - sum(len(q) + len(a) for q, a in questions)
    if room < len(body) // 3:
        return None
    ids, step = list(before), room // FACTS
    for i, fact in enumerate(facts):
        ids += [*fact, *body[i * step : (i + 1) * step]]
    start, spans = len(ids), []
    for question, answer in questions:
        ids += question
        spans.append((len(ids), len(ids) + len(answer)))
        ids += answer
    return ids, spans, start


def read_tasks(file: str | Path) -> list[tuple[str, str]]:
    """Prompts and completions of a file of JSON lines."""
    path = Path(file)
    if not path.is_file():
        raise InputError(f"no file {path}; --task takes a file of JSON lines with prompt and completion")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append((str(row["prompt"]), str(row["completion"])))
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f'{path}, line {number}: not of the form {{"prompt": "...", "completion": "..."}}'
            ) from None
    return rows


def task_ability(model: Model, rows: Sequence[tuple[str, str]]) -> Ability:
    """A task that the user supplies; in the control, every completion follows the prompt of the next row."""
    if model.task != "causal-lm":
        raise InputError(
            f"a task of prompts and completions is for a model that predicts text, and {model.source} does not"
        )
    before, _ = frame_of(model.tokenizer, False, model.prefix)

    def item(prompt: str, completion: str) -> Task:
        start = [*before, *model.tokenizer.encode(prompt, add_special_tokens=False)]
        rest = list(model.tokenizer.encode(completion, add_special_tokens=False))
        if not rest or len(start) == 0:
            raise InputError(f"the task has an empty prompt or completion: {prompt[:40]!r}, {completion[:40]!r}")
        if model.max_tokens is not None and len(start) + len(rest) > model.max_tokens:
            raise InputError(
                f"a row of the task has {len(start) + len(rest)} tokens, {model.source} takes {model.max_tokens}"
            )
        return _task([*start, *rest], [(len(start), len(start) + len(rest))])

    others = [*rows[1:], *rows[:1]]
    control = [item(o[0], r[1]) for r, o in zip(rows, others, strict=True)]
    return Ability([item(*row) for row in rows], control)


def by_name(abilities: Mapping[str, Ability], control: bool = False) -> dict[str, Sequence[Task]]:
    """The forward passes of every ability, or of its control."""
    return {name: one.control if control else one.tasks for name, one in abilities.items()}
