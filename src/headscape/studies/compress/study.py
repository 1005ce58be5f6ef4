"""How few coefficients does a network need? Maps from few numbers, compared with the maps and put back into the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt

from headscape.captures import Capture, open_capture
from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.compiled import kernel_threads
from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.geometry.questionnaire import SILENT, Questionnaire
from headscape.runs import Run
from headscape.storage import read_arrays, write_arrays
from headscape.studies.compress.result import WAYS, CompressResult
from headscape.studies.work.engines import LocalEngine
from headscape.studies.work.folder import working_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.models import Loader, models_of
from headscape.studies.work.units import reachable, run_units
from headscape.tensor import AttentionTensor, as_probabilities
from headscape.tree import PartitionTree
from headscape.wavelets.regularity import holder_exponent
from headscape.wavelets.truncation import truncated, truncated_svd

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.replacing import Intervention

__all__ = ["SHARES", "compress", "few_numbers"]

Array = npt.NDArray[Any]
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Numbers kept, over the present entries of all maps."""


def compress(
    source: Capture | Run | str | Path,
    *,
    block: str | None = None,
    batches: int = 8,
    shares: Sequence[float] = SHARES,
    questionnaire: Questionnaire | None = None,
    model: Model | bool | None = True,
    loader: Loader | None = None,
    random_state: int = 0,
    **how: Unpack[How],
) -> CompressResult:
    """Rebuild the maps of a network from few numbers, and run the network with them.

    The tensor of each input is rebuilt from the largest Haar coefficients on its organized trees, from those of the
    largest supports (the sparse grid of the theorem), on dyadic trees in the natural order, on the organized trees with
    permuted leaves, and from the singular values of its heads, with equally many numbers kept. Maps are clipped at 0
    and their rows renormalized.

    Parameters
    ----------
    source
        A capture or run directory that keeps probabilities.
    shares
        Numbers kept, over the present entries of all maps.
    model
        Its own maps are replaced by these in the forward pass; True loads the run's model.
    how
        jobs (inputs at a time), threads, engine, resume, progress, say: see `headscape.studies.work.how.How`.

    >>> result = hs.compress(run, batches=1, shares=(0.05, 0.1), model=model)
    >>> print(result.summary()[0][1].round(1))  # errors when 5 or 10 % of the numbers are kept
    kept              from  0.05  0.1
    0            organized   0.2  0.2
    1     largest supports   0.3  0.3
    2        natural order   0.2  0.2
    3      permuted leaves   0.3  0.2
    4      singular values   0.3  0.4
    """
    work = Work.of(**how)
    integer("batches", batches, low=1)
    check_seed(random_state)
    if not shares or not all(0 < share <= 1 for share in shares):
        raise InputError(f"shares lie above 0 and up to 1, not {', '.join(map(str, shares))}")
    captured = open_capture(source)
    captured.need_whole("the compress study")
    chosen, n = captured.block(block), min(batches, len(captured))
    settings = {k: v for k, v in (questionnaire or Questionnaire()).get_params().items() if k not in SILENT}
    loader = loader or Loader(say=work.say)
    own, _ = models_of(captured, model, None, loader, random_state, "no change of the loss", work.warn)
    facts = {"block": chosen, "batches": n, "shares": sorted(shares), "seed": random_state, "questionnaire": settings}
    inputs = captured.content(n) | ({} if own is None else {"model": own.fingerprint, "dtype": own.dtype})
    with working_folder(captured.run, CompressResult.study, facts, inputs, work) as folder:
        with reachable(captured, work.engine, folder.units) as where:
            units = {}
            for i, number in enumerate(captured.numbers[:n]):
                path = folder.unit(f"maps-{number:04d}", facts, captured.content(n).get(f"batch {number}"))
                units[f"input {number}"] = (path, where, i, facts, work.threads)
            run_units(_measure, units, work, work.stage("rebuilding maps", n))
        files = [unit[0] for unit in units.values()]
        found = [read_arrays(file)[0] for file in files]
        unit, changes = ("", None) if own is None else _changes(own, captured, facts, files, work)
        result = CompressResult(
            shares=np.array(facts["shares"]),
            **{name: np.array([one[name] for one in found]) for name in ("error", "raw", "alpha")},
            change=changes,
            unit=unit,
            settings=facts,
        )
        folder.save(result)
    return result


