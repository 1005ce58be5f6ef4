"""Pruning within a budget: forward passes and CPU seconds of the default, against the way of version 0.1.

    python benchmarks/prune.py [MODEL] [--windows 16] [--tokens 256] [--threads 1] [--old]

The default calibrates, ranks by block elimination, searches by a power law with hopeless sets dropped early, and judges
the proposal and its abilities. The way of 0.1 (`--old`, many times longer) compares all pairs of two criteria and four
compensations, bisects with 40 trials, and judges curves and rivals: today's `--study` with the same settings. Passes are
counted by a hook on the network. Ranking alone is compared with solving anew for every candidate.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import headscape as hs
from _timing import table
from headscape.attention.samples import samples_of
from headscape.pruning.evidence import Evidence
from headscape.pruning.novelty import Elimination, novelty

OLD = {"study": True, "criteria": ("novelty", "gradient"), "evaluations": 40}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--old", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = hs.load_model(options.model, device="cpu")
    inputs = hs.sample_images() if model.images is not None else [hs.sample_text("rank")]
    rows = [ranking(model, inputs, options.tokens)]
    ways = {"default": {}} | ({"as in 0.1": OLD} if options.old else {})
    with tempfile.TemporaryDirectory() as scratch:
        for name, more in ways.items():
            run = Path(scratch) / name
            hs.capture(model, inputs, tokens=options.tokens, batches=10, out=run)
            counts = {"passes": 0, "tokens": 0}
            handle = model.module.base_model.register_forward_pre_hook(counted(counts), with_kwargs=True)
            start = time.process_time()
            found = hs.prune(run, model=model, budget=0.01, windows=options.windows, threads=options.threads, **more)
            seconds = time.process_time() - start
            handle.remove()
            removed = f"{len(found.proposal)} of {len(found.heads)} heads"
            rows.append([name, str(counts["passes"]), f"{counts['tokens']:,}", f"{seconds:.0f}", removed])
    print(f"{options.model}, {options.windows} windows of {options.tokens} tokens, {options.threads} thread(s)\n")
    print(table(["way", "forward passes", "tokens", "CPU seconds", "found"], rows))


def counted(counts: dict[str, int]):
    def note(_: object, args: tuple, kwargs: dict) -> None:
        given = kwargs.get("input_ids", kwargs.get("pixel_values", args[0] if args else None))
        counts["passes"] += 1
        counts["tokens"] += given.numel() if given is not None and not given.is_floating_point() else 0

    return note


def ranking(model: hs.Model, inputs: object, tokens: int) -> list[str]:
    """Seconds of ranking all heads after the moments, and of one step of solving anew for every candidate."""
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
    again = slow * (1 + sum(site.n_heads - 1 for site in model.sites) / steps)
    return ["ranking alone", "0", "0", f"{fast:.1f}", f"solving anew about {again:.0f} s"]


if __name__ == "__main__":
    main()
