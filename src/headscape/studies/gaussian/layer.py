"""Units of the Gaussian study that need no model: a layer that has run, and the states between layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from headscape.attention.layers import LayerData
from headscape.errors import InputError
from headscape.geometry.diffusion import one_blas_thread
from headscape.records import load_record
from headscape.statistics.layer import Reading, information_at_distances, layer_table
from headscape.storage import write_arrays

__all__ = ["State", "measure_layer", "measure_state"]


@dataclass(frozen=True)
class State:
    """Hidden states (n_input, n_token, dim) at one depth: before layer `depth`."""

    depth: int
    tokens: npt.NDArray[Any]


def measure_layer(path: Path, given: LayerData | Path, reading: Reading) -> None:
    """A unit: the table of a layer."""
    data = load_record(LayerData, given) if isinstance(given, Path) else given
    with one_blas_thread():
        table = layer_table(data, reading)
    write_arrays(path, {"table": table}, {"note": data.note})


def measure_state(path: Path, given: State | Path, reading: Reading) -> None:
    """A unit: mutual information of tokens by distance, at one depth."""
    state = load_record(State, given) if isinstance(given, Path) else given
    try:
        with one_blas_thread():
            information, facts = information_at_distances(state.tokens, reading)
    except InputError as error:
        where = "before the first layer" if state.depth == 0 else f"after layer {state.depth - 1}"
        raise InputError(f"tokens {where} have no Gaussian: {error}; capture inputs with other tokens") from None
    write_arrays(path, {"information": information, "facts": facts})
