"""Models larger than one device: layers on several devices, in memory, or on disk, from where they are read when their turn comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from headscape.errors import InputError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["DeviceMap", "device_map_of", "on_disk", "present"]

DeviceMap = str | Mapping[str, str | int]
"""How a model is spread: "auto" (what fits goes on the devices, the rest to memory and disk), "disk", or a device by module name."""


def device_map_of(given: DeviceMap, module: nn.Module) -> str | dict[str, str | int]:
    """The map as accelerate takes it; `module` is the network without weights.

    "disk" leaves every layer of the stacks on disk and keeps the rest in memory: the smallest memory, and a pass that
    reads all weights once.
    """
    from torch import nn

    if not isinstance(given, str):
        return dict(given)
    if given != "disk":
        if given != "auto":
            raise InputError(f"device_map is 'auto', 'disk' or a mapping of module names to devices, not {given!r}")
        return given
    parts = module.named_modules()
    stacks = {name: len(part) for name, part in parts if isinstance(part, nn.ModuleList) and len(part)}
    outer = [name for name in stacks if not any(name.startswith(f"{other}.") for other in stacks)]
    layers = {f"{name}.{i}" for name in outer for i in range(stacks[name])}
    own = {
        name
        for name, part in module.named_modules()
        if not any(f"{name}.".startswith(f"{layer}.") for layer in layers) and not list(part.children())
    }
    loose = [n for n, _ in [*module.named_parameters(), *module.named_buffers()] if n.rpartition(".")[0] not in own]
    alone = {n for n in loose if not any(n.startswith(f"{layer}.") for layer in layers)}
    return {**dict.fromkeys(sorted(own | alone), "cpu"), **dict.fromkeys(sorted(layers), "disk")}


def on_disk(module: nn.Module) -> bool:
    """Whether any of its weights are elsewhere and only read during a pass."""
    return any(parameter.is_meta for parameter in module.parameters())


@contextmanager
def present(module: nn.Module) -> Iterator[None]:
    """Keep the weights of a module in memory inside a with block, wherever they are stored."""
    if not on_disk(module):
        yield
        return
    from accelerate.utils import align_module_device

    with ExitStack() as stack:
        for part in module.modules():
            if any(parameter.is_meta for parameter in part.parameters(recurse=False)):
                stack.enter_context(align_module_device(part))
        yield
