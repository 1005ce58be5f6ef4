"""One file a question: composes the rooms into a result."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from headscape.errors import HeadscapeError
from headscape.results import Result
from headscape.runs import Run

__all__ = ["STUDIES", "load_results"]

STUDIES = {  # in the order of a report's sections
    "organize": "headscape.studies.organize_result:OrganizeResult",
    "softmax": "headscape.studies.softmax_result:SoftmaxResult",
    "prune": "headscape.studies.prune_result:PruneResult",
    "compare": "headscape.studies.compare_result:CompareResult",
    "spectra": "headscape.studies.spectra_result:SpectraResult",
    "gaussian": "headscape.studies.gaussian_result:GaussianResult",
    "prompt": "headscape.studies.prompt_result:PromptResult",
    "collapse": "headscape.studies.collapse_result:CollapseResult",
    "table1": "headscape.studies.collapse_table1:Table1Result",
    "train": "headscape.studies.train_result:TrainResult",
}


def load_results(run: Run) -> list[Result | tuple[str, Exception | str]]:
    """Load what the studies left in a run; one that cannot be read is (name, why).

    Of studies that were never run only the first is missed: without it there is no map to show.
    """
    found: list[Result | tuple[str, Exception | str]] = []
    for name, place in STUDIES.items():
        if not (run.path / name).is_dir():
            if name == next(iter(STUDIES)):
                found.append((name, f"not run yet: headscape {name} {run.path}"))
            continue
        if not (run.path / name / "result.json").is_file():
            found.append((name, f"not finished: headscape {name} {run.path} goes on where it stopped"))
            continue
        module, _, kind = place.partition(":")
        load: Callable[..., Result] = getattr(import_module(module), kind).load
        try:
            found.append(load(run.path / name))
        except HeadscapeError as error:
            found.append((name, error))
    return found
