"""Table 1 of the supplement of Masumura and Taki (2025): attention-only networks at initialization in four variants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import numpy.typing as npt
import pandas as pd

from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.collapse.bounds import named_bounds
from headscape.collapse.residual import relative_residual
from headscape.errors import InputError
from headscape.runs import Run
from headscape.storage import read_arrays, write_arrays
from headscape.studies.table1.result import Table1Result
from headscape.studies.work.folder import working_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.units import run_units

if TYPE_CHECKING:
    from headscape.collapse.attention_only import AttentionOnly

__all__ = ["SETTINGS", "table1"]

SETTINGS = {"default, pre-LN": ("default", "pre"), "xavier, no norm": ("xavier", "none")}
"""Weights and norm: those nearest to the printed self-attention, and those nearest to the printed MHA."""


def table1(
    run: Run | str | Path | None = None,
    *,
    seeds: int = 10,
    images: int = 8,
    depth: int = 12,
    alpha: float = 0.5,
    alpha_hidden: float = 0.5,
    random_state: int = 0,
    **how: Unpack[How],
) -> Table1Result:
    """Run attention-only ViT-T networks (197 tokens, width 192, 3 heads) at initialization, in float64.

    Every seed draws a network and its patch embedding, and is given other images of the sample (Fashion-MNIST; the paper
    has CIFAR-10). A network of depth n is the first n layers of a deeper one, so one pass gives every depth.

    Parameters
    ----------
    run
        A run directory, made if it does not exist: finished networks are kept, and a killed study resumes.
    seeds, images
        How many networks, and images for each.
    alpha, alpha_hidden
        a of the skip, and a' of the hidden state, in the variants that have them.
    how
        jobs (networks at a time), threads, engine, resume, progress, say: see `headscape.studies.work.how.How`.
    """
    from headscape.attention.inputs import sample_images
    from headscape.collapse.attention_only import ALONG, AttentionOnly, four_variants

    integer("seeds", seeds, low=1)
    integer("depth", depth, low=1)
    check_seed(random_state)
    if not 0 < alpha_hidden < 1:
        raise InputError(f"alpha_hidden must lie between 0 and 1, not at {alpha_hidden}")
    pictures, _ = sample_images()
    if not 1 <= images <= len(pictures):
        raise InputError(f"images must be 1 to {len(pictures)}, not {images}")
    networks = {
        name: four_variants(AttentionOnly(depth, weights=weights, norm=norm, alpha=alpha), alpha_hidden)  # type: ignore[arg-type]
        for name, (weights, norm) in SETTINGS.items()
    }
    work = Work.of(**how)
    threads = work.threads if work.engine.apart else work.asked_threads
    settings = {"seeds": seeds, "images": images, "depth": depth, "alpha": alpha, "alpha_hidden": alpha_hidden}
    settings["seed"] = random_state
    make = partial(Run.create, config={"kind": "table1"})
    with working_folder(run, Table1Result.study, settings, {}, work, make) as folder:
        units = {}
        for setting, variants in networks.items():
            for variant, config in variants.items():
                for k in range(seeds):
                    start = k * images % (len(pictures) - images + 1)
                    facts = asdict(config), start, images, random_state + k, ALONG
                    path = folder.unit(f"{config.weights}-{config.skip:d}-{config.alpha_hidden:g}-{k:04d}", *facts)
                    unit = path, config, pictures[start : start + images], random_state + k, k == 0, threads
                    units[f"{setting}, {variant}, seed {k}"] = unit
        run_units(_network, units, work, work.stage("networks", len(units)))
        result = _summarize(networks, [read_arrays(unit[0])[0] for unit in units.values()], settings)
        folder.save(result)
    return result


def _network(
    path: Path, config: AttentionOnly, pictures: npt.NDArray[Any], seed: int, with_bounds: bool, threads: int | None
) -> None:
    """Run one network and write its residuals by depth, mean over images; and the bounds of the first image.

    Those along depth are for networks without norm and skip, of every seed; those of single layers for the first seed.
    """
    import torch

    from headscape.attention.threads import torch_threads
    from headscape.collapse.attention_only import AttentionNetwork, along_depth, bounds_of, patch_tokens

    with torch_threads(threads), torch.no_grad():
        network = AttentionNetwork(config, seed)
        X = patch_tokens(pictures, seed, width=config.width)
        states = [layer.states.numpy() for layer in network.layers(X)]
        found = {"residual": np.array([np.mean(relative_residual(state)) for state in states])}
        if with_bounds:
            found["bounds"] = np.stack([bounds.row for bounds in bounds_of(network, X[0])])
        if config.norm == "none" and not config.skip:
            found["along"] = along_depth(network, X[0])
    write_arrays(path, found)


def _summarize(
    networks: dict[str, dict[str, AttentionOnly]], units: list[Any], settings: dict[str, Any]
) -> Table1Result:
    from headscape.collapse.attention_only import ALONG

    variants = tuple(next(iter(networks.values())))
    shape = (len(networks), len(variants), settings["seeds"], settings["depth"])
    places = list(product(networks, variants, range(settings["seeds"])))

    def rows(name: str) -> Iterator[tuple[dict[str, Any], Any]]:
        for (setting, variant, seed), unit in zip(places, units, strict=True):
            for n, row in enumerate(unit.get(name, ())):
                yield {"setting": setting, "cell": variant, "seed": seed, "depth": n + 1}, row

    bounds = pd.DataFrame(place | named_bounds(row) for place, row in rows("bounds"))
    along = pd.DataFrame(place | dict(zip(ALONG, row.tolist(), strict=True)) for place, row in rows("along"))
    residual = np.array([unit["residual"] for unit in units]).reshape(shape)
    return Table1Result(tuple(networks), variants, residual, bounds, along, settings)
