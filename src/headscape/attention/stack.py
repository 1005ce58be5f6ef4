"""The stack of layers of a network: found in one way, recorded, and replayed up to a layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from headscape.attention.sites import Site
from headscape.attention.wrapping import Model

__all__ = ["Stack", "stack_of"]


@dataclass(frozen=True)
class Stack:
    """The layers of a network that runs them one after the other, by name, in their order.

    `place` gives, for the name of an attention module, the number of the layer it belongs to.
    """

    layers: dict[str, nn.Module]
    place: dict[str, int]

    def first(self, sites: Iterable[Site]) -> int:
        """Number of the first layer that holds one of these attention modules; 0 for none."""
        return min((self.place[site.name] for site in sites), default=0)

    @property
    def one_attention_each(self) -> bool:
        """Whether every layer has exactly one attention module."""
        return sorted(self.place.values()) == list(range(len(self.layers)))

    @contextmanager
    def recorded(self) -> Iterator[list[Any]]:
        """Collect what each layer returns, inside a with block."""
        outputs: list[Any] = []
        with ExitStack() as hooks:
            for layer in self.layers.values():
                handle = layer.register_forward_hook(lambda _, __, result: outputs.append(result))
                hooks.callback(handle.remove)
            yield outputs

    @contextmanager
    def replayed(self, outputs: Sequence[Any], first: int) -> Iterator[None]:
        """Let every layer below `first` return what it returned before, without computing it.

        That is exact where nothing below that layer has changed.
        """
        lower = list(self.layers.values())[:first]
        own = [layer.__dict__.get("forward") for layer in lower]  # of a model on several devices; else its class has it
        for layer, output in zip(lower, outputs[:first], strict=True):
            layer.__dict__["forward"] = lambda *_, _output=output, **__: _output
        try:
            yield
        finally:
            for layer, forward in zip(lower, own, strict=True):
                layer.__dict__.pop("forward", None)
                if forward is not None:
                    layer.__dict__["forward"] = forward


def stack_of(model: Model) -> Stack | None:
    """The stack of layers of a model; None for one that has several stacks, or attention outside of its only one."""
    modules = dict(model.module.named_modules())
    names = [_layer_name(site.name, modules) for site in model.sites]
    lists = {name.rpartition(".")[0] for name in names}
    if "" in names or len(lists) != 1:
        return None
    parent = lists.pop()
    layers = {f"{parent}.{number}": layer for number, layer in modules[parent].named_children()}
    order = {name: number for number, name in enumerate(layers)}
    return Stack(layers, {site.name: order[name] for site, name in zip(model.sites, names, strict=True)})


def _layer_name(site: str, modules: dict[str, nn.Module]) -> str:
    """The member of a `ModuleList` that an attention module belongs to, '' if there is none."""
    parts = site.split(".")
    for end in range(1, len(parts)):
        if isinstance(modules[".".join(parts[:end])], (nn.ModuleList, nn.Sequential)):
            return ".".join(parts[: end + 1])
    return ""
