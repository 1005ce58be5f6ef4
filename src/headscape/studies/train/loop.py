"""One training run: optimise, evaluate, keep the best weights, stop early, go on after a kill.

What happens in a step depends on the seed and the step alone, so a run that goes on from a checkpoint gives the bytes
of one that was never stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from headscape.collapse.similarity import ALIKE, token_similarities
from headscape.hopfield.networks import Attention, NetworkConfig, Transformer
from headscape.storage import replacing, write_json
from headscape.studies.train.data import ImageData, TextData

__all__ = ["QUANTILES", "Plan", "Trial", "run_trial", "token_similarity"]

QUANTILES = 101  # of the pairs of tokens, kept per layer
_LOG, _WEIGHTS, _CHECKPOINT = "log.json", "model.safetensors", "checkpoint.safetensors"


@dataclass(frozen=True)
class Plan:
    """What all runs of a comparison share."""

    network: NetworkConfig
    steps: int
    batch: int
    warmup: int
    weight_decay: float
    floor: float = 0.0
    label_smoothing: float = 0.0
    evaluations: int = 10
    patience: int = 0  # evaluations without a better validation loss before a run stops; 0 never stops
    eval_batches: int = 32
    test_batches: int = 64
    clip: float = 1.0


@dataclass(frozen=True)
class Trial:
    """One run: an arm, its attention, a peak learning rate, a seed."""

    arm: str
    attention: Attention
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.arm}-rate{self.rate:g}-seed{self.seed}"


def run_trial(
    plan: Plan, data: TextData | ImageData, trial: Trial, folder: Path, threads: int, tick: Callable[[], None]
) -> dict[str, Any]:
    """Train, or finish, or read one run; returns its log. `tick` is called after every evaluation made.

    Leaves log.json (loss curve, validation and test loss, token similarity by layer) and model.safetensors, the weights
    of the best validation loss. A run whose loss is no longer finite ends there, and its log says so.
    """
    if (folder / _LOG).is_file():
        log: dict[str, Any] = json.loads((folder / _LOG).read_text(encoding="utf-8"))
        return log
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _Run(plan, data, trial, folder).train(tick)
    finally:
        torch.set_num_threads(before)


class _Run:
    def __init__(self, plan: Plan, data: TextData | ImageData, trial: Trial, folder: Path) -> None:
        self.plan, self.data, self.trial, self.folder = plan, data, trial, folder
        devices: list[Any] = []
        with torch.random.fork_rng(devices):
            torch.manual_seed(trial.seed)  # the same start for every arm and rate of a seed
            self.network = Transformer(plan.network, trial.attention)
        decayed = [p for p in self.network.parameters() if p.dim() > 1]
        rest = [p for p in self.network.parameters() if p.dim() <= 1]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=trial.rate, betas=(0.9, 0.98), weight_decay=plan.weight_decay)
        self.memory: list[Tensor] | None = None
        self.step, self.best, self.stale = 0, math.inf, 0
        self.curve: list[dict[str, float]] = []
        self.losses: list[float] = []

    # --- the loop ---

    def train(self, tick: Callable[[], None]) -> dict[str, Any]:
        plan = self.plan
        self._resume()
        for _ in self.curve:
            tick()
        marks = {round(plan.steps * (k + 1) / plan.evaluations) for k in range(plan.evaluations)}
        stopped = self._stopped()
        devices: list[Any] = []
        with torch.random.fork_rng(devices):
            while self.step < plan.steps and not stopped:
                self._one_step()
                if not math.isfinite(self.losses[-1]):
                    return self._finish(stopped=False, diverged=True)
                if self.step in marks:
                    self._evaluate()
                    stopped = self._stopped()
                    self._checkpoint()
                    tick()
        return self._finish(stopped)

    def _one_step(self) -> None:
        plan, seed = self.plan, self.trial.seed
        torch.manual_seed(seed * 1_000_003 + self.step)  # dropout
        generator = torch.Generator().manual_seed(seed * 1_000_003 + self.step)
        self.network.train()
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(self.step)
        x, wanted = self._batch(generator)
        out = self.network(x, self.memory)
        self.memory = out.memory or None
        loss = _loss(out.logits, wanted, plan.label_smoothing)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), plan.clip)
        self.optimizer.step()
        self.losses.append(loss.item())
        self.step += 1

    def _rate(self, step: int) -> float:
        """Linear warm-up, then a cosine down to the floor."""
        plan, peak = self.plan, self.trial.rate
        if step < plan.warmup:
            return peak * (step + 1) / plan.warmup
        share = (step - plan.warmup) / max(1, plan.steps - plan.warmup)
        return plan.floor + (peak - plan.floor) * 0.5 * (1 + math.cos(math.pi * share))

    def _batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        network, size = self.plan.network, self.plan.batch
        if isinstance(self.data, ImageData):
            return self.data.batch(generator, size, network)
        if network.memory:
            return self.data.segment(self.step + self.trial.seed * 7919, size, network.tokens)
        return self.data.batch(generator, size, network.tokens)

    def _stopped(self) -> bool:
        return bool(self.plan.patience) and self.stale >= self.plan.patience

    # --- evaluation ---

    def _batches(self, part: str, n: int) -> list[tuple[Tensor, Tensor]]:
        network = self.plan.network
        if isinstance(self.data, ImageData):
            return self.data.examples(part, 100, n, network)
        return self.data.windows(part, 8, network.tokens, n)

    @torch.no_grad()
    def measured(self, part: str, n: int) -> dict[str, float]:
        """Mean loss in nats a token or image, and accuracy of a classifier."""
        self.network.eval()
        memory: list[Tensor] | None = None
        losses, right, count = 0.0, 0, 0
        for x, wanted in self._batches(part, n):
            out = self.network(x, memory)
            memory = out.memory or None
            losses += float(_loss(out.logits, wanted)) * wanted.numel()
            right += int((out.logits.argmax(-1) == wanted).sum())
            count += wanted.numel()
        return {"loss": losses / count, "accuracy": right / count}

    def _evaluate(self) -> None:
        found = self.measured("valid", self.plan.eval_batches)
        since = self.losses[int(self.curve[-1]["step"]) if self.curve else 0 :]
        self.curve.append({"step": self.step, "train": float(np.mean(since)), **found})
        if found["loss"] < self.best:
            self.best, self.stale = found["loss"], 0
            self._save(_WEIGHTS, self.network.state_dict(), {"step": self.step})
        else:
            self.stale += 1

    def _finish(self, stopped: bool, diverged: bool = False) -> dict[str, Any]:
        log: dict[str, Any] = {
            "trial": {"arm": self.trial.arm, "rate": self.trial.rate, "seed": self.trial.seed},
            "attention": asdict(self.trial.attention),
            "parameters": self.network.n_parameters,
            "steps": self.step,
            "stopped_early": stopped,
            "diverged": diverged,
            "curve": self.curve,
        }
        if not diverged:
            self.network.load_state_dict(self._unshared(load_file(self.folder / _WEIGHTS)))
            log |= {part: self.measured(part, self.plan.test_batches) for part in ("valid", "test")}
            log["similarity"] = token_similarity(self.network, [x for x, _ in self._batches("valid", 4)])
        write_json(self.folder / _LOG, log)
        (self.folder / _CHECKPOINT).unlink(missing_ok=True)
        return log

    # --- on disk ---

    def _save(self, name: str, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        shared = "head.weight" if self.plan.network.kind != "vit" else None  # the embedding, once
        plain = {k: v.contiguous() for k, v in tensors.items() if k != shared}
        with replacing(self.folder / name) as partial:
            save_file(plain, partial, metadata={"headscape": json.dumps(facts)})

    def _unshared(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.plan.network.kind != "vit":
            tensors["head.weight"] = tensors["embedding.weight"]
        return tensors

    def _checkpoint(self) -> None:
        tensors = dict(self.network.state_dict())
        for i, state in enumerate(self.optimizer.state_dict()["state"].values()):
            tensors |= {f"optimizer/{i}/{name}": value for name, value in state.items()}
        tensors |= {f"memory/{i}": m for i, m in enumerate(self.memory or [])}
        facts = {
            **{name: getattr(self, name) for name in ("step", "stale", "curve", "losses")},
            "best": self.best,
        }
        self._save(_CHECKPOINT, tensors, facts)

    def _resume(self) -> None:
        path = self.folder / _CHECKPOINT
        if not path.is_file():
            return
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["headscape"])
        tensors = load_file(path)
        memory = [tensors.pop(f"memory/{i}") for i in range(sum(k.startswith("memory/") for k in tensors))]
        state: dict[int, dict[str, Tensor]] = {}
        for name in [k for k in tensors if k.startswith("optimizer/")]:
            _, i, what = name.split("/")
            state.setdefault(int(i), {})[what] = tensors.pop(name)
        self.network.load_state_dict(self._unshared(tensors))
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.memory = memory or None
        for name in ("step", "best", "stale", "curve", "losses"):
            setattr(self, name, facts[name])


def _loss(logits: Tensor, wanted: Tensor, label_smoothing: float = 0.0) -> Tensor:
    flat = logits.reshape(-1, logits.shape[-1]).float()
    return F.cross_entropy(flat, wanted.reshape(-1), label_smoothing=label_smoothing)


@torch.no_grad()
def token_similarity(network: Transformer, inputs: list[Tensor]) -> dict[str, Any]:
    """`token_similarities` of all sequences together, before layer 1 and after each layer.

    Lists by layer: mean, share at or above `ALIKE`, and 101 quantiles of the pairs.
    """
    network.eval()
    states = [network(x).hidden for x in inputs]
    joined = [
        np.concatenate([token_similarities(tokens.numpy()) for hidden in layer for tokens in hidden])
        for layer in zip(*states, strict=True)
    ]
    return {
        "mean": [float(c.mean()) for c in joined],
        "aligned": [float((c >= ALIKE).mean()) for c in joined],
        "quantiles": [np.quantile(c, np.linspace(0, 1, QUANTILES)).round(5).tolist() for c in joined],
    }
