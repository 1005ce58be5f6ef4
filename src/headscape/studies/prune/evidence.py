"""What the prune study lets criteria look at, put together from a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from headscape.captures import Capture
from headscape.errors import InputError
from headscape.pruning.evidence import Evidence
from headscape.studies.organize.result import OrganizeResult
from headscape.studies.prune.controls import control_entropies

if TYPE_CHECKING:
    from headscape.attention.models import Model

__all__ = ["evidence_of", "organised_of"]


def organised_of(captured: Capture) -> OrganizeResult | None:
    """The organize study of a run, if it was made."""
    folder = None if captured.run is None else captured.run.path / OrganizeResult.study
    return OrganizeResult.load(folder) if folder is not None and (folder / "result.json").is_file() else None


def evidence_of(
    captured: Capture, model: Model | None, block: str, seed: int, organised: OrganizeResult | None
) -> Evidence:
    """What criteria may look at: the run's inputs, its model (from its record if not given), its organised heads."""
    from headscape.attention.samples import replayed

    organised = organised or organised_of(captured)
    if model is None:
        source = None if captured.run is None else captured.run.model_source
        if source is None:
            raise InputError("pruning needs the model, not only its attention; capture a model, or give model=")
        from headscape.attention.models import load_model

        model = load_model(source)
    heads = captured.heads(block)
    known = {head for site in model.sites for head in site.heads}
    if not set(heads) <= known:
        raise InputError(f"the run has head {min(set(heads) - known)}, {model.source} has not: is this its model?")
    evidence = Evidence(heads, model=model, samples=replayed(model, captured), seed=seed)
    if organised is not None and organised.block == block and organised.kind == "probs":
        evidence.frame = pd.concat([organised.to_frame(), control_entropies(captured, organised, seed)], axis=1)
        evidence.distances, evidence.tree = organised.distances, organised.tree
    return evidence
