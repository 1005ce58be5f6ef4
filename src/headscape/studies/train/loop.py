"""One training run, the unit of work of the study: optimize, evaluate, keep the best weights, resume after a kill.

Beside its log (PATH.json, written last) a run keeps the weights of its best validation loss (PATH.safetensors), those
of every evaluation (PATH-stepN.safetensors) and, while it runs, a checkpoint of weights and optimizer, written every
two minutes (PATH.checkpoint). A step depends only on the seed and its number, so a run that resumes from a checkpoint
gives the bytes of one that was never stopped.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from headscape.attention.threads import torch_threads
from headscape.errors import NotConvergedError
from headscape.hopfield.networks import Attention, NetworkConfig, Transformer
from headscape.hopfield.pretrained import Pretrained, network_of
from headscape.hopfield.trained import first_names, whole_state
from headscape.storage import replacing, write_json
from headscape.studies.train.data import Data, ImageData, stored_data
from headscape.studies.train.measures import LESIONS, by_layer, lesioned

__all__ = ["Plan", "Trial", "run_trial"]

Network = Transformer | Pretrained
SAVE_SECONDS = 120.0
MEASURED_BATCHES = 2
AUTOCAST = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Plan:
    """What all runs of a comparison share."""

    network: NetworkConfig
    steps: int
    batch: int
    warmup: int
    weight_decay: float
    floor: float = 0.0  # learning rate at the end of the cosine, and while cooling down
    warmup_rate: float = 0.0  # learning rate at the start of the warm-up
    cooldown: int = 0  # last steps, at the floor
    label_smoothing: float = 0.0
    evaluations: int = 10
    patience: int = 0  # evaluations without a better validation loss before a run stops; 0 never stops
    eval_batches: int = 32
    test_batches: int = 64
    clip: float = 1.0
    augment: str = "light"
    accumulate: int = 1  # parts of a batch that are run one after the other
    autocast: str = ""  # number type of the forward pass: bfloat16, float16; empty: as the weights
    device: str = "cpu"
    ramp: int = 0  # steps in which a' is raised from 0, in a model that was trained without


@dataclass(frozen=True)
class Trial:
    """One run: an arm, its attention, a peak learning rate, a seed; other steps than the plan's, if not 0.

    A trial that is not `kept` only serves to choose a learning rate: its weights are not measured.
    """

    arm: str
    attention: Attention
    rate: float
    seed: int
    steps: int = 0
    kept: bool = True

    @property
    def name(self) -> str:
        """The name of its files."""
        arm = self.arm.replace(" ", "_")
        return f"{arm}-rate{self.rate:g}-seed{self.seed}" + ("" if self.kept else "-search")


def run_trial(
    path: Path, plan: Plan, data: Data | Path, trial: Trial, threads: int, tick: Callable[[], None] | None = None
) -> None:
    """Train one network, or finish training it, and write its log to `path`.

    The log holds the loss curve, validation and test loss, what the network loses without attention, and what
    `by_layer` measures at every evaluation. A run whose loss is no longer finite, or whose implicit step does not
    converge, ends there as diverged, and its log has the reason.
    `data` may be a folder of `save_record`. `tick` is called after every evaluation.
    """
    with torch_threads(threads):
        _Run(path, plan, stored_data(data, plan.network), trial).train(tick or (lambda: None))


class _Run:
    def __init__(self, path: Path, plan: Plan, data: Data, trial: Trial) -> None:
        self.plan, self.data, self.trial, self.log = plan, data, trial, path
        self.steps = trial.steps or plan.steps
        self.weights, self.checkpoint = path.with_suffix(".safetensors"), path.with_suffix(".checkpoint")
        with torch.random.fork_rng([]):
            torch.manual_seed(trial.seed)  # the same first weights for every arm and rate of a seed
            self.network = network_of(plan.network, trial.attention).to(plan.device)
        decayed = [p for p in self.network.parameters() if p.dim() > 1]
        rest = [p for p in self.network.parameters() if p.dim() <= 1]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": rest, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(
            groups, lr=trial.rate, betas=(0.9, 0.98), weight_decay=plan.weight_decay, fused=True
        )
        self.scaler = torch.amp.GradScaler(plan.device, enabled=plan.autocast == "float16")
        self.memory: list[Tensor] | None = None
        self.step, self.best, self.stale = 0, math.inf, 0
        self.curve: list[dict[str, float]] = []
        self.losses: list[float] = []
        self.layers: list[dict[str, Any]] = []

    def train(self, tick: Callable[[], None]) -> None:
        try:
            self._train(tick)
        except NotConvergedError as error:
            self._finish(str(error))

    def _train(self, tick: Callable[[], None]) -> None:
        plan = self.plan
        self._resume()
        for _ in self.curve:
            tick()
        marks = {round(self.steps * (k + 1) / plan.evaluations) for k in range(plan.evaluations)}
        saved, took = time.monotonic(), 0.0
        with torch.random.fork_rng([]):
            while self.step < self.steps and not self._stopped():
                self._one_step()
                if not math.isfinite(self.losses[-1]):
                    return self._finish("the loss did not stay finite")
                marked = self.step in marks
                if marked:
                    self._evaluate()
                if marked or time.monotonic() - saved > max(SAVE_SECONDS, 20 * took):
                    began = time.monotonic()
                    self._save_checkpoint()
                    saved = time.monotonic()
                    took = saved - began
                if marked:
                    tick()
        if not math.isfinite(self.best):  # so no weights were kept
            return self._finish("the validation loss was never finite")
        return self._finish()

    def _one_step(self) -> None:
        plan, trial, seed = self.plan, self.trial, self.trial.seed
        torch.manual_seed(seed * 1_000_003 + self.step)  # dropout
        generator = torch.Generator().manual_seed(seed * 1_000_003 + self.step)
        self.network.train()
        if isinstance(self.network, Pretrained):
            self.network.share = trial.attention.alpha_hidden * min(1.0, (self.step + 1) / max(1, plan.ramp))
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(self.step)
        x, wanted = self._batch(generator)
        self.optimizer.zero_grad()
        before = [list(each) for each in zip(*[m.chunk(plan.accumulate) for m in self.memory or []], strict=True)]
        after: list[list[Tensor]] = []
        total = 0.0
        for i, (part, goal) in enumerate(zip(x.chunk(plan.accumulate), wanted.chunk(plan.accumulate), strict=True)):
            with self._autocast():
                out = self.network(part, before[i] if before else None)
                loss = _loss(out.logits, goal, plan.label_smoothing) * (len(part) / len(x))
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            after.append(out.memory)
            total += loss.item()
        self.memory = [torch.cat(each) for each in zip(*after, strict=True)] or None
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), plan.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.losses.append(total)
        self.step += 1

    def _autocast(self) -> AbstractContextManager[None]:
        dtype = AUTOCAST.get(self.plan.autocast)
        return torch.autocast(self.plan.device.split(":")[0], dtype, enabled=dtype is not None)

    def _rate(self, step: int) -> float:
        """Linear warm-up, a cosine down to the floor, and the cool-down there."""
        plan, peak = self.plan, self.trial.rate
        if step < plan.warmup:
            return plan.warmup_rate + (peak - plan.warmup_rate) * (step + 1) / plan.warmup
        share = (step - plan.warmup) / max(1, self.steps - plan.warmup - plan.cooldown)
        return plan.floor + (peak - plan.floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))

    def _batch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        network, size, device = self.plan.network, self.plan.batch, self.plan.device
        if isinstance(self.data, ImageData):
            x, wanted = self.data.batch(generator, size, network, self.plan.augment)
        elif network.memory:
            x, wanted = self.data.segment(self.step + self.trial.seed * 7919, size, network)
        else:
            x, wanted = self.data.batch(generator, size, network)
        return x.to(device), wanted.to(device)

    def _stopped(self) -> bool:
        return bool(self.plan.patience) and self.stale >= self.plan.patience

    @torch.no_grad()
    def measured(self, part: str, n: int) -> dict[str, float]:
        """Mean loss in nats per token or image, and accuracy of a classifier."""
        self.network.eval()
        memory: list[Tensor] | None = None
        losses, right, count = 0.0, 0, 0
        for x, wanted in self._examples(part, n):
            with self._autocast():
                out = self.network(x, memory)
            memory = out.memory or None
            losses += float(_loss(out.logits, wanted)) * wanted.numel()
            right += int((out.logits.argmax(-1) == wanted).sum())
            count += wanted.numel()
        return {"loss": losses / count, "accuracy": right / count}

    def _examples(self, part: str, n: int) -> list[tuple[Tensor, Tensor]]:
        found = self.data.examples(part, n, self.plan.network)
        return [(x.to(self.plan.device), wanted.to(self.plan.device)) for x, wanted in found]

    def _evaluate(self) -> None:
        found = self.measured("valid", self.plan.eval_batches)
        since = self.losses[int(self.curve[-1]["step"]) if self.curve else 0 :]
        self.curve.append({"step": self.step, "train": float(np.mean(since)), **found})
        state = self.network.state_dict()
        rising = bool(self.trial.attention.alpha_hidden) and self.step < self.plan.ramp
        self.stale += not rising
        if found["loss"] < self.best and not rising:  # weights are judged with the whole a'
            self.best, self.stale = found["loss"], 0
            self._save(self.weights, state, {"step": self.step})
        if self.trial.kept:
            inputs = [x for x, _ in self._examples("valid", MEASURED_BATCHES)]
            self.layers.append({"step": self.step} | by_layer(self.network, inputs))
            if not isinstance(self.network, Pretrained):  # too large to keep at every evaluation
                place = self.log.with_name(f"{self.log.stem}-step{self.step}.safetensors")
                self._save(place, state, {"step": self.step})

    def _finish(self, reason: str = "") -> None:
        """Write the log; with a reason, that of a run that diverged."""
        log: dict[str, Any] = {
            "trial": {name: getattr(self.trial, name) for name in ("arm", "rate", "seed", "kept")},
            "attention": asdict(self.trial.attention),
            "parameters": sum(p.numel() for p in self.network.parameters()),
            "steps": self.step,
            "stopped_early": self._stopped() and not reason,
            "diverged": bool(reason),
            "curve": self.curve,
            "layers": self.layers,
        }
        if reason:
            log["reason"] = reason
        else:
            self.network.load_state_dict(whole_state(self.network, load_file(self.weights)))
            log |= {part: self.measured(part, self.plan.test_batches) for part in ("valid", "test")}
            for lesion in LESIONS if self.trial.kept else ():
                with lesioned(self.network, lesion):
                    log[lesion] = self.measured("test", self.plan.test_batches)
        write_json(self.log, log)
        self.checkpoint.unlink(missing_ok=True)

    def _save(self, path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        plain = {name: tensors[name].contiguous() for name, first in first_names(tensors).items() if name == first}
        with replacing(path) as partial:
            save_file(plain, partial, metadata={"headscape": json.dumps(facts)})

    def _save_checkpoint(self) -> None:
        tensors = dict(self.network.state_dict())
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer/{i}/{name}": value for name, value in state.items()}
        tensors |= {f"memory/{i}": m for i, m in enumerate(self.memory or [])}
        facts = {name: getattr(self, name) for name in _PROGRESS} | {"scaler": self.scaler.state_dict()}
        self._save(self.checkpoint, tensors, facts)

    def _resume(self) -> None:
        if not self.checkpoint.is_file():
            return
        with safe_open(self.checkpoint, framework="pt") as file:
            facts = json.loads(file.metadata()["headscape"])
        tensors = load_file(self.checkpoint, device=self.plan.device)
        memory = [tensors.pop(f"memory/{i}") for i in range(sum(k.startswith("memory/") for k in tensors))]
        state: dict[int, dict[str, Tensor]] = {}
        for name in [k for k in tensors if k.startswith("optimizer/")]:
            _, i, what = name.split("/")
            state.setdefault(int(i), {})[what] = tensors.pop(name)
        self.network.load_state_dict(whole_state(self.network, tensors))
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.scaler.load_state_dict(facts["scaler"])
        self.memory = memory or None
        for name in _PROGRESS:
            setattr(self, name, facts[name])


_PROGRESS = ("step", "best", "stale", "curve", "losses", "layers")


def _loss(logits: Tensor, wanted: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross entropy; targets are classes, or for images distributions over them."""
    flat = logits.reshape(-1, logits.shape[-1]).float()
    goal = wanted if wanted.is_floating_point() else wanted.reshape(-1)
    return F.cross_entropy(flat, goal, label_smoothing=label_smoothing)
