"""The networks that `headscape train` left in a run: found by arm, seed and step, with inputs they never trained on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from headscape.errors import InputError
from headscape.hopfield.networks import Attention, NetworkConfig, Transformer
from headscape.hopfield.pretrained import Pretrained, network_of
from headscape.runs import Run
from headscape.storage import read_arrays, read_json

__all__ = ["Trained", "find_trained", "first_names", "is_training_run", "whole_state"]


def is_training_run(path: str | Path) -> bool:
    """Whether a folder is a run of `headscape train`."""
    return (Path(path) / "run.json").is_file() and Run.open(path).meta.get("config", {}).get("kind") == "train"


def first_names(state: Mapping[str, Tensor]) -> dict[str, str]:
    """For each weight the first name of its storage: embedding and head may share one, which is saved once."""
    owner: dict[tuple[int, int], str] = {}
    return {name: owner.setdefault((t.data_ptr(), t.numel()), name) for name, t in state.items()}


def whole_state(network: Transformer | Pretrained, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A stored state with the weights that are shared under all their names."""
    return {name: tensors[first] for name, first in first_names(network.state_dict()).items()}


@dataclass(frozen=True)
class Trained:
    """One network of a training run: its weights at the best validation loss, or at the evaluation after `step` steps."""

    arm: str
    seed: int
    step: int | None
    config: NetworkConfig
    attention: Attention
    weights: Path
    data: Path

    def network(self) -> Transformer | Pretrained:
        """The network with its weights."""
        made = network_of(self.config, self.attention)
        made.load_state_dict(whole_state(made, load_file(self.weights)))
        return made.eval()

    def untrained(self, seed: int) -> Transformer:
        """The same kind of network before training."""
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            return Transformer(self.config, self.attention).eval()

    def inputs(self, n: int) -> list[Tensor]:
        """N windows (1, token) or images (1, channel, height, width) of the validation part, evenly spread."""
        arrays = read_arrays(self.data / "result.safetensors")[0]
        if self.config.kind != "vit":
            part, size = arrays["parts/valid"], self.config.tokens
            starts = np.linspace(0, len(part) - size, n).astype(int)
            return [torch.from_numpy(part[start : start + size].astype(np.int64))[None] for start in starts]
        said = read_json(self.data / "result.json")["fields"]
        images = arrays["images/valid"]
        chosen = images[np.linspace(0, len(images) - 1, n).astype(int)].astype(np.float32)
        x = torch.from_numpy((chosen - said["mean"]) / said["deviation"]).float()
        x = x[:, None] if x.dim() == 3 else x.permute(0, 3, 1, 2)
        if x.shape[-1] != self.config.image:
            x = torch.nn.functional.interpolate(x, (self.config.image,) * 2, mode="bilinear", align_corners=False)
        return [x[i : i + 1] for i in range(n)]


def find_trained(run: Path, config: Mapping[str, Any], arm: str, seed: int | None, step: int | None) -> Trained:
    """A finished network of a training run; of several learning rates that of the lowest validation loss.

    Parameters
    ----------
    config
        Of the run: its `network`.
    seed, step
        None for the first seed, and for the weights of the best validation loss.

    Raises an `InputError` that lists the existing ones where there is none.
    """
    units = run / "train" / "units"
    found = []
    for path in sorted(units.glob("*-seed*.json")):
        log = read_json(path)
        if log["trial"]["kept"] and not log["diverged"]:
            found.append((log["trial"]["arm"], log["trial"]["seed"], log["valid"]["loss"], path, log))
    matching = [one for one in found if one[0] == arm and seed in (None, one[1])]
    if not matching:
        there = ", ".join(sorted({f"{name} (seed {number})" for name, number, *_ in found})) or "none"
        raise InputError(
            f"{run} has no finished network of arm {arm!r}{'' if seed is None else f', seed {seed}'}: {there}"
        )
    name, number, _, path, log = min(matching, key=lambda one: one[1:3])
    weights = (
        path.with_suffix(".safetensors") if step is None else path.with_name(f"{path.stem}-step{step}.safetensors")
    )
    if not weights.is_file():
        steps = sorted(int(re.findall(r"-step(\d+)", p.name)[-1]) for p in units.glob(f"{path.stem}-step*"))
        raise InputError(f"{run} keeps no weights of step {step}; there are {', '.join(map(str, steps))}")
    known = {f.name for f in fields(Attention)}
    attention = Attention(**{key: value for key, value in log["attention"].items() if key in known})
    data = next(iter(sorted(units.glob("data-*"))))
    return Trained(name, number, step, NetworkConfig(**config["network"]), attention, weights, data)
