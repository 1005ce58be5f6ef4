"""One layer of `headscape gaussian` on random queries and keys with rotary embedding: seconds by part, beside another version.

    python benchmarks/gaussian.py [--inputs 10] [--heads 9] [--tokens 256] [--dim 64] [--beside OTHER/src]

The defaults are the shape of a layer of SmolLM2-135M. CPU seconds of one thread, compilation and imports left out; the other
version (one that has headscape.statistics.layer) measures the same layer in a process of its own, and tables must agree.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.special import softmax

from _timing import table
from headscape.attention.layers import LayerData
from headscape.statistics.cosines import cosines
from headscape.statistics.layer import Reading, layer_table

PARTS = {
    "_score_rows": "scores, measured and predicted",
    "_after_rows": "after attention",
    "_rank_rows": "ranks of the maps",
    "_cosine_rows": "cosines, with 99 permutations",
    "_chain_rows": "the chain",
}


def a_layer(n_input: int, n_head: int, n: int, dim: int) -> tuple[LayerData, Reading]:
    """Causal attention of random queries, keys and values; one group of keys for three heads."""
    rng = np.random.default_rng(0)
    group = 3 if n_head % 3 == 0 else 1
    q = 1.5 * rng.normal(size=(n_input, n_head, n, dim))
    k, v = rng.normal(size=(2, n_input, n_head // group, n, dim))
    angle = np.arange(n)[:, None] / 10_000 ** (2 * np.arange(dim // 2) / dim)
    first, second = np.arange(dim // 2), np.arange(dim // 2) + dim // 2
    turns = np.zeros((n, dim, dim))
    turns[:, first, first] = turns[:, second, second] = np.cos(angle)
    turns[:, first, second], turns[:, second, first] = np.sin(angle), -np.sin(angle)
    turned = [np.einsum("bhid,ide->bhie", x, turns) for x in (q, k)]
    scores = turned[0] @ np.repeat(turned[1], group, axis=1).swapaxes(2, 3) / np.sqrt(dim)
    probs = softmax(np.where(np.tri(n, dtype=bool), scores, -np.inf), axis=-1)
    outputs = probs @ np.repeat(v, group, axis=1)
    arrays = [x.astype(np.float32) for x in (q, k, v, scores, probs, outputs)]
    data = LayerData(0, *arrays, rotations=turns.astype(np.float32), scaling=dim**-0.5, note="")
    angles = cosines(rng.normal(size=(n_input, n, 100)))
    return data, Reading(slice(1, n), True, [1, 2, 4], 0, cosines=angles)


def measured(shape: list[int], out: Path) -> tuple[float, dict[str, float]]:
    """CPU seconds of the table of a layer, and of its parts; the table goes to `out`."""
    layer_table(*a_layer(2, 1, 16, 4))  # imports and tables that are made once
    layer = a_layer(*shape)
    for cosine in getattr(layer[1], "permuted", ()):  # in versions that make them once for all layers
        list(cosine.chunks())
    profile = cProfile.Profile(time.process_time)
    start = time.process_time()
    np.save(out, profile.runcall(layer_table, *layer))
    taken = time.process_time() - start
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    return taken, {name: row[3] for (_, _, name), row in stats.items() if name in PARTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--beside", type=Path, help="the src folder of another version, to compare with")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    shape = [given.inputs, given.heads, given.tokens, given.dim]
    if given.child:
        taken, parts = measured(shape, given.child)
        print(taken, *(parts[name] for name in PARTS))
        return
    sources = {"now": Path(__file__).parents[1] / "src"} | ({"before": given.beside.resolve()} if given.beside else {})
    found, tables = {}, {}
    with tempfile.TemporaryDirectory() as place:
        for name, source in sources.items():
            path = Path(place) / f"{name}.npy"
            command = [sys.executable, __file__, *sys.argv[1:], "--child", str(path)]
            env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            said = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
            found[name], tables[name] = [float(word) for word in said.split()], np.load(path)
    header = ["what", *(f"CPU s {name}" for name in found)]
    rows = [[what, *(f"{times[i]:.2f}" for times in found.values())] for i, what in enumerate(["all", *PARTS.values()])]
    print(f"a layer of {given.heads} heads, {given.inputs} inputs of {given.tokens} tokens\n\n{table(header, rows)}")
    if given.beside:
        off = np.nanmax(np.abs(tables["now"] - tables["before"]) / np.maximum(np.abs(tables["before"]), 1e-9))
        print(f"\nlargest relative difference of the tables: {off:.0e}")


if __name__ == "__main__":
    main()
