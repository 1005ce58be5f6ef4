"""Compare the attention of every head on two inputs, token by token where their tokens can be aligned."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.captures import Capture, open_capture
from headscape.errors import InputError
from headscape.runs import Run
from headscape.studies.change.result import ChangeResult, Side
from headscape.studies.work.folder import study_folder
from headscape.studies.work.how import How, Work
from headscape.tensor import AttentionTensor, HeadId

__all__ = ["aligned", "change_of", "compare_prompts"]

N_SHOWN = 4  # heads whose maps are kept
Positions = npt.NDArray[np.intp]


def compare_prompts(
    source: Capture | Run | str | Path, first: int = 0, second: int = 1, **how: Unpack[How]
) -> ChangeResult:
    """Measure for every head how much of its attention moved between two inputs.

    Parameters
    ----------
    source
        A capture or a run directory with probabilities; there the result is kept.
    first, second
        The numbers of the two batches.

    Raises
    ------
    InputError
        No such batch, the same batch twice, scores instead of probabilities, or a pooled capture.

    Notes
    -----
    Tokens are aligned as in a text difference: equal runs of tokens, and replaced runs of the same length. For an aligned
    query, its change is the total variation distance of its two rows of attention over the aligned keys, with all other
    keys as one; a head's change is the mean over the aligned queries that have a choice of keys in both inputs.

    >>> captured = hs.capture(model, ["the cat sat", "the dog sat"])
    >>> result = hs.compare_prompts(captured)
    >>> result.to_frame().nlargest(3, "change").columns.tolist()  # the three heads that changed most
    ['block', 'layer', 'head', 'change']
    """
    work = Work.of(**how)
    captured = open_capture(source)
    captured.need_whole("comparing two prompts")
    captured.kind("probs")
    if first == second:
        raise InputError(f"batch {first} cannot be compared with itself; name two batches")
    for i in (first, second):
        captured.batch(i)
    numbers = captured.numbers[first], captured.numbers[second]
    content = captured.content()
    inputs = {name: content[name] for name in (f"batch {n}" for n in numbers) if name in content}
    settings = {"first": first, "second": second}
    with study_folder(captured.run, ChangeResult.study, settings, inputs, work) as folder:
        steps = work.stage("comparing the prompts", len(captured.blocks))
        frames: list[pd.DataFrame] = []
        pairs: dict[HeadId, tuple[AttentionTensor, AttentionTensor, int]] = {}
        for block in captured.blocks:
            A, B = (captured.tensor(i, block) for i in (first, second))
            frame = pd.DataFrame(A.heads, columns=list(HeadId._fields)).assign(change=change_of(A, B))
            frames.append(frame)
            pairs |= {HeadId(block, *A.heads[i][1:]): (A, B, i) for i in _most(frame)}
            steps.one()
        heads = pd.concat(frames, ignore_index=True)
        top = [HeadId(*heads.loc[i, ["block", "layer", "head"]]) for i in _most(heads)]
        shown = [(_side(A, i), _side(B, i)) for A, B, i in (pairs[head] for head in top)]
        texts = ["".join(captured.batch(i).tokens(captured.blocks[0])[0]) for i in (first, second)]
        result = ChangeResult(heads, [str(head) for head in top], shown, texts, settings)
        folder.save(result)
    return result


def aligned(first: Sequence[str], second: Sequence[str]) -> tuple[Positions, Positions]:
    """Positions of tokens that correspond: equal ones, and replaced ones where as many replace them.

    >>> aligned(["the", " cat", " sat"], ["the", " dog", " sat", " down"])
    (array([0, 1, 2]), array([0, 1, 2]))
    """
    one: list[int] = []
    two: list[int] = []
    for what, a, b, c, d in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        if what == "equal" or (what == "replace" and b - a == d - c):
            one += range(a, b)
            two += range(c, d)
    return np.array(one, dtype=np.intp), np.array(two, dtype=np.intp)


def change_of(A: AttentionTensor, B: AttentionTensor) -> npt.NDArray[np.float64]:
    """How much of its attention every head moved, (n_head,), from 0 to 1; NaN where no query can be compared."""
    (query_a, query_b), (key_a, key_b) = (
        aligned(one, two) for one, two in ((A.query_tokens, B.query_tokens), (A.key_tokens, B.key_tokens))
    )
    free = (A.present.sum(axis=1)[query_a] > 1) & (B.present.sum(axis=1)[query_b] > 1)
    query_a, query_b = query_a[free], query_b[free]
    if not len(query_a) or not len(key_a):
        return np.full(len(A.heads), np.nan)
    p, q = (X.values[query].astype(np.float64) for X, query in ((A, query_a), (B, query_b)))
    p, q = p[:, key_a], q[:, key_b]
    rest = np.abs(p.sum(axis=1) - q.sum(axis=1))
    return np.asarray(((np.abs(p - q).sum(axis=1) + rest) / 2).mean(axis=0))


def _most(frame: pd.DataFrame) -> list[int]:
    """Rows of the heads that changed most, most first."""
    known = frame[frame["change"].notna()].sort_values("change", ascending=False, kind="stable")
    return [int(i) for i in known.index[:N_SHOWN]]


def _side(X: AttentionTensor, i: int) -> Side:
    values = np.where(X.present, X.values[:, :, i], np.nan).astype(np.float32)
    return Side(values, list(X.query_tokens), list(X.key_tokens))
