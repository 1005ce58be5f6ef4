"""Collapse in a network that `headscape train` trained: any arm, at any evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headscape.attention.tapping import tapped
from headscape.attention.taps import AttentionCall, Tap
from headscape.attention.threads import torch_threads
from headscape.checks import integer
from headscape.checks import seed as check_seed
from headscape.collapse.bounds import LayerBounds, layer_bounds
from headscape.collapse.residual import roundoff
from headscape.collapse.similarity import attention_entropy
from headscape.errors import InputError
from headscape.fingerprints import file_hash
from headscape.hopfield.layer import HopfieldAttention
from headscape.hopfield.networks import Transformer, base_arm
from headscape.hopfield.state import HiddenState
from headscape.hopfield.trained import Trained, find_trained
from headscape.runs import Run
from headscape.storage import read_arrays, write_arrays
from headscape.studies.collapse.measures import measures
from headscape.studies.collapse.result import CollapseResult
from headscape.studies.collapse.tables import summary_of_units
from headscape.studies.work.folder import working_folder
from headscape.studies.work.how import How, Work
from headscape.studies.work.units import run_units
from headscape.tensor import HeadId

__all__ = ["collapse_trained"]

VARIANTS = ("standard", "shuffled", "random")
BLOCK = "blocks"


def collapse_trained(
    run: str | Path,
    *,
    arm: str = "standard",
    seed: int | None = None,
    step: int | None = None,
    batches: int = 8,
    random_state: int = 0,
    **how: Unpack[How],
) -> CollapseResult:
    """Measure collapse by layer in a trained network, beside shuffled inputs and the same network before training.

    Parameters
    ----------
    run
        A run of `headscape train`.
    arm, seed, step
        Which of its networks, and after how many steps; by default the first seed, and the weights that were evaluated.
    batches
        How many windows or images of the validation part.
    how
        jobs, engine, threads, resume, progress, say: see `headscape.studies.work.how.How`.

    Raises an `InputError` where the run has no such network, with those it has.
    """
    check_seed(random_state)
    integer("batches", batches, low=1)
    opened, work = Run.open(run), Work.of(**how)
    found = find_trained(opened.path, opened.meta["config"], arm, seed, step)
    if found.config.kind == "model":
        raise InputError(
            f"{run} trained a model further, which this study does not take; `headscape report` shows its tokens by layer"
        )
    settings = {"arm": arm, "network seed": found.seed, "step": step, "batches": batches, "seed": random_state}
    inputs = {"weights": file_hash(found.weights)}
    with working_folder(opened, CollapseResult.study, settings, inputs, work) as folder:
        facts = asdict(found.attention), inputs["weights"], batches, random_state, "with bounds"
        threads = work.threads if work.engine.apart else work.asked_threads
        paths = {name: folder.unit(f"{name}-{arm.replace(' ', '_')}", *facts) for name in VARIANTS}
        units = {name: (path, found, name, batches, random_state, threads) for name, path in paths.items()}
        run_units(measure_trained, units, work, work.stage("measuring", len(units)))
        measured = {}
        for name, path in paths.items():
            arrays = read_arrays(path)[0]
            measured[name] = [{key: array[i] for key, array in arrays.items()} for i in range(batches)]
        heads = [HeadId(BLOCK, n, h) for n in range(found.config.layers) for h in range(found.config.heads)]
        result = summary_of_units(
            heads, measured, [_note(found)], settings | {"block": BLOCK, "alpha_hidden": 0.0}, _causal(found)
        )
        folder.save(result)
    return result


def _note(found: Trained) -> str:
    """Which network it is."""
    at = "at its best validation loss" if found.step is None else f"after {found.step} steps"
    own = base_arm(found.arm).about
    return f"The model is one of `headscape train`, {at}: {own} (arm {found.arm}, seed {found.seed})."


def _causal(found: Trained) -> bool:
    return found.config.kind != "vit"


def _bounded(found: Trained) -> bool:
    """Whether the bounds are about this network: no mask, and layers that attend to what enters them."""
    return not _causal(found) and found.attention.scheme != "central" and not found.attention.scheme.startswith("back")


def measure_trained(path: Path, found: Trained, variant: str, batches: int, seed: int, threads: int | None) -> None:
    """The unit of work: all inputs in one variant; every measure stacked over them."""
    rng = np.random.default_rng(seed)
    network = found.untrained(found.seed + 1_000_003) if variant == "random" else found.network()
    assert isinstance(network, Transformer)
    rows = []
    with torch_threads(threads):
        for x in found.inputs(batches):
            shown = _shuffled(x, found, rng) if variant == "shuffled" else x
            with_bounds = _bounded(found) and variant != "shuffled"
            rows.append(_looked(network.double(), shown, _causal(found), with_bounds))
    write_arrays(path, {name: np.stack([row[name] for row in rows]) for name in rows[0]})


@torch.no_grad()
def _looked(network: Transformer, x: Tensor, causal: bool, with_bounds: bool) -> Mapping[str, npt.NDArray[Any]]:
    watch = _Watch(causal, with_bounds)
    layers = {name: module for name, module in network.named_modules() if isinstance(module, HopfieldAttention)}
    with ExitStack() as hooks:
        for layer in layers.values():
            hooks.callback(layer.register_forward_pre_hook(watch.enter, with_kwargs=True).remove)
        hooks.enter_context(tapped(network, watch, list(layers)))
        states = network(x if causal else x.double()).hidden
    labels = x[0].numpy() if causal else None
    entropies = dict(enumerate(watch.found.values()))
    found = measures(np.stack([state[0].numpy() for state in states]), labels, entropies)
    if with_bounds:
        found |= {"bounds": np.stack([one.row for one in watch.bounds.values()])}
        found |= {"spread": np.concatenate([one.spread for one in watch.bounds.values()])}
    return found | {"floor": np.array(roundoff())}


class _Watch(Tap):
    """Takes the entropy of every row as a layer runs and, where asked, the layer's bounds."""

    blockwise = False

    def __init__(self, causal: bool, with_bounds: bool) -> None:
        self.causal, self.with_bounds = causal, with_bounds
        self.found: dict[int, npt.NDArray[Any]] = {}  # by layer; of one that iterates the last time
        self.bounds: dict[int, LayerBounds] = {}
        self._entered: tuple[Tensor, HiddenState | None] | None = None

    def enter(self, layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of a layer: what attention reads, and the hidden state."""
        norm = kwargs.get("norm") or (lambda tokens: tokens)
        self._entered = norm(args[0]), args[1] if len(args) > 1 else None

    def scores(self, call: AttentionCall, scores: Tensor) -> Tensor:
        if self.with_bounds and self._entered is not None and isinstance(call.module, HopfieldAttention):
            tokens, state = self._entered
            self.bounds[id(call.module)] = _bounds(call.module, tokens[0], scores[0], state)
        return scores

    def probs(self, call: AttentionCall, probs: Tensor) -> Tensor:
        present = np.tri(*probs.shape[-2:]) if self.causal else None
        self.found[id(call.module)] = attention_entropy(probs[0].numpy(), present)
        return probs


def _bounds(layer: HopfieldAttention, tokens: Tensor, scores: Tensor, state: HiddenState | None) -> LayerBounds:
    """The bounds of one layer; the printed one is of a hidden state with one a', and of H that is not divided by sqrt(dk)."""
    heads = [
        p.weight.view(-1, layer.head_dim, p.in_features).numpy() for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    ]
    q, k, v = (np.repeat(w, layer.n_heads // len(w), axis=0) for w in heads)
    o = layer.out_proj.weight.view(-1, layer.n_heads, layer.head_dim).permute(1, 2, 0).numpy()
    printed = layer.hidden_logit is None and layer.scheme == "forward-backward" and layer.init == "zero"
    before = None if state is None else state.scores[0].numpy() * layer.head_dim**0.5
    W_QK = q.swapaxes(1, 2) @ k if printed else None
    share = layer.alpha_hidden
    return layer_bounds(tokens.numpy(), scores.numpy(), v.swapaxes(1, 2) @ o, W_QK, layer.head_dim, share, before)


def _shuffled(x: Tensor, found: Trained, rng: np.random.Generator) -> Tensor:
    """The tokens of a window, or the patches of an image, in another order."""
    if found.config.kind != "vit":
        return x[:, rng.permutation(x.shape[1])]
    side = found.config.patch
    grid = x[0].unfold(1, side, side).unfold(2, side, side).permute(1, 2, 0, 3, 4)
    mixed = grid.flatten(0, 1)[rng.permutation(grid.shape[0] * grid.shape[1])].reshape(grid.shape)
    return mixed.permute(2, 0, 3, 1, 4).reshape(x.shape)
