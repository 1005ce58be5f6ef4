"""The gains of the norms that a head's values come from and its output goes through, found by running the network once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headscape.attention.placing import present
from headscape.attention.sites import example_input, run
from headscape.attention.wrapping import Model

__all__ = ["Norm", "norms_beside"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Norm:
    """The linear part of a norm: its gains, after the mean over features is taken off where it `centres`.

    What it divides by is one positive number for each token, and changes no sign.

    >>> from headscape.attention.norm_gains import Norm
    >>> Norm(np.array([1.0, 3.0]), centres=False) @ np.ones((2, 1))
    array([[1.],
           [3.]])
    """

    gains: Array
    centres: bool

    def __matmul__(self, X: Array) -> Array:
        """The norm of the columns of X, without their division."""
        return self.gains[:, None] * (X - X.mean(axis=0) if self.centres else X)

    @classmethod
    def of(cls, module: nn.Module, width: int) -> Norm:
        """Read from what the module makes of three vectors, since families store gains as g, as 1 + g, or elsewhere."""
        signs = torch.ones(width)
        signs[1::2] = -1  # length and variance 1, mean 0: no norm divides it
        with torch.no_grad(), present(module):
            known = next(module.parameters())
            given = torch.stack([signs, torch.ones(width), torch.zeros(width)]).to(known.device, known.dtype)
            found, ones, zeros = module(given).double().cpu().numpy()
        gains = (found - zeros) * signs.double().numpy()
        return cls(gains, centres=bool(np.abs(ones - zeros).max() < np.abs(gains).max() / 2))


def norms_beside(model: Model, inputs: Iterable[nn.Module], outputs: Iterable[nn.Module]) -> Mapping[nn.Module, Norm]:
    """The norm whose output each of the modules `inputs` reads, and the one that reads the output of each of `outputs`.

    A module that no norm stands beside is left out.
    """
    norms = [module for module in model.module.modules() if _is_norm(module)]
    reading, writing = set(inputs), set(outputs)
    made: dict[Any, nn.Module] = {}  # by the place of a tensor in memory: the norm, or the map, that made it
    alive: list[Tensor] = []  # so that no place is used twice
    beside: dict[nn.Module, nn.Module] = {}

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        maker = None if given is None else made.get(_place(given))
        if maker is not None and module in reading and maker not in writing:
            beside[module] = maker
        elif maker in writing and module not in reading:
            beside[maker] = module

    def after(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            made[_place(output)] = module
            alive.append(output)

    with ExitStack() as hooks, torch.no_grad():
        for module in {*norms, *reading}:
            hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        for module in {*norms, *writing}:
            hooks.callback(module.register_forward_hook(after).remove)
        run(model, example_input(model))
    widths = {norm: next(norm.parameters()).numel() for norm in set(beside.values())}
    read = {norm: Norm.of(norm, width) for norm, width in widths.items()}
    return {module: read[norm] for module, norm in beside.items()}


def _is_norm(module: nn.Module) -> bool:
    """A module without parts whose only parameters are a gain for each feature and perhaps a bias."""
    parameters = list(module.parameters(recurse=False))
    return not list(module.children()) and bool(parameters) and all(one.ndim == 1 for one in parameters)


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape)
