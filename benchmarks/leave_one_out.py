"""Leave-one-out over all heads: whole forward passes against passes that start at the layer of the removed head.

    python benchmarks/leave_one_out.py [MODEL] [--windows 1] [--tokens 256] [--threads 2] [--every 1]

Both ways remove every head in turn, one right after the other, so that a busy machine slows both alike; seconds are
summed over heads. The losses agree up to rounding.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

import headscape as hs
from headscape.attention.samples import samples_of
from headscape.pruning.ablation import Ablations
from headscape.pruning.judges import LossJudge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--windows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="take every n-th head")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = hs.load_model(options.model)
    inputs = hs.sample_images() if model.images is not None else [hs.sample_text("rank")]
    samples, _ = samples_of(model, inputs, options.tokens, options.windows)
    judge = LossJudge(model, samples)
    heads = [head for site in model.sites for head in site.heads][:: options.every]
    ways = {"whole passes": Ablations(judge, share=False), "from the head's layer": Ablations(judge)}
    for ablations in ways.values():
        ablations.loss([])  # the intact model is run once, whichever way
    seconds = dict.fromkeys(ways, 0.0)
    processor = dict.fromkeys(ways, 0.0)
    difference = 0.0
    for head in heads:
        losses = []
        for name, ablations in ways.items():
            start, cpu = time.perf_counter(), time.process_time()
            losses.append(ablations.loss([head]).values)
            seconds[name] += time.perf_counter() - start
            processor[name] += time.process_time() - cpu
        difference = max(difference, float(np.abs(losses[0] - losses[1]).max()))
    print(f"{options.model}, {len(heads)} heads, {options.windows} x {options.tokens}, {options.threads} threads\n")
    print("| way | seconds | CPU seconds | times faster |\n| --- | --- | --- | --- |")
    first = seconds["whole passes"]
    for name in ways:
        print(f"| {name} | {seconds[name]:.1f} | {processor[name]:.1f} | {first / seconds[name]:.2f} |")
    print(f"\nlargest difference of a loss: {difference:.1e}")


if __name__ == "__main__":
    main()
