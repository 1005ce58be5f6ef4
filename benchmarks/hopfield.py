"""Hopfield attention beside standard eager attention: forward and backward, same shapes, in turns.

    python benchmarks/hopfield.py [--tokens 512] [--layers 6] [--repeats 7] [--threads 1] [--csv FILE]

"layers" is a stack of attention layers: standard eager attention written out in plain torch, and `HopfieldAttention`.
"gpt2" is a GPT-2 of the same size by transformers with its own eager attention, and the same under `to_hopfield`.
"training" is the network of `headscape train gpt`, forward and backward on 8 x 128 bytes, in several of its arms: what a
step costs where arms are compared by number of steps. "inference" is carried scores as the bias of fused attention.
Memory is the highest sum of what torch has allocated and not yet freed during one forward and backward pass, from the
profiler's record; weights and their gradients are not in it.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from _timing import in_turns, table
from headscape.hopfield.convert import to_hopfield
from headscape.hopfield.layer import HopfieldAttention
from headscape.hopfield.networks import Transformer, arm
from headscape.hopfield.presets import PRESETS

LIMIT_TIME, LIMIT_MEMORY = 1.6, 1.5


class Eager(nn.Module):
    """x + attention(x), every step a torch operation."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
        ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        probs = scores.masked_fill(ahead, torch.finfo(scores.dtype).min).softmax(-1)
        return x + self.o((probs @ v).transpose(1, 2).flatten(2))


def peak(call: Callable[[], None]) -> int:
    """Highest sum of bytes allocated and not freed while `call` runs."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    events = record.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = highest = 0
    for _, change in changes:
        now += change
        highest = max(highest, now)
    return highest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    n, dim, heads = options.tokens, options.dim, options.heads
    x = torch.randn(options.batch, n, dim)
    eager = nn.Sequential(*(Eager(dim, heads) for _ in range(options.layers)))
    stacks = {
        "hopfield": [HopfieldAttention(dim, heads) for _ in range(options.layers)],
        "hopfield, debias": [HopfieldAttention(dim, heads, init="debias") for _ in range(options.layers)],
        "hopfield, a'=0": [HopfieldAttention(dim, heads, alpha_hidden=0.0) for _ in range(options.layers)],
    }

    def standard() -> None:
        eager(x).sum().backward()

    def stacked(layers: list[HopfieldAttention]) -> None:
        y, state = x, None
        for layer in layers:
            y, state = layer(y, state, causal=True)
        y.sum().backward()

    calls: dict[str, Callable[[], None]] = {"standard": standard}
    calls |= {name: (lambda layers=layers: stacked(layers)) for name, layers in stacks.items()}
    rows = ratios("layers", calls, options.repeats)

    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=dim,
        n_layer=options.layers,
        n_head=heads,
        n_positions=n,
        vocab_size=256,
        attn_implementation="eager",
        use_cache=False,
    )
    network = GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 256, (options.batch, n))

    def forward_backward() -> None:
        network(input_ids=ids).logits.sum().backward()

    def converted(**settings: float | str) -> Callable[[], None]:
        def call() -> None:
            with to_hopfield(network, **settings):
                forward_backward()

        return call

    # entering the block runs two short inputs to find the layers and their skips; a user pays that once
    rows += ratios(
        "gpt2",
        {
            "eager": forward_backward,
            "to_hopfield, residual": converted(skip="residual"),
            "to_hopfield, scaled": converted(),
        },
        options.repeats,
    )
    rows += training(options.repeats)
    rows += fused(x, heads, options.repeats)
    shape = f"{options.batch} x {n} tokens, {options.layers} layers x {heads} heads x {dim}"
    print(f"{shape}, forward and backward, medians of {options.repeats}, {options.threads} thread(s); ")
    print(f"limits: time {LIMIT_TIME}, memory {LIMIT_MEMORY} of standard eager attention\n")
    columns = ["what", "attention", "CPU s", "time over the first", "peak MB", "memory over the first"]
    print(table(columns, rows))
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            file.write(f"# python benchmarks/hopfield.py; {shape}, medians of {options.repeats}\n")
            csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def training(repeats: int) -> list[list[str]]:
    """What a step of a training comparison costs in each arm."""
    preset = PRESETS["gpt"]
    ids = torch.randint(0, 256, (preset.batch, preset.network.tokens))

    def step(name: str) -> Callable[[], None]:
        network = Transformer(preset.network, arm(name))

        def call() -> None:
            F.cross_entropy(network(ids).logits.flatten(0, 1), ids.flatten()).backward()

        return call

    return ratios(
        "training", {name: step(name) for name in ("standard", "hidden", "both", "realformer", "learned")}, repeats
    )


def fused(x: Tensor, heads: int, repeats: int) -> list[list[str]]:
    """Why there is no fused path: carried scores as the bias of fused attention, beside the same step by step.

    The scores must be computed for the next layer in any case, so the fused kernel has to save more than that; and the
    fused kernels of the CPU refuse a bias that needs a gradient, so training falls back to plain operations.
    """
    batch, n, dim = x.shape
    q, k, v = (torch.randn(batch, heads, n, dim // heads) for _ in range(3))
    carried = torch.randn(batch, heads, n, n)

    def scores() -> Tensor:
        return (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3) + carried

    def attended() -> None:
        F.scaled_dot_product_attention(q, k, v, attn_mask=carried)
        scores()

    with torch.no_grad():
        return ratios(
            "inference",
            {"scores, softmax, values": lambda: scores().softmax(-1) @ v, "fused + scores": attended},
            repeats,
        )


def ratios(what: str, calls: dict[str, Callable[[], None]], repeats: int) -> list[list[str]]:
    """One row per call, the first being the baseline."""
    times = in_turns(calls, repeats)
    peaks = {name: peak(call) for name, call in calls.items()}
    base = next(iter(calls))
    return [
        [
            what,
            name,
            f"{times[name].cpu:.3f}",
            f"{times[name].cpu / times[base].cpu:.2f}",
            f"{peaks[name] / 1e6:.0f}",
            f"{peaks[name] / peaks[base]:.2f}",
        ]
        for name in calls
    ]


if __name__ == "__main__":
    main()
