"""The table of a run: claims that were tested a few at a time, in one result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from headscape.papers import claims as all_claims
from headscape.runs import Run
from headscape.studies.claims.result import ClaimsResult
from headscape.studies.work.folder import Kept, kept_studies

__all__ = ["together"]


def together(run: Run, newest: Kept) -> ClaimsResult:
    """A kept result with the rows of earlier ones in its run that were made alike, so that `only` adds to what is known.

    Alike are those with the same batches and settings; of a claim that was tested twice the newest row is taken.
    """
    kept = [one for one in kept_studies(run, ClaimsResult.study) if one.finished is not None]
    alike = [one for one in kept if one.path != newest.path and _alike(one.facts) == _alike(newest.facts)]
    results = [one.result(run, ClaimsResult) for one in (*alike, newest)]
    rows = {row["claim"]: row for result in results for row in result.claims.to_dict("records")}
    known = [rows[id] for id in all_claims() if id in rows]
    return replace(results[-1], claims=pd.DataFrame(known, columns=results[-1].claims.columns))


def _alike(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What two results must share to stand in one table: batches, and all settings but which claims."""
    batches = {name: content for name, content in facts.get("inputs", {}).items() if name.startswith("batch ")}
    return batches | {name: value for name, value in facts.get("settings", {}).items() if name != "only"}
