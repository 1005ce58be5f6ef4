"""Pruning within a budget: passes and CPU seconds of the default, beside those of another version, in one run.

    python benchmarks/prune.py [MODEL] [--beside OTHER/src] [--windows 16] [--tokens 256] [--budget 1%] [--out FILE]

Each version captures the model by itself (formats differ) and then runs `headscape prune RUN` with its own defaults on one
thread, but for the windows and the budget. CPU seconds are those of the whole command, start-up included, which hardly feel
other work on the machine. A pass is as much work of linear maps as a forward pass of the intact model on one window: passes
that start from a higher layer count in part, backward passes do not count.

The last row compares ranking alone: seconds of block elimination, and of the first step of solving anew for every candidate
times what the later steps take.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import headscape as hs
from _timing import keep, table
from headscape.attention.samples import samples_of
from headscape.attention.sites import run as run_model
from headscape.pruning.evidence import Evidence
from headscape.pruning.novelty import Elimination, novelty

HERE = Path(__file__).parents[1] / "src"
COUNTED = """
import atexit, os, torch
work = [0]
def note(module, given, result):
    if isinstance(module, torch.nn.Linear):
        work[0] += given[0].numel() // given[0].shape[-1] * module.weight.numel()
torch.nn.modules.module.register_module_forward_hook(note)
atexit.register(lambda: open(os.environ["COUNT"], "w").write(str(work[0])))
from headscape.cli import main
main()
"""
"""Runs the command, and writes how many multiplications its linear maps took."""


def command(source: Path, count: Path, *arguments: str) -> tuple[float, int, str]:
    """CPU seconds of a command of the version in `source`, the work of its linear maps, and what it printed."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    printed = subprocess.run(
        [sys.executable, "-c", COUNTED, *arguments, "--quiet"],
        env=os.environ | threads | {"PYTHONPATH": str(source), "COUNT": str(count)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
    return spent, int(count.read_text(encoding="utf-8")), printed


def a_pass(model: hs.Model, inputs: object, tokens: int) -> int:
    """The work of the linear maps in a forward pass on one window."""
    work = 0

    def note(module: torch.nn.Module, given: tuple[torch.Tensor, ...], _: object) -> None:
        nonlocal work
        if isinstance(module, torch.nn.Linear):
            work += given[0].numel() // given[0].shape[-1] * module.weight.numel()

    samples, _ = samples_of(model, inputs, tokens, 1)
    handle = torch.nn.modules.module.register_module_forward_hook(note)
    with torch.no_grad():
        run_model(model, samples[0].arguments)
    handle.remove()
    return work


def ranking(model: hs.Model, inputs: object, tokens: int) -> tuple[float, float]:
    """Seconds of ranking all heads after the moments, and of solving anew for every candidate at every step."""
    samples, _ = samples_of(model, inputs, tokens, 2)
    e = Evidence([head for site in model.sites for head in site.heads], model=model, samples=samples)
    _ = e.moments, e.projections
    start = time.process_time()
    novelty(e)
    fast = time.process_time() - start
    start = time.process_time()
    for site in model.sites:  # what the first step of the old way did for every layer: one solution per head
        S, W = e.moments[site.name], e.projections[site.name]
        dim = W.shape[1] // site.n_heads
        for h in range(site.n_heads):
            gone = np.arange(h * dim, (h + 1) * dim)
            Elimination(S, W, [torch.from_numpy(gone)]).rises()
    slow = time.process_time() - start
    steps = sum(site.n_heads for site in model.sites)
    return fast, slow * (1 + sum(site.n_heads - 1 for site in model.sites) / steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--beside", type=Path, help="the src folder of another version")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--budget", default="1%")
    parser.add_argument("--out", type=Path, help="add the table to this CSV file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = hs.load_model(given.model, device="cpu")
    inputs = hs.sample_images() if model.images is not None else [hs.sample_text("rank")]
    one = a_pass(model, inputs, given.tokens)
    ways = {"this version": HERE} | ({"the other version": given.beside.resolve()} if given.beside else {})
    header = ["model", "what", "passes of a window", "CPU seconds", "heads removed"]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, source in ways.items():
            run, count = str(Path(scratch) / name.replace(" ", "-")), Path(scratch) / "count"
            size = ["--tokens", str(given.tokens), "--batches", str(given.batches)]
            command(source, count, "capture", given.model, *size, "--out", run)
            asked = ["--budget", given.budget, "--windows", str(given.windows), "--threads", "1", "--json"]
            seconds, work, printed = command(source, count, "prune", run, *asked)
            found = json.loads(printed)
            removed = found.get("heads", found.get("proposal"))
            rows.append([given.model, name, f"{work / one:,.0f}", f"{seconds:.0f}", str(len(removed))])
    fast, slow = ranking(model, inputs, given.tokens)
    rows.append([given.model, "ranking alone, by block elimination", "", f"{fast:.2g}", ""])
    rows.append([given.model, "ranking alone, solving anew (estimate)", "", f"{slow:.2g}", ""])
    print(table(header, rows))
    if given.out:
        keep(given.out, header, rows)


if __name__ == "__main__":
    main()
