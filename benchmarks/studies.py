"""`headscape gaussian` and `headscape softmax` beside another version of the program, on the same inputs, in one run.

    python benchmarks/studies.py --beside OTHER/src [--model smollm2-135m] [--tokens 256] [--batches 10] [--heads 9]
                                         [--only softmax] [--out FILE]
    python benchmarks/studies.py --profile [--out FILE]          where the CPU seconds of `headscape gaussian` go

Each version captures the model by itself (formats differ) and runs the study as a command, one thread, without the model
for softmax: what is timed there is a head's decomposition. CPU seconds of the whole command, start-up included, which hardly
feel other work on the machine.

The gaussian study of version 0.1 had fewer rows: six versions of the model, all in float32, on four inputs; maps and cosines
of three inputs; no chain, no divergence of positions. Beside the study as it is, this version is timed with those rows; what
stays more are intervals (every number is taken again with each input left out) and float64 without skip connections.
"""

from __future__ import annotations

import argparse
import csv
import os
import pstats
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from _timing import table

HERE = Path(__file__).parents[1] / "src"
OLD_ROWS = """
from headscape.statistics import layer
from headscape.studies.gaussian import units
units.FEWER, units._DIVERGING, layer.COMPARED, layer.PERMUTATIONS = 4, (), 3, 199
for name in ("skip 1/2", "skip 9/10"):
    del units.VERSIONS[name]
layer._chain_rows = layer._data_rows = lambda *_: None
"""
"""Leaves this version the rows of version 0.1."""
PROFILED = """
import cProfile, os, time
from headscape.attention import watching
from headscape.studies.gaussian import layer, study, units
profile = cProfile.Profile(time.process_time)
def watched(call, depth=[0]):
    def called(*args, **named):
        if depth[0]:
            return call(*args, **named)
        depth[0] = 1
        try:
            return profile.runcall(call, *args, **named)
        finally:
            depth[0] = 0
            profile.dump_stats(os.environ["PROFILE"])
    return called
watching.watch_layers = watched(watching.watch_layers)
for name in ("measure_version", "measure_tokens"):
    setattr(units, name, watched(getattr(units, name)))
study.measure_state = watched(layer.measure_state)
"""
"""Profiles what the study measures, and not what is imported and loaded: to be profiled slows many small calls most."""


def seconds(source: Path, arguments: list[str], before: str = "") -> float:
    """CPU seconds of a command of the version in `source`, after some lines of Python."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    # version 0.1 has no headscape.__main__
    command = [sys.executable, "-c", f"{before}\nfrom headscape.cli import main; main()", *arguments, "--quiet"]
    subprocess.run(
        command, env=os.environ | threads | {"PYTHONPATH": str(source)}, stdout=subprocess.DEVNULL, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - start.ru_utime - start.ru_stime


def measured(source: Path, given: argparse.Namespace, run: Path, before: str) -> dict[str, float]:
    """CPU seconds of both studies, and of gaussian after the lines `before`."""
    size = ["--tokens", str(given.tokens), "--batches", str(given.batches)]
    seconds(source, ["capture", given.model, *size, "--keep", "probs,scores", "--out", str(run)])
    heads = ",".join(f"{given.block}.0.{head}" for head in range(given.heads))
    every = ["--batches", str(given.batches), "--no-model"]  # of few inputs, start-up would drown the heads
    one, all_ = (["softmax", str(run), "--heads", which, *every] for which in (f"{given.block}.0.0", heads))
    start = seconds(source, one)
    softmax = (seconds(source, all_) - start) / (given.heads - 1) / given.batches
    found = {f"softmax, each of {given.heads} heads of a layer": softmax}
    if given.only == "softmax":
        return found
    what = f"gaussian, {given.model}, {given.batches} inputs of {given.tokens} tokens"
    whole = seconds(source, ["gaussian", str(run)])
    shutil.rmtree(run / "gaussian")
    return {
        what: whole,
        f"{what}, rows of version 0.1": seconds(source, ["gaussian", str(run)], before) if before else whole,
        **found,
    }


def profiled(given: argparse.Namespace, run: Path) -> list[list[str]]:
    """CPU seconds of the parts of `headscape gaussian`, imports and loading as the rest."""
    os.environ["PROFILE"] = str(run.with_suffix(".prof"))
    size = ["--tokens", str(given.tokens), "--batches", str(given.batches)]
    seconds(HERE, ["capture", given.model, *size, "--out", str(run)])
    whole = seconds(HERE, ["gaussian", str(run)], PROFILED)
    stats = pstats.Stats(os.environ["PROFILE"]).stats  # type: ignore[attr-defined]
    named = {(Path(file).stem, name): (row[3], row[4]) for (file, _, name), row in stats.items()}

    def spent(module: str, name: str, caller: str | None = None) -> float:
        total, callers = named.get((module, name), (0.0, {}))
        return total if caller is None else sum(row[3] for (*_, by), row in callers.items() if by == caller)

    passes = spent("watching", "watch_layers"), spent("units", "measure_version")
    beside, within = spent("units", "add", "<lambda>"), spent("units", "add", "take")
    parts = {
        "one pass through the model as it is": passes[0] - spent("layer", "measure_layer") - beside,
        "seven passes through its other versions, three of them in float64": passes[1] - within,
        "spread and divergence of the tokens by depth": beside + within,
        "scores, measured and predicted": spent("layer", "_score_rows"),
        "after attention": spent("layer", "_after_rows"),
        "ranks of the maps": spent("layer", "_rank_rows"),
        "cosines, with 99 permutations": spent("layer", "_cosine_rows"),
        "the chain": spent("layer", "_chain_rows"),
        "variance along what heads read": spent("layer", "_data_rows"),
        "information by distance": spent("layer", "measure_state"),
        "embeddings and next tokens": spent("units", "measure_tokens"),
    }
    parts["start, imports, loading, files"] = whole - sum(parts.values())
    return [[what, f"{taken:.1f}", f"{taken / whole:.0%}"] for what, taken in ({"all": whole} | parts).items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--beside", type=Path, help="the src folder of the other version")
    asked.add_argument("--profile", action="store_true", help="where the time of gaussian goes")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--block", default="decoder")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--heads", type=int, default=9, help="of the first layer, for softmax")
    parser.add_argument("--only", choices=["softmax"], help="leave out the other study")
    parser.add_argument("--out", type=Path, help="keep the table as a CSV file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        if given.profile:
            what = f"gaussian, {given.model}, {given.batches} inputs of {given.tokens} tokens"
            header, rows = [what, "CPU s", "share"], profiled(given, Path(place) / "run")
        else:
            old = measured(given.beside.resolve(), given, Path(place) / "old", "")
            new = measured(HERE, given, Path(place) / "new", OLD_ROWS)
            header = ["what", "CPU s before", "CPU s now", "ratio"]
            rows = [[what, f"{old[what]:.2f}", f"{new[what]:.2f}", f"{old[what] / new[what]:.2f}"] for what in new]
    print(table(header, rows))
    if given.out:
        with given.out.open("w", newline="", encoding="utf-8") as file:
            file.write(f"# python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}\n")
            csv.writer(file).writerows([header, *rows])


if __name__ == "__main__":
    main()
