"""Do weights look random? The spectrum of every matrix and head, beside noise and the model's own initialisation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.runs import Run
from headscape.statistics.alignment import alignment_z, rotation_test, score_spectrum, symmetric_share
from headscape.statistics.spectra import (
    describe_spectrum,
    energy_rank,
    participation_ratio,
    random_participation,
    singular_values,
)
from headscape.studies.spectra.result import SpectraResult
from headscape.studies.work.engines import LocalEngine
from headscape.studies.work.old import Progress, Say, Steps, read_arrays, run_units, study_folder, write_arrays

if TYPE_CHECKING:
    from headscape.attention.models import Model
    from headscape.attention.weights import Part

__all__ = ["spectra"]

Array = npt.NDArray[Any]
ROTATIONS = 2000


def spectra(
    model: Model,
    run: Run | str | Path | None = None,
    *,
    control: Model | None = None,
    rotations: int = ROTATIONS,
    jobs: int = 1,
    random_state: int = 0,
    progress: Progress = lambda done, total: None,
    say: Say = lambda _: None,
) -> SpectraResult:
    """Look at the weights of a model as matrices: spectra against noise, and how queries and keys align in every head.

    Parameters
    ----------
    model
        Any model whose matrices are understood; nothing is run but one short input.
    run
        A run directory: each layer is stored when done, and a killed study goes on.
    control
        The same architecture with random weights: what was there before training.
    rotations
        How many random rotations the p-values of the alignments come from.
    jobs
        Layers at a time. It does not change a byte.

    Raises
    ------
    InputError
        If a weight is NaN or infinite, or no layer's query and key maps are understood.
    """
    from headscape.attention.weights import check_weights, parts_of

    if jobs < 1 or rotations < 1:
        raise InputError(f"jobs and rotations must be at least 1, not {jobs} and {rotations}")
    check_weights(model.module)
    parts, skipped = parts_of(model)
    if not any(part.kind == "q" for part in parts):
        raise InputError(
            f"no query and key maps of {model.source} are understood: {skipped[0].place}, {skipped[0].why}"
        )
    opened = Run.open(run) if isinstance(run, str | Path) else run
    facts = {"format": 1, "model": model.fingerprint, "control": None if control is None else control.fingerprint}
    with study_folder(opened, SpectraResult.study, facts, say) as folder:
        study = _Study(parts, folder)
        sources = {"": model} | ({} if control is None else {"control-": control})
        units = {
            f"{'control of ' if name else ''}layer {place[0]}.{place[1]}": (source, found, study.path(name, place))
            for name, source in sources.items()
            for place, found in study
        }
        with one_blas_thread():
            run_units(_measure, units, LocalEngine(jobs, "threads"), Steps(progress, len(units)), say)
            say("turning keys against queries at random")
            heads = study.heads("", model, rotations, random_state)
        initial = None if control is None else study.heads("control-", control, 0, random_state)
        result = SpectraResult(
            heads=heads,
            matrices=study.matrices(""),
            initial_heads=initial,
            initial_matrices=None if control is None else study.matrices("control-"),
            values=study.values(""),
            rotary=_is_rotary(model),
            notes=[f"{s.place} was left out: {s.why}" for s in skipped],
            settings={**facts, "source": model.source, "rotations": rotations, "seed": random_state},
        )
    if opened is not None:
        result.save(opened.path / result.study)
    return result


def _measure(model: Model, parts: Sequence[Part], path: Path) -> None:
    """The spectra of one layer; skipped when the file is there."""
    from headscape.attention.weights import read

    if path.exists():
        return
    arrays: dict[str, Array] = {}
    weights: dict[str, Array] = {}
    shapes = []
    for i, part in enumerate(parts):
        matrix = read(model, part)
        shapes.append(list(matrix.shape))
        arrays[f"values/{i}"] = singular_values(matrix)
        if part.kind in ("q", "k", "v", "o"):
            weights[part.kind] = part.by_head(matrix).astype(np.float64)
            arrays[f"heads/{part.kind}"] = np.linalg.svd(weights[part.kind], compute_uv=False)
    if "q" in weights:
        pair = weights["q"], weights["k"]
        other = np.roll(weights["k"], 1, axis=0)  # the key head of the group before: not its own
        elsewhere = alignment_z(weights["q"], other) if len(other) > 1 else np.full(len(weights["q"]), np.nan)
        arrays |= {"z": alignment_z(*pair), "symmetric": symmetric_share(*pair), "scores": score_spectrum(*pair)}
        arrays["elsewhere"] = elsewhere
    write_arrays(path, arrays, {"shapes": json.dumps(shapes)})


def _is_rotary(model: Model) -> bool:
    return any("rotary" in type(module).__name__.lower() for module in model.module.modules()) or bool(
        getattr(model.config, "rotary_dim", None)
    )


@dataclass(frozen=True)
class _Study:
    """The matrices by layer, and the files of what was found of them."""

    parts: list[Part]
    folder: Path

    def __iter__(self) -> Any:
        """Each layer with its parts."""
        places: dict[tuple[str, int], list[Part]] = {}
        for part in self.parts:
            places.setdefault((part.block, part.layer), []).append(part)
        return iter(places.items())

    def path(self, name: str, place: tuple[str, int]) -> Path:
        return self.folder / f"{name}layer-{place[0]}-{place[1]:04d}.safetensors"

    def _read(self, name: str) -> Any:
        for place, parts in self:
            arrays, metadata = read_arrays(self.path(name, place))
            yield place, parts, arrays, json.loads(metadata["shapes"])

    def matrices(self, name: str) -> pd.DataFrame:
        """One row a matrix."""
        rows = [
            {"block": block, "layer": layer, "kind": part.kind, "module": part.module, "heads": part.n_heads}
            | describe_spectrum(arrays[f"values/{i}"], tuple(shapes[i]))
            for (block, layer), parts, arrays, shapes in self._read(name)
            for i, part in enumerate(parts)
        ]
        return pd.DataFrame(rows)

    def values(self, name: str) -> dict[str, Array]:
        """Singular values of the matrices in the order of their table, and of every head by kind."""
        found: dict[str, Array] = {}
        row = 0
        for (block, layer), parts, arrays, _ in self._read(name):
            for i in range(len(parts)):
                found[f"matrix/{row:04d}"] = arrays[f"values/{i}"]
                row += 1
            found |= {
                f"head/{what.removeprefix('heads/')}/{block}.{layer}": arrays[what]
                for what in arrays
                if what.startswith("heads/")
            }
        return found

    def heads(self, name: str, model: Model, rotations: int, seed: int) -> pd.DataFrame:
        """One row a query head; p-values where rotations are asked."""
        rows: list[dict[str, Any]] = []
        pairs: dict[tuple[int, int], list[tuple[int, Array, Array]]] = {}
        for (block, layer), parts, arrays, shapes in self._read(name):
            if "z" not in arrays:
                continue
            kinds = [part.kind for part in parts]
            width = shapes[kinds.index("q")][1]
            s, t = arrays["heads/q"], arrays["heads/k"]
            group = len(s) // len(t)
            for h in range(len(s)):
                pairs.setdefault((s.shape[1], width), []).append((len(rows), s[h], t[h // group]))
                rows.append(
                    {"block": block, "layer": layer, "head": h, "z": arrays["z"][h]}
                    | {"z_other": arrays["elsewhere"][h], "symmetric": arrays["symmetric"][h]}
                    | _ranks_of_head(arrays, h, width)
                )
        frame = pd.DataFrame(rows)
        if not rotations:
            return frame
        p, beyond = np.full(len(frame), np.nan), np.full(len(frame), np.nan)
        for (_, width), found in pairs.items():
            index = [i for i, _, _ in found]
            s, t = (np.stack([pair[k] for pair in found]) for k in (1, 2))
            p[index], beyond[index] = rotation_test(frame["z"].to_numpy()[index], s, t, width, rotations, seed)
        frame.insert(4, "p", p)
        frame.insert(5, "by_chance", beyond)
        return frame


def _ranks_of_head(arrays: Mapping[str, Array], h: int, width: int) -> dict[str, float]:
    """Of the head's own matrices, the key and value of its group: participation ratios over those of noise."""
    n_heads = len(arrays["heads/q"])
    found: dict[str, float] = {}
    for kind in ("q", "k", "v", "o"):
        values = arrays.get(f"heads/{kind}")
        if values is not None:
            own = values[h // (n_heads // len(values))]
            found[f"evenness_{kind}"] = participation_ratio(own) / random_participation(len(own), width)
    scores = arrays["scores"][h]
    return found | {"score_rank": participation_ratio(scores), "score_rank90": energy_rank(scores)}
