"""The table of heads: entropies, roles, and what was measured on the model itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.attention.wrapping import Model
from headscape.captures import Capture
from headscape.errors import InputError
from headscape.roles import PROBED, BatchRoles, assign_roles, role_name, role_table
from headscape.storage import read_arrays, write_arrays
from headscape.studies.organize.result import ENTROPIES
from headscape.studies.organize.units import Arrays
from headscape.studies.work.folder import Folder
from headscape.studies.work.how import Work
from headscape.tensor import HeadId, Kind

__all__ = ["asked", "head_table", "probed", "probed_roles"]

SHOWN_AGAIN = 4
"""Inputs that are given to the model again for the parts of its scores."""


def asked(model: Model | None, captured: Capture, block: str, seed: int, folder: Folder, work: Work) -> Arrays:
    """What is measured on the model itself, by column: scores on repeated random tokens, copying, parts of scores.

    Nothing without a model; a column where it means nothing is left out.
    """
    if model is None:
        return {}
    heads = captured.heads(block)
    inputs = {} if captured.run is None else captured.content()
    shown = [inputs.get(f"batch {number}") for number in captured.numbers[:SHOWN_AGAIN]]
    ways: dict[str, tuple[Callable[[], dict[str, dict[HeadId, float]]], object]] = {
        "probes": (partial(_repeated, model, seed), [seed]),
        "copying": (partial(_copied, model), "gains of norms"),
        "circuits": (partial(_parts, model, captured, block), shown),
    }
    found: dict[str, npt.NDArray[Any]] = {}
    for name, (ask, decisive) in ways.items():
        path = folder.unit(name, model.fingerprint, decisive, [str(head) for head in heads])
        if not path.exists():
            try:
                scores = ask()
            except InputError as error:
                if name == "probes":
                    work.say(f"no induction scores: {error}")
                continue
            write_arrays(path, {column: np.array([of[head] for head in heads]) for column, of in scores.items()})
        found |= read_arrays(path)[0]
    return found


def probed(model: Model, seed: int) -> dict[str, dict[HeadId, float]]:
    """Induction and duplicate-token scores of a decoder, and the copying score of its weights where they can be read."""
    scores = _repeated(model, seed)
    with suppress(InputError):
        scores |= _copied(model)
    return scores


def _repeated(model: Model, seed: int) -> dict[str, dict[HeadId, float]]:
    """Induction and duplicate-token scores on repeated random tokens, which only a decoder has."""
    from headscape.attention.induction import repeated_sequence_scores

    return repeated_sequence_scores(model, seed=seed)


def _copied(model: Model) -> dict[str, dict[HeadId, float]]:
    """The copying score of the weights, which needs an output head, also of a masked language model."""
    from headscape.attention.circuits import copying_scores

    return {"copying": copying_scores(model)}


def _parts(model: Model, captured: Capture, block: str) -> dict[str, dict[HeadId, float]]:
    """What determines the scores of each head, on the first inputs, which are given to the model again."""
    from headscape.attention.samples import replayed
    from headscape.attention.scoring import score_parts, sink_features

    if captured.run is None:
        raise InputError("a capture in memory does not keep the inputs of the model")
    samples = replayed(model, captured, block)[:SHOWN_AGAIN]
    found = score_parts(model, samples)
    if model.images is None and model.causal:
        found["sink_features"] = sink_features(model, samples)
    return found


def probed_roles(probes: Arrays) -> dict[str, BatchRoles]:
    """What was measured on repeated random tokens, as the table of roles takes it."""
    return {
        name: BatchRoles({name: probes[name]}, {name: float(probes["chance"][0])}) for name in PROBED if name in probes
    }


def head_table(
    heads: Sequence[HeadId], kind: Kind, batches: Sequence[Arrays], probes: Arrays
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The table of heads, with entropies beside their null and roles; and the table of roles."""
    frame = pd.DataFrame(heads, columns=["block", "layer", "head"])
    for k, name in enumerate(ENTROPIES):
        if name == "dc" and kind == "probs":  # one number for all heads
            continue
        frame[name] = np.mean([found["entropies"][k] for found in batches], axis=0)
        frame[f"{name}_null"] = np.mean([found["null_entropies"][k] for found in batches], axis=0)
    roles = pd.DataFrame()
    if len(batches[0]["roles"]):
        roles = role_table([_roles_of(found) for found in batches], probed_roles(probes))
        frame["role"] = [role_name(role) for role in assign_roles(roles, len(frame))]
        for role, group in roles.groupby("role", sort=False):
            frame[str(role)] = group["score"].to_numpy()
        frame["positional"] = np.mean([found["positional"] for found in batches], axis=0)
        for name in ("copying", "score_distance", "score_key", "score_pair", "sink_features"):
            if name in probes:
                frame[name] = probes[name]
    return frame, roles


def _roles_of(found: Arrays) -> BatchRoles:
    names = [str(name) for name in found["roles"]]
    return BatchRoles(
        {name: found[f"role/{name}"] for name in names}, dict(zip(names, map(float, found["chance"]), strict=True))
    )
