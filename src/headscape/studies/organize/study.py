"""Organize every captured batch, and test what holds across batches and against a shuffled null."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from headscape.attention.wrapping import Model
from headscape.captures import Batch, Capture, open_capture
from headscape.checks import seed as check_seed
from headscape.errors import InputError
from headscape.geometry.questionnaire import Questionnaire
from headscape.runs import Run, human_bytes
from headscape.studies.organize.heads import asked
from headscape.studies.organize.result import OrganizeResult
from headscape.studies.organize.summary import summarize
from headscape.studies.organize.units import Arrays, measure_batch, n_basis_of, read_batch, tensor_shape, unit_memory
from headscape.studies.work.folder import Folder, Kept, working_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import Loader, models_of
from headscape.studies.work.units import reachable, run_units
from headscape.tensor import AXES, HeadId, Kind, named_heads

__all__ = ["batch_files", "organize"]

DRAWS = 5
"""Draws of random weights at most; the batches are assigned to them in turn."""


def organize(
    source: Capture | Run | str | Path,
    *,
    block: str | None = None,
    kind: Kind | None = None,
    questionnaire: Questionnaire | None = None,
    model: Model | bool | None = True,
    control: Sequence[Model] | Model | bool | None = None,
    loader: Loader | None = None,
    n_basis: int | None = None,
    heads: Sequence[HeadId | str] = (),
    random_state: int = 0,
    **how: Unpack[How],
) -> OrganizeResult | Any:
    """Organize every batch of a capture; find the consensus of the heads, their stability, roles and entropies.

    Parameters
    ----------
    source
        A capture or a run directory; in a directory each batch is stored when done, and a killed study resumes.
    block, kind
        Which block of the network, and "probs" or "scores"; by default the only one, probabilities first. If
        there are several (an encoder-decoder) and none is named, each is organized and a list of results returned.
    questionnaire
        Its settings are used for every batch; the default ones otherwise.
    model
        Adds induction and duplicate-token scores, measured on a repeated random sequence. True loads the run's own
        model where possible.
    control
        The same architecture with random weights, one or several draws, to which the batches are assigned in turn:
        each is organized too. True makes up to 5 draws; at least 3 are needed to decide what training made.
    loader
        How the run's model is loaded (device, number type, online).
    n_basis
        How many largest supports l1_top takes. By default 400 (n_query n_key) / 256^2, at least 16: the paper's 400 at
        the paper's length.
    heads
        Heads that are drawn before and after their own organization (figure 1); by default the lowest and highest by
        l1_all.
    how
        jobs (batches at a time), threads, engine, resume, progress, say: see `headscape.studies.work.how.How`.

    Raises
    ------
    HeadscapeError
        After all batches were tried, if some failed; finished ones are kept.

    >>> result = hs.organize(run, model=model)
    >>> result.tree  # of the heads, what all inputs agree on
    PartitionTree(8 leaves, ...)
    >>> list(result.to_frame())[:6]  # one row per head
    ['block', 'layer', 'head', 'l1_top', 'l1_top_null', 'l1_all']
    """
    check_seed(random_state)
    work = Work.of(**how)
    captured = open_capture(source)
    if block is None and len(captured.blocks) > 1:
        same: dict[str, Any] = {"kind": kind, "questionnaire": questionnaire, "n_basis": n_basis, "loader": loader}
        same |= {"model": model, "control": control, "random_state": random_state, **how}
        return [organize(captured, block=b, heads=h, **same) for b, h in _by_block(heads, captured.blocks).items()]
    chosen = captured.block(block)
    chosen_kind = captured.kind(kind)
    settings = _settings(questionnaire or Questionnaire())
    loader = loader or Loader(say=work.say)
    first = control[0] if isinstance(control, Sequence) else control
    own, other = models_of(captured, model, first, loader, random_state, "no induction scores", work.warn)
    draws: list[Callable[[], Model]] = [partial(_same, one) for one in ([] if other is None else [other])]
    if isinstance(control, Sequence):
        draws = [partial(_same, one) for one in control]
    elif control is True:
        more = range(random_state + 1, random_state + min(DRAWS, len(captured)))
        draws += [partial(loader.model, captured.run, random_init=seed) for seed in more]  # type: ignore[arg-type]
    _say_memory(captured, chosen, chosen_kind, Questionnaire(**settings), work)
    facts = {"block": chosen, "kind": chosen_kind, "seed": random_state, "questionnaire": _decisive(settings)}
    facts |= {"n_basis": n_basis or n_basis_of(captured, chosen, chosen_kind), "draws": len(draws)}
    facts["heads"] = [str(head) for head in named_heads(captured.heads(chosen), heads)] if heads else []
    if captured.pool is not None:
        facts["pool"] = captured.pool
    inputs = captured.content() | {
        name: one.fingerprint for name, one in (("model", own), ("control", other)) if one is not None
    }
    if isinstance(control, Sequence):  # drawn ones follow from the first and the seed
        inputs |= {f"control {i}": one.fingerprint for i, one in enumerate(control) if i}
    with working_folder(captured.run, OrganizeResult.study, facts, inputs, work) as folder:
        batches, controls = _measured(captured, facts, settings, draws, folder, work)
        error = max(float(found["sketch_error"][2]) for found in batches)
        if error > 0:
            facts["sketch_error"] = error
            work.say(f"distances between heads are sketched: 95 % of them within {error:.1%}")
        steps = work.stage("roles and stability", 2)
        columns = asked(own, captured, chosen, random_state, folder, work)
        steps.one()
        result = summarize(captured, facts, settings, batches, controls, columns)
        folder.save(result)
        steps.one()
    return result


def _by_block(heads: Sequence[HeadId | str], blocks: Sequence[str]) -> dict[str, list[HeadId]]:
    """Heads that were named, by block."""
    named = [head if isinstance(head, HeadId) else HeadId.parse(head, blocks) for head in heads]
    for head in named:
        if head.block not in blocks:
            raise InputError(f"no block of this run has a head {str(head)!r}; blocks are {', '.join(blocks)}")
    return {block: [head for head in named if head.block == block] for block in blocks}


def _say_memory(captured: Capture, block: str, kind: Kind, questionnaire: Questionnaire, work: Work) -> None:
    """Warn if the command will need more than the memory limit, which is per fit."""
    shape = tensor_shape(captured, block, kind)
    limit = questionnaire.max_memory
    fit = questionnaire.plan(shape, AXES, 4, held=True, threads=work.threads).memory
    needed = unit_memory(shape, fit)
    if needed > 1.2 * limit:
        work.say(
            f"the memory limit of {human_bytes(limit)} holds for each fit, but a batch of {' x '.join(map(str, shape))} with "
            f"its null and coefficients takes about {human_bytes(needed)} per job; fewer tokens or heads, or a pooled "
            "capture, take less"
        )


def _same(model: Model) -> Model:
    return model


def _settings(questionnaire: Questionnaire) -> dict[str, Any]:
    settings: dict[str, Any] = questionnaire.get_params() | {"n_neighbours": None}  # a consensus needs all pairs
    settings.pop("n_jobs")
    questionnaire.settings_for(3)  # a wrong one is said before anything is written
    return settings


def _decisive(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that can change a byte; those of a sketch only where there is one."""
    silent = {"scratch", "n_neighbours", "max_memory"} | (
        set() if settings["distance"] == "sketch" else {"distance", "sketch_columns"}
    )
    return {name: value for name, value in settings.items() if name not in silent}


