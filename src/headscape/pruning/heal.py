"""Healing: after heads are removed, a few steps of distillation that train the output projections alone.

The weights of the kept heads and the biases of the layers that lost heads are trained to bring the pruned model's
predictions back to those of the intact one (KL divergence of the next token); nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import cos, pi
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headscape.attention import projections
from headscape.attention.models import Model
from headscape.attention.samples import Sample, grouped
from headscape.attention.sites import run
from headscape.errors import InputError
from headscape.pruning.compensation import Fitted

__all__ = ["heal"]

RATE = 6e-4  # chosen on SmolLM2 without 40 % of its heads, on windows that nothing is judged on
WARM = 0.1  # of the steps
AT_ONCE = 4  # samples in a step


def heal(
    model: Model,
    fitted: Mapping[str, Fitted],
    samples: Sequence[Sample],
    steps: int,
    seed: int = 0,
    step: Callable[[], None] = lambda: None,
) -> dict[str, Fitted]:
    """The same removal with output projections distilled from the intact model on some samples.

    AdamW with warm-up and cosine decay, four samples per step. The same seed and number of threads give the same bits.
    """
    if model.task != "causal-lm":
        raise InputError(f"healing distils the next token; {model.source} ({model.task}) predicts none")
    paths = projections.output_projections(model)
    rng, order = np.random.default_rng(seed), list(range(len(samples)))
    with _with_biases(model, [paths[name] for name in fitted]) as outputs:
        weights, masks, biases = {}, {}, {}
        for name, layer in fitted.items():
            output = outputs[paths[name]]
            columns = projections.columns_of(output)
            whole = columns.double().cpu()
            weights[name] = layer.weight(whole).to(columns).requires_grad_()
            masks[name] = (
                torch.zeros(columns.shape[1]).index_fill(0, layer.inputs(columns.shape[1])[0], 1.0).to(columns)
            )
            biases[name] = (output.bias.detach() + layer.bias(whole).to(columns)).requires_grad_()
        trained = [*weights.values(), *biases.values()]
        optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: _rate(i, steps))
        for i in range(steps):
            if i * AT_ONCE % len(order) < AT_ONCE:
                rng.shuffle(order)
            chosen = [samples[order[(i * AT_ONCE + j) % len(order)]] for j in range(AT_ONCE)]
            for arguments, part in grouped(sorted(chosen, key=lambda s: s.arguments["input_ids"].shape[1]), AT_ONCE):
                with torch.no_grad():
                    wanted = run(model, arguments).logits.log_softmax(-1)
                with _swapped(outputs, paths, weights, masks, biases):
                    found = run(model, arguments).logits.log_softmax(-1)
                loss = F.kl_div(found, wanted, log_target=True, reduction="none").sum(-1).mean()
                (loss * len(part) / AT_ONCE).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
            model.module.zero_grad(set_to_none=True)
            step()
        healed = {}
        for name, layer in fitted.items():
            folded = (weights[name] * masks[name]).detach().double().cpu().numpy()
            offset = (biases[name].detach() - outputs[paths[name]].bias.detach()).double().cpu().numpy()
            healed[name] = replace(layer, folded=folded, offset=offset)
    return healed


def _rate(i: int, steps: int) -> float:
    """Share of the full rate at a step: a linear warm-up, then half a cosine."""
    warm = max(1, round(WARM * steps))
    return (i + 1) / warm if i < warm else 0.5 * (1 + cos(pi * (i - warm) / max(1, steps - warm)))


@contextmanager
def _with_biases(model: Model, paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Give every output projection a bias, zero where there was none; gradients of the network are off in the block."""
    outputs: dict[str, Any] = {path: model.module.get_submodule(path) for path in paths}
    bare = [output for output in outputs.values() if output.bias is None]
    flags = [(p, p.requires_grad) for p in model.module.parameters()]
    for parameter, _ in flags:
        parameter.requires_grad_(False)
    for output in bare:
        projections.set_bias(output)
    try:
        yield outputs
    finally:
        for output in bare:
            output.register_parameter("bias", None)
        for parameter, flag in flags:
            parameter.requires_grad_(flag)


@contextmanager
def _swapped(
    outputs: Mapping[str, nn.Module],
    paths: Mapping[str, str],
    weights: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    biases: Mapping[str, Tensor],
) -> Iterator[None]:
    """The network with the trained output projections; weights of removed heads stay zero."""
    handles = []
    for name, weight in weights.items():

        def changed(_: nn.Module, args: tuple[Tensor, ...], __: Tensor, name: str = name, W: Tensor = weight) -> Tensor:
            return F.linear(args[0], W * masks[name], biases[name])

        handles.append(outputs[paths[name]].register_forward_hook(changed))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
