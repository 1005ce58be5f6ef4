"""One folder per question: each composes the rooms into a result, with its findings and figures."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from headscape.errors import HeadscapeError, InputError
from headscape.results import Result
from headscape.runs import Run
from headscape.studies.work.folder import Kept, kept_studies, newest_by_block

__all__ = ["STUDIES", "load_results", "open_result", "result_class"]

STUDIES = {  # in the order of a report's sections
    "organize": "OrganizeResult",
    "change": "ChangeResult",
    "compress": "CompressResult",
    "softmax": "SoftmaxResult",
    "prune": "PruneResult",
    "compare": "CompareResult",
    "spectra": "SpectraResult",
    "gaussian": "GaussianResult",
    "laws": "LawsResult",
    "prompt": "PromptResult",
    "collapse": "CollapseResult",
    "table1": "Table1Result",
    "train": "TrainResult",
    "series": "SeriesResult",
    "claims": "ClaimsResult",
}


def result_class(study: str) -> type[Result]:
    """The class of a study's result; `InputError` for a name that is no study."""
    if study not in STUDIES:
        raise InputError(f"no study is called {study!r}; there are {', '.join(STUDIES)}")
    found: type[Result] = getattr(import_module(f"headscape.studies.{study}.result"), STUDIES[study])
    return found


def open_result(run: Run | str | Path, study: str, key: str | None = None) -> Result:
    """The result of a study in a run, read only: the newest finished one, or that whose folder name begins with `key`.

    Of `claims` the newest one has the rows of those before it. Raises an `InputError` where there is none, with the
    command that makes one.

    >>> result = hs.compare_prompts(run, 0, 1)  # kept in the run
    >>> hs.open_result(run, "change").headline() == result.headline()
    True
    """
    kind = result_class(study)
    opened = run if isinstance(run, Run) else Run.open(run)
    kept = [one for one in kept_studies(opened, study) if one.finished is not None]
    if key is not None:
        kept = [one for one in kept if one.path.name.startswith(key)]
    if not kept:
        which = study if key is None else f"{study} {key}"
        raise InputError(f"{opened.path} has no finished study {which}; run `headscape {study} {opened.path}`")
    return _read(opened, kept[-1]) if key is None else kept[-1].result(opened, kind)


def load_results(run: Run) -> list[Result | tuple[str, Exception | str]]:
    """Load the newest result of each study in a run, and of each block; one that cannot be read is (name, why).

    Of studies that were never run only the first is missed: without it there is no map to show.
    """
    found: list[Result | tuple[str, Exception | str]] = []
    for name in STUDIES:
        latest = newest_by_block(run, name)
        for kept in latest:
            try:
                found.append(_read(run, kept))
            except HeadscapeError as error:
                found.append((name, error))
        if latest:
            continue
        if (run.path / name / "result.json").is_file():
            found.append((name, f"written by headscape 0.1: run `headscape {name} {run.path}` again"))
        elif kept_studies(run, name):
            found.append((name, f"not finished: `headscape {name} {run.path}` resumes it"))
        elif name == next(iter(STUDIES)):
            found.append((name, f"not run yet: headscape {name} {run.path}"))
    return found


def _read(run: Run, newest: Kept) -> Result:
    """The newest result of a study as people see it: claims that were tested a few at a time are one table."""
    if newest.study == "claims":
        from headscape.studies.claims.together import together

        return together(run, newest)
    return newest.result(run, result_class(newest.study))