def _measured(
    captured: Capture,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    draws: Sequence[Callable[[], Model]],
    folder: Folder,
    work: Work,
) -> tuple[list[Arrays], list[Arrays]]:
    """The units of all batches, and of the same inputs assigned to draws of random weights."""
    hashes = captured.content()
    steps = work.stage("organizing", len(captured) * (2 if draws else 1))
    same = {name: facts[name] for name in ("block", "kind", "n_basis")}

    def organized(name: str, source: Capture | Path, weights: Sequence[str]) -> list[Arrays]:
        units = {}
        for i, number in enumerate(captured.numbers):
            seed = facts["seed"] + number
            path = _file(folder, facts, number, hashes.get(f"batch {number}"), weights[i % len(weights)], name)
            units[f"{name} {number}"] = (path, source, i, same, settings, work.threads, seed)
        run_units(measure_batch, units, work, steps)
        return [read_batch(unit[0]) for unit in units.values()]

    with reachable(captured, work.engine, folder.units) as source:
        batches = organized("batch", source, [""])
    if not draws:
        return batches, []
    from headscape.attention.capture import recapture

    work.say(f"giving the same inputs to random weights ({len(draws)} draws)")
    shown: dict[int, Batch] = {}
    weights = []
    for d, draw in enumerate(draws):
        control, own = draw(), range(d, len(captured), len(draws))
        found = recapture(control, Capture.in_memory([captured.batch(i) for i in own]), keep=(facts["kind"],))
        shown |= {i: found.batch(k) for k, i in enumerate(own)}
        weights.append(control.fingerprint)
    in_order = Capture.in_memory([shown[i] for i in range(len(captured))])
    with reachable(in_order, work.engine, folder.units) as source:
        return batches, organized("control", source, weights)


def _file(
    folder: Folder, facts: Mapping[str, Any], number: int, content: str | None, weights: str = "", name: str = "batch"
) -> Path:
    """The file of a batch, or of the same input given to other weights."""
    same = (facts["block"], facts["kind"], facts["questionnaire"], facts["n_basis"])
    decisive = (*same, facts["seed"] + number, content, weights)
    return folder.unit(f"{name}-{number:04d}", *decisive)


def batch_files(kept: Kept) -> list[Path]:
    """The files of a finished study's batches, in their order; each holds `head_distances`, trees and entropies."""
    inputs = {
        int(name.split()[1]): str(found) for name, found in kept.facts["inputs"].items() if name.startswith("batch ")
    }
    return [_file(kept.folder, kept.facts["settings"], number, inputs[number]) for number in sorted(inputs)]
