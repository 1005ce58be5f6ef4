"""One training run, the unit of work of the study: optimize, evaluate, keep the best weights, resume after a kill.

Beside its log (PATH.json, written last) a run keeps the weights of its best validation loss (PATH.safetensors) and,
while it runs, a checkpoint (PATH.checkpoint). A step depends only on the seed and its number, so a run that resumes
from a checkpoint gives the bytes of one that was never stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from headscape.attention.threads import torch_threads
from headscape.collapse.similarity import ALIKE, histogram, token_similarities
from headscape.hopfield.networks import Attention, NetworkConfig, Transformer
from headscape.records import load_record
from headscape.storage import replacing, write_json
from headscape.studies.train.data import Data, ImageData, TextData

__all__ = ["Plan", "Trial", "run_trial", "token_similarity"]


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
        """The name of its files."""
        return f"{self.arm}-rate{self.rate:g}-seed{self.seed}"


def run_trial(
    path: Path, plan: Plan, data: Data | Path, trial: Trial, threads: int, tick: Callable[[], None] | None = None
) -> None:
    """Train one network, or finish training it, and write its log to `path`.

    The log holds the loss curve, validation and test loss, and token similarity by layer. A run whose loss is no longer
    finite ends there, and its log says so. `data` may be a folder of `save_record`. `tick` is called after every
    evaluation.
    """
    if isinstance(data, Path):
        data = _stored(data, ImageData if plan.network.kind == "vit" else TextData)
    with torch_threads(threads):
        _Run(path, plan, data, trial).train(tick or (lambda: None))


@lru_cache(maxsize=1)
def _stored(folder: Path, kind: type[Data]) -> Data:
    return load_record(kind, folder)


class _Run:
    def __init__(self, path: Path, plan: Plan, data: Data, trial: Trial) -> None:
        self.plan, self.data, self.trial, self.log = plan, data, trial, path
        self.weights, self.checkpoint = path.with_suffix(".safetensors"), path.with_suffix(".checkpoint")
        with torch.random.fork_rng([]):
            torch.manual_seed(trial.seed)  # the same first weights for every arm and rate of a seed
            self.network = Transformer(plan.network, trial.attention)
        decayed = [p for p in self.network.parameters() if p.dim() > 1]
        rest = [p for p in self.network.parameters() if p.dim() <= 1]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=trial.rate, betas=(0.9, 0.98), weight_decay=plan.weight_decay)
        self.memory: list[Tensor] | None = None
        self.step, self.best, self.stale = 0, math.inf, 0
        self.curve: list[dict[str, float]] = []
        self.losses: list[float] = []

    def train(self, tick: Callable[[], None]) -> None:
        plan = self.plan
        self._resume()
        for _ in self.curve:
            tick()
        marks = {round(plan.steps * (k + 1) / plan.evaluations) for k in range(plan.evaluations)}
        with torch.random.fork_rng([]):
            while self.step < plan.steps and not self._stopped():
                self._one_step()
                if not math.isfinite(self.losses[-1]):
                    return self._finish(diverged=True)
                if self.step in marks:
                    self._evaluate()
                    self._save_checkpoint()
                    tick()
        return self._finish()

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
        if network.memory and isinstance(self.data, TextData):
            return self.data.segment(self.step + self.trial.seed * 7919, size, network)
        return self.data.batch(generator, size, network)

    def _stopped(self) -> bool:
        return bool(self.plan.patience) and self.stale >= self.plan.patience

    @torch.no_grad()
    def measured(self, part: str, n: int) -> dict[str, float]:
        """Mean loss in nats per token or image, and accuracy of a classifier."""
        self.network.eval()
        memory: list[Tensor] | None = None
        losses, right, count = 0.0, 0, 0
        for x, wanted in self.data.examples(part, n, self.plan.network):
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
        self.stale += 1
        if found["loss"] < self.best:
            self.best, self.stale = found["loss"], 0
            self._save(self.weights, self.network.state_dict(), {"step": self.step})

    def _finish(self, diverged: bool = False) -> None:
        log: dict[str, Any] = {
            "trial": {"arm": self.trial.arm, "rate": self.trial.rate, "seed": self.trial.seed},
            "attention": asdict(self.trial.attention),
            "parameters": self.network.n_parameters,
            "steps": self.step,
            "stopped_early": self._stopped() and not diverged,
            "diverged": diverged,
            "curve": self.curve,
        }
        if not diverged:
            self.network.load_state_dict(self._unshared(load_file(self.weights)))
            log |= {part: self.measured(part, self.plan.test_batches) for part in ("valid", "test")}
            inputs = [x for x, _ in self.data.examples("valid", 4, self.plan.network)]
            log["similarity"] = token_similarity(self.network, inputs)
        write_json(self.log, log)
        self.checkpoint.unlink(missing_ok=True)

    def _save(self, path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        shared = "head.weight" if self.plan.network.kind != "vit" else None  # the embedding, once
        plain = {k: v.contiguous() for k, v in tensors.items() if k != shared}
        with replacing(path) as partial:
            save_file(plain, partial, metadata={"headscape": json.dumps(facts)})

    def _unshared(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.plan.network.kind != "vit":
            tensors["head.weight"] = tensors["embedding.weight"]
        return tensors

    def _save_checkpoint(self) -> None:
        tensors = dict(self.network.state_dict())
        for i, state in enumerate(self.optimizer.state_dict()["state"].values()):
            tensors |= {f"optimizer/{i}/{name}": value for name, value in state.items()}
        tensors |= {f"memory/{i}": m for i, m in enumerate(self.memory or [])}
        self._save(self.checkpoint, tensors, {name: getattr(self, name) for name in _PROGRESS})

    def _resume(self) -> None:
        if not self.checkpoint.is_file():
            return
        with safe_open(self.checkpoint, framework="pt") as file:
            facts = json.loads(file.metadata()["headscape"])
        tensors = load_file(self.checkpoint)
        memory = [tensors.pop(f"memory/{i}") for i in range(sum(k.startswith("memory/") for k in tensors))]
        state: dict[int, dict[str, Tensor]] = {}
        for name in [k for k in tensors if k.startswith("optimizer/")]:
            _, i, what = name.split("/")
            state.setdefault(int(i), {})[what] = tensors.pop(name)
        self.network.load_state_dict(self._unshared(tensors))
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.memory = memory or None
        for name in _PROGRESS:
            setattr(self, name, facts[name])


_PROGRESS = ("step", "best", "stale", "curve", "losses")


def _loss(logits: Tensor, wanted: Tensor, label_smoothing: float = 0.0) -> Tensor:
    flat = logits.reshape(-1, logits.shape[-1]).float()
    return F.cross_entropy(flat, wanted.reshape(-1), label_smoothing=label_smoothing)


@torch.no_grad()
def token_similarity(network: Transformer, inputs: list[Tensor]) -> dict[str, Any]:
    """`token_similarities` of all sequences together, before layer 1 and after each layer.

    On text only pairs of different tokens count: the same byte twice is alike from the start. Lists by layer: mean,
    share at or above `ALIKE`, and the histogram.
    """
    network.eval()
    text = network.config.kind != "vit"
    joined: list[list[Any]] = [[] for _ in range(network.config.layers + 1)]
    for x in inputs:
        for layer, hidden in zip(joined, network(x).hidden, strict=True):
            layer += [token_similarities(tokens, x[i] if text else None) for i, tokens in enumerate(hidden.numpy())]
    cosines = [np.concatenate(layer) for layer in joined]
    return {
        "mean": [float(c.mean()) if len(c) else math.nan for c in cosines],
        "aligned": [float((c >= ALIKE).mean()) if len(c) else math.nan for c in cosines],
        "counts": [histogram(c).tolist() for c in cosines],
    }