def few_numbers(
    X: AttentionTensor, trees: Sequence[PartitionTree], way: str, shares: Sequence[float], seed: int
) -> Iterator[Array]:
    """The tensor from so few numbers, for every share, in one of `WAYS`."""
    values = np.asarray(X.values, dtype=np.float64)
    counts = [max(1, round(share * float(X.present.sum()) * X.shape[2])) for share in shares]
    if way == "svd":
        yield from truncated_svd(values, counts)
    elif way == "natural":
        yield from truncated(values, [PartitionTree.dyadic(n) for n in X.shape], counts)
    elif way == "permuted":
        rng = np.random.default_rng(seed)
        moves = [rng.permutation(n) for n in X.shape]
        back = np.ix_(*(np.argsort(move) for move in moves))
        yield from (found[back] for found in truncated(values[np.ix_(*moves)], trees, counts))
    else:
        yield from truncated(values, trees, counts, "support" if way == "supports" else "magnitude")


def as_maps(found: Array, present: Array) -> Array:
    """The maps (query, key, head) that the model is given: `as_probabilities`."""
    return as_probabilities(found, present[..., None]).astype(np.float32)


def _measure(path: Path, source: Capture | Path, i: int, facts: Mapping[str, Any], threads: int) -> None:
    """Organize one input, rebuild it in every way, and keep errors and trees."""
    captured = open_capture(source)
    X = captured.tensor(i, facts["block"], "probs")
    settings = facts["questionnaire"] | {"random_state": facts["seed"] + captured.numbers[i], "n_jobs": threads}
    with kernel_threads(threads), one_blas_thread():
        trees = Questionnaire(**settings).fit(X).trees_
        size, present = float(np.linalg.norm(X.values)), X.present
        raw, error = np.zeros((2, len(WAYS), len(facts["shares"])))
        for w, way in enumerate(WAYS):
            for s, found in enumerate(few_numbers(X, trees, way, facts["shares"], facts["seed"])):
                raw[w, s] = np.linalg.norm(found - X.values) / size
                error[w, s] = np.linalg.norm(as_maps(found, present) - X.values) / size
        arrays = {"raw": raw, "error": error, "alpha": _exponents(X, trees)}
    for axis, tree in zip(("query", "key", "head"), trees, strict=True):
        arrays |= {f"labels/{axis}": tree.labels.astype(np.int32), f"order/{axis}": tree.order.astype(np.int32)}
    write_arrays(path, arrays)


def _exponents(X: AttentionTensor, trees: Sequence[PartitionTree]) -> Array:
    """Mixed Hölder exponent of every head on the trees of queries and keys, NaN where it has none."""
    (query, key), found = trees[:2], np.full(X.shape[2], np.nan)
    for h in range(X.shape[2]):
        try:
            found[h] = holder_exponent(X.values[..., h], query, key, X.present, noise="none", n_draws=0).exponent
        except InputError:
            continue
    return found


def _changes(
    model: Model, captured: Capture, facts: Mapping[str, Any], files: Sequence[Path], work: Work
) -> tuple[str, Array]:
    """Put the maps back into the model: the unit of a change, and the changes (n_input, n_way, n_share)."""
    from headscape.attention.replacing import Intervention, effect_unit
    from headscape.attention.samples import replayed
    from headscape.attention.threads import torch_threads

    samples = replayed(model, captured, facts["block"])
    alone = replace(work, engine=LocalEngine(1))  # the model runs here
    units = {}
    for i, file in enumerate(files):
        made = cache(partial(Intervention, model, samples[i]))
        path = file.with_name(f"changes-{model.fingerprint[:12]}-{model.dtype}-{file.name}")
        units[f"input {captured.numbers[i]}"] = (path, captured, i, facts, file, made)
    with torch_threads(work.threads):
        run_units(_run_with, units, alone, work.stage("running the model", len(units)))
    return effect_unit(model), np.array([read_arrays(unit[0])[0]["change"] for unit in units.values()])


def _run_with(
    path: Path, captured: Capture, i: int, facts: Mapping[str, Any], file: Path, made: Callable[[], Intervention]
) -> None:
    kept = read_arrays(file)[0]
    trees = [PartitionTree.from_labels(kept[f"labels/{a}"], order=kept[f"order/{a}"]) for a in ("query", "key", "head")]
    X = captured.tensor(i, facts["block"], "probs")
    change = np.zeros((len(WAYS), len(facts["shares"])))
    for w, way in enumerate(WAYS):
        for s, found in enumerate(few_numbers(X, trees, way, facts["shares"], facts["seed"])):
            maps = as_maps(found, X.present)
            change[w, s] = made().change({head: maps[..., h] for h, head in enumerate(X.heads)})
    write_arrays(path, {"change": change})
