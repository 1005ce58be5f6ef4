"""Arguments that are ready to run: token ids, and what a tokenizer or processor made, one dictionary per input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headscape.attention.models import Model
from headscape.errors import InputError

__all__ = ["arguments_of", "with_decoder"]

_PER_TOKEN = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


def arguments_of(inputs: Any) -> list[dict[str, Tensor]] | None:
    """Inputs as arguments, one dictionary of tensors (1, ...) each; None for other inputs (texts, images).

    Token ids come as integers in a list, array or tensor, (n_token,) or (n_input, n_token), or a list of such of any
    lengths; a dictionary (a `BatchEncoding` too) holds them as "input_ids" with whatever else the model takes. Padding,
    where the attention mask is 0, is cut off.
    """
    if isinstance(inputs, Mapping):
        return _of_mapping(inputs)
    if isinstance(inputs, (list, tuple)) and inputs and all(isinstance(one, Mapping) for one in inputs):
        return [arguments for one in inputs for arguments in _of_mapping(one)]
    rows = _rows(inputs)
    return None if rows is None else [{"input_ids": row[None]} for row in rows]


def _rows(inputs: Any) -> list[Tensor] | None:
    """Token ids as rows, None for anything else."""
    if isinstance(inputs, (Tensor, np.ndarray)):
        ids = torch.as_tensor(inputs).cpu()
        if ids.is_floating_point() or ids.dtype == torch.bool or ids.ndim not in (1, 2):
            return None
        _not_empty(ids)
        return list(ids.long().reshape(-1, ids.shape[-1]))
    if not isinstance(inputs, Sequence) or isinstance(inputs, str) or not len(inputs):
        return None
    if all(isinstance(one, (int, np.integer)) and not isinstance(one, bool) for one in inputs):
        return [torch.tensor([int(one) for one in inputs])]
    if not all(isinstance(one, (Tensor, np.ndarray, list, tuple)) for one in inputs):
        return None
    for one in inputs:
        _not_empty(torch.empty(len(one)))
    parts = [_rows(one) for one in inputs]
    return None if any(part is None for part in parts) else [row for part in parts if part for row in part]


def _not_empty(ids: Tensor) -> None:
    if not ids.numel():
        raise InputError("no token ids given: the input is empty")


def _of_mapping(given: Mapping[str, Any]) -> list[dict[str, Tensor]]:
    arrays = {str(name): _tensor(name, value) for name, value in given.items() if value is not None}
    if not arrays:
        raise InputError("no inputs given: the dictionary is empty")
    main = next(
        (name for name in ("input_ids", "input_features", "input_values") if name in arrays), next(iter(arrays))
    )
    if not arrays[main].ndim:
        raise InputError(f"{main} is a single number; the inputs of a network are lists, arrays or tensors")
    if arrays[main].ndim == 1:  # one input without its batch axis
        arrays = {name: value[None] for name, value in arrays.items()}
    _not_empty(arrays[main])
    n = len(arrays[main])
    odd = [name for name, value in arrays.items() if n > 1 and (not value.ndim or len(value) != n)]
    if odd:
        raise InputError(
            f"{main} holds {n} inputs, {odd[0]} has shape {tuple(arrays[odd[0]].shape)} and cannot be split between "
            "them; give a list with one dictionary per input"
        )
    return [_unpadded({name: v[i : i + 1] if n > 1 else v for name, v in arrays.items()}) for i in range(n)]


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(value) if isinstance(value, (list, tuple)) else value).detach().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{name} cannot be a tensor; rows of different lengths go in a list with one dictionary per input"
        ) from None


def _unpadded(arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the tokens that the attention mask hides, and without a mask that hides nothing."""
    mask, ids = arguments.get("attention_mask"), arguments.get("input_ids")
    if ids is None or mask is None or mask.shape != ids.shape:
        return arguments
    kept = mask[0].bool()
    if not kept.any():
        raise InputError("the attention mask hides every token of an input")
    shorter = {n: v[:, kept] if n in _PER_TOKEN and v.shape == ids.shape else v for n, v in arguments.items()}
    return {name: value for name, value in shorter.items() if name != "attention_mask"}


def with_decoder(model: Model, arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    """The arguments of an encoder-decoder with what its decoder reads, where they do not say it.

    The decoder reads the labels if there are any, else the text of the encoder, one step behind; beside audio without
    labels it reads its start token alone.
    """
    if model.task != "seq2seq-lm" or "decoder_input_ids" in arguments:
        return arguments
    found = dict(arguments)
    wanted = found.pop("labels", found.get("input_ids"))
    ids = torch.tensor([[_start_of(model)]])
    if wanted is not None:
        ids = torch.cat([ids, wanted[:, :-1].clamp(min=0).long()], dim=1)
    return found | {"decoder_input_ids": ids}


def _start_of(model: Model) -> int:
    """The token an encoder-decoder begins to write with."""
    generation = getattr(model.module, "generation_config", None)
    for config in (model.config, getattr(model.module, "config", None), generation):
        if (found := getattr(config, "decoder_start_token_id", None)) is not None:
            return int(found)
    for name in ("bos_token_id", "pad_token_id"):  # as transformers does
        if (found := getattr(model.config, name, None)) is not None:
            return int(found)
    raise InputError(
        f"{model.source} does not say which token its decoder starts with; set decoder_start_token_id in its config"
    )
