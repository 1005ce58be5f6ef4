"""Follow the heads of a network while it trains: its attention on fixed inputs, every so many steps, in run directories."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headscape.attention.capture import capture
from headscape.attention.wrapping import Model, evaluating, wrap_module
from headscape.checks import integer
from headscape.errors import InputError

__all__ = ["Tracker", "repeated_tokens"]

SHARDED = {"FullyShardedDataParallel", "DTensor"}
"""Types of modules and parameters by which a network is divided (FSDP, tensor parallel); DeepSpeed marks its parameters."""


class Tracker:
    """Captures the attention of a model at regular steps of its training; `headscape series OUT` shows the result.

    Call ``tracker.step(model)`` once per training step, or give ``tracker.callback()`` to the Trainer of transformers.
    The model may be wrapped: by torch.compile, DataParallel, DistributedDataParallel, or accelerate.
    Each capture is a run directory OUT/step-00000100 on the same inputs. The model is put into evaluation for it and
    then back as it was; random numbers are not drawn, so training continues as if nothing had happened.

    Parameters
    ----------
    every
        Steps from one capture to the next.
    inputs
        What `hs.capture` takes: text, prompts, token ids, images, or the arguments of a module. Without it, random
        tokens that are repeated once, which show induction heads.
    out
        Folder of the series, new or of the same training.
    tokenizer
        For text, where neither the model in training nor the Trainer brings one.
    tokens, batches
        Length of a context and how many; few are enough, and cheap.

    Attributes
    ----------
    seconds
        Time spent in captures so far. share: of the time since the first step.

    Raises
    ------
    InputError
        From the first capture, if it cannot be made. Later ones only warn: a full disk does not end a training.

    >>> tracker = hs.Tracker(every=2, out="series", tokens=12, batches=2)
    >>> [tracker.step(model) for _ in range(4)]  # call it after each step of the optimizer
    [False, True, False, True]
    >>> hs.series("series").steps
    array([2, 4])
    """

    def __init__(
        self,
        every: int = 100,
        inputs: Any = None,
        out: str | Path = "runs/series",
        *,
        tokenizer: Any = None,
        tokens: int = 64,
        batches: int = 4,
        random_state: int = 0,
    ) -> None:
        self.every = integer("every", every, low=1)
        self.out, self.inputs, self.tokenizer, self.random_state = Path(out), inputs, tokenizer, random_state
        self.tokens, self.batches = integer("tokens", tokens, low=2), integer("batches", batches, low=1)
        self.count, self.seconds = 0, 0.0
        self._begun: float | None = None
        self._captured = 0

    def step(self, model: torch.nn.Module | Model, step: int | None = None) -> bool:
        """Call this after every training step; returns whether it was captured. By default `step` is counted from 1.

        If several processes train one network, the first captures.
        """
        self._begun = time.perf_counter() if self._begun is None else self._begun
        self.count = self.count + 1 if step is None else step
        if self.count % self.every:
            return False
        start = time.perf_counter()
        try:
            if not _captures(model):
                return False
            self._capture(model)
        except Exception as error:
            if not self._captured:
                raise
            warnings.warn(f"step {self.count} was not captured: {error}", stacklevel=2)
        self._captured += 1
        self.seconds += time.perf_counter() - start
        return True

    @property
    def share(self) -> float:
        """Share of the time since the first step that captures took."""
        return 0.0 if self._begun is None else self.seconds / max(time.perf_counter() - self._begun, 1e-9)

    def _capture(self, given: torch.nn.Module | Model) -> None:
        with evaluating(given):
            model = _as_it_is(given)
            model.tokenizer = model.tokenizer or self.tokenizer
            if self.inputs is None:
                self.inputs = repeated_tokens(model, self.tokens, self.batches, self.random_state)
            place = self.out / f"step-{self.count:08d}"
            options: dict[str, Any] = {
                "tokens": self.tokens,
                "batches": self.batches,
                "random_state": self.random_state,
            }
            with torch.random.fork_rng(), as_written(model.module):
                capture(model, self.inputs, out=place, **options)

    def callback(self) -> Any:
        """A callback for the Trainer of transformers, which captures after the steps that this tracker is due."""
        from transformers import PreTrainedTokenizerBase, TrainerCallback

        tracker = self

        class Following(TrainerCallback):
            """Calls the tracker at the start and after every step of the optimizer."""

            def on_train_begin(self, args: Any, state: Any, control: Any, **known: Any) -> None:
                reader = known.get("processing_class")
                if tracker.tokenizer is None and isinstance(reader, PreTrainedTokenizerBase):
                    tracker.tokenizer = reader
                tracker.step(known["model"], int(state.global_step))

            def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
                tracker.step(known["model"], int(state.global_step))

        return Following()


def _as_it_is(given: torch.nn.Module | Model) -> Model:
    """The network in training as a separate model: no longer that of the files it was loaded from."""
    if not isinstance(given, Model):
        return wrap_module(given)
    inside = wrap_module(given.module, given.attention)
    source = inside.source if given.weights else given.source
    return replace(given, module=inside.module, source=source, weights=(), location=None, random_init=None)


def _captures(given: Any) -> bool:
    """Whether this process captures: the only one of a training, or the first of those that hold the whole network."""
    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return True
    module = given.module if isinstance(given, Model) else given
    kinds = {type(part).__name__ for part in (*module.modules(), *module.parameters())}
    if kinds & SHARDED or any(hasattr(parameter, "ds_id") for parameter in module.parameters()):
        raise InputError(
            "the weights are divided among the processes, none of which can run the network alone: save checkpoints, and follow "
            "those with headscape series"
        )
    return group.get_rank() == 0


@contextmanager
def as_written(module: torch.nn.Module) -> Iterator[None]:
    """Run a module that was compiled in place as it was written: compiled code does not show its attention."""
    compiled = {part: part._compiled_call_impl for part in module.modules() if part._compiled_call_impl is not None}
    try:
        for part in compiled:
            part._compiled_call_impl = None
        yield
    finally:
        for part, call in compiled.items():
            part._compiled_call_impl = call


def repeated_tokens(model: Model, tokens: int, batches: int, seed: int = 0) -> list[dict[str, Any]]:
    """Random token ids that repeat after a distance that differs between batches: the inputs that show induction heads.

    As the distance differs, a head that looks back by a fixed number of positions holds the role in one batch at most.
    """
    size = getattr(model.config, "vocab_size", None)
    if size is None:
        raise InputError(f"{model.source} does not say how many tokens it knows: give the tracker inputs")
    rng = np.random.default_rng(seed)
    periods = np.linspace(tokens // 2, max(2, tokens // 4), batches).round().astype(int)
    rows = [np.resize(rng.integers(size, size=period), tokens) for period in periods]
    return [{"input_ids": torch.from_numpy(row)[None]} for row in rows]
