"""A language model that `headscape train` left in a run, as a model to capture: what it attends to, memory included."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from headscape.attention.models import Model, device_of
from headscape.attention.tapping import untapped
from headscape.errors import InputError
from headscape.hopfield.layer import HopfieldAttention
from headscape.hopfield.networks import Output, Transformer
from headscape.hopfield.trained import find_trained
from headscape.runs import Run

__all__ = ["Bytes", "Remembering", "trained_model"]


class Bytes:
    """The tokenizer of a network that reads bytes: a token is a byte of UTF-8, named by its character."""

    def encode(self, text: str, **_: object) -> list[int]:
        """The bytes of a text."""
        return list(text.encode())

    def decode(self, ids: Sequence[int], **_: object) -> str:
        """The text of some bytes; half a character becomes its number."""
        return bytes(ids).decode("utf-8", errors="replace")

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Bytes by number."""
        return [f"<{i:02x}>" for i in ids]


class Remembering(nn.Module):
    """A network of `headscape train` that reads a context: its last segment attends, what comes before is memory.

    Of n tokens the last `segment` are queries and all n are keys: a Transformer-XL of 64 tokens and as much memory
    gives maps of 64 x 128. Without a memory all tokens are queries.
    """

    def __init__(self, network: Transformer) -> None:
        super().__init__()
        self.network = network
        self.segment = network.config.tokens

    def forward(self, input_ids: Tensor) -> Output:
        """The last segment of ids (batch, token), with the memory that the tokens before it left; taps see it alone."""
        earlier, last = input_ids[:, : -self.segment], input_ids[:, -self.segment :]
        memory = None
        if earlier.shape[1]:
            with untapped(self):
                memory = self.network(earlier).memory
        out: Output = self.network(last, memory)
        return out


def trained_model(path: str | Path, device: str = "auto", random_init: int | None = None) -> Model:
    """The network of a training run with standard attention as a `Model`; with a seed `random_init`, as it was before training.

    Raises an `InputError` for networks that do not read bytes.
    """
    run = Run.open(path)
    found = find_trained(run.path, run.meta["config"], "standard", None, None)
    if found.config.kind not in ("gpt", "xl") or run.meta["inputs"]["tokenizer"] != "bytes":
        raise InputError(
            f"{path} holds a {found.config.kind}; a capture takes networks of kind gpt or xl that were trained on bytes"
        )
    network = found.network() if random_init is None else found.untrained(random_init)
    assert isinstance(network, Transformer)
    module = Remembering(network).to(device_of(device)).eval()
    return Model(
        module=module,
        tokenizer=Bytes(),
        images=None,
        source=str(path),
        family={"xl": "Transformer-XL", "gpt": "GPT"}[found.config.kind],
        task="module",
        n_kv_heads=found.config.kv_heads or found.config.heads,
        n_parameters=network.n_parameters,
        licence="unknown",
        max_tokens=found.config.tokens + found.config.memory,
        device=device_of(device),
        dtype="float32",
        weights=(found.weights,),
        random_init=random_init,
        location=str(Path(path).absolute()),
        attention=tuple(name for name, part in module.named_modules() if isinstance(part, HopfieldAttention)),
        example={"input_ids": torch.arange(12)[None]},
    )
