"""What a series found: scores of every head at every checkpoint, and where roles begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.roles import MIXED
from headscape.studies.work.result import StudyResult

__all__ = ["ENTROPIES", "SeriesResult"]

FloatArray = npt.NDArray[np.float64]
ENTROPIES = ("l1_rel", "shannon")
"""Entropies that do not depend on units; in the trees of the last checkpoint, so that they can be compared."""
MOST = 0.5
"""Share of the batches in which a head must hold a role."""
SHOWN = 11
"""Checkpoints in the table that the command prints."""


@dataclass(frozen=True, eq=False)
class SeriesResult(StudyResult):
    """The heads of one network over training.

    scores is (n_step, n_role, n_batch, n_head); chance (n_role,) is what attention spread at random scores; held
    (n_step, n_role, n_head) is the share of batches in which a head holds a role, named the role that names each head.
    entropies is (n_step, 2, n_head), coordinates (n_step, n_head, 2) on one diffusion map. moved (n_step - 1, n_head)
    is the Hellinger distance of a head's maps from one checkpoint to the next, change (n_step - 1, n_batch) the mean
    difference of all scores, noise (n_step, n_pair) that of one checkpoint between two inputs.
    """

    study: ClassVar[str] = "series"
    title: ClassVar[str] = "How do heads change while a network trains?"

    heads: pd.DataFrame
    steps: npt.NDArray[np.int64]
    role_names: Sequence[str]
    scores: FloatArray
    chance: FloatArray
    held: FloatArray
    named: Sequence[Sequence[str]]
    entropies: FloatArray
    coordinates: FloatArray
    moved: FloatArray
    change: FloatArray
    noise: FloatArray
    settings: Mapping[str, Any]

    def to_frame(self) -> pd.DataFrame:
        """One row per head: its role at the end, since when it has it, how far it moved in all, its last scores."""
        frame = self.heads.assign(
            role=list(self.named[-1]), since=pd.array(self.since(), dtype="Int64"), moved=self.moved.sum(axis=0)
        )
        for name, scores in zip(self.role_names, self.scores[-1].mean(axis=1), strict=True):
            frame[name] = scores
        return frame

    def since(self) -> list[int | None]:
        """The step from which each head has kept the role it ends with, None for a head without one."""
        found: list[int | None] = []
        for names in zip(*self.named, strict=True):
            same = next((i for i, name in enumerate(reversed(names)) if name != names[-1]), len(names))
            found.append(None if names[-1] == MIXED else int(self.steps[len(names) - same]))
        return found

    def births(self) -> pd.DataFrame:
        """When roles begin: one row per head and role it holds at the end, with the step from which it has held it."""
        rows = []
        for r, role in enumerate(self.role_names):
            holds = self.held[:, r] > MOST
            for h in np.flatnonzero(holds[-1]):
                first = len(holds) - int(np.argmin(np.append(holds[::-1, h], False)))
                before = int(self.steps[first - 1]) if first else None
                score = float(self.scores[-1, r, :, h].mean())
                place = self.heads.loc[h, ["block", "layer", "head"]].to_dict()
                rows.append({"role": role, **place, "after": before, "by": int(self.steps[first]), "score": score})
        columns = ["role", "block", "layer", "head", "after", "by", "score"]
        frame = pd.DataFrame(rows, columns=columns).astype({"after": "Int64", "by": "Int64"})
        return frame.sort_values(["role", "by", "score"], ascending=[True, True, False], ignore_index=True)

    def steps_table(self) -> pd.DataFrame:
        """One row per checkpoint: how many heads hold each role, and how far the network moved since the last one."""
        counts = (self.held > MOST).sum(axis=2)
        frame = pd.DataFrame({"step": self.steps, **dict(zip(self.role_names, counts.T, strict=True))})
        moved = np.concatenate([[np.nan], self.moved.mean(axis=1)])
        change = np.concatenate([[np.nan], self.change.mean(axis=1)])
        return frame.assign(moved=moved, change=change, noise=self.noise.mean(axis=1))

    def history(self) -> pd.DataFrame:
        """One row per checkpoint and head: every score, the entropies, the role and the place on the map."""
        frames = []
        for t, step in enumerate(self.steps):
            scores = dict(zip(self.role_names, self.scores[t].mean(axis=1), strict=True))
            entropies = dict(zip(ENTROPIES, self.entropies[t], strict=True))
            place = {"role": list(self.named[t]), "x": self.coordinates[t, :, 0], "y": self.coordinates[t, :, 1]}
            where = {str(name): column for name, column in self.heads.items()}
            frames.append(pd.DataFrame({"step": step, **where, **place, **scores, **entropies}))
        return pd.concat(frames, ignore_index=True)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Births of roles, one row per checkpoint, one per head, one per checkpoint and head."""
        return {
            "births": self.births(),
            "steps": self.steps_table(),
            "heads": self.to_frame(),
            "history": self.history(),
        }

    def summary(self) -> list[tuple[str, pd.DataFrame]]:
        """A few of the checkpoints, with the roles that some head holds at one of them."""
        table = self.steps_table()
        shown = table.iloc[np.unique(np.linspace(0, len(table) - 1, SHOWN).round().astype(int))]
        roles = [role for role in self.role_names if table[role].any()]
        return [("Heads that hold a role, by step", shown[["step", *roles, "change", "noise"]])]
