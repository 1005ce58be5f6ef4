"""Write a network without some of its heads: as files any loader takes, checked before they count as written."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy.typing as npt
import torch
from torch import nn

from headscape.attention import bundled
from headscape.attention.capture import PARITY_TOLERANCE, main_output
from headscape.attention.loading import quiet
from headscape.attention.models import Model, load_model, wrap_module
from headscape.attention.projections import input_width, output_projections
from headscape.attention.ragged import is_ragged, write_plans
from headscape.attention.sites import example_input, run, select_heads
from headscape.attention.tapping import attention_implementation
from headscape.errors import HeadscapeError, InputError
from headscape.pruning import twins
from headscape.pruning.compensation import Fold, folded, folds_of
from headscape.pruning.twins import Folds, Twin
from headscape.runs import human_bytes
from headscape.storage import write_json
from headscape.tensor import HeadId

__all__ = ["KINDS", "Change", "Export", "export_pruned"]

Kind = Literal["masked", "uniform", "ragged"]
KINDS: dict[str, Callable[[Model, dict[str, list[int]], Folds], Twin]] = {
    "masked": twins.masked,
    "ragged": twins.ragged,
    "uniform": twins.uniform,
}
CHECK_TOKENS = 48  # of the input on which the written network is compared with the ablated one
TIMED_TOKENS = 256
NEW_TOKENS = 32


class Change(NamedTuple):
    """A number of the intact network and of the exported one.

    >>> Change(before=200, after=150).change
    -0.25
    """

    before: float
    after: float

    @property
    def change(self) -> float:
        """Relative to the intact network."""
        return self.after / self.before - 1


@dataclass(frozen=True)
class Export:
    """What was written, and how it compares.

    `heads` were removed; of these `zeroed` are still in the weights, with an output of zero. `bytes` are those of the
    weight files, in the dtype of the model. `max_difference` is the largest difference to the logits of the ablated
    model, whose largest logit is `scale`. `forward` and `generation` are seconds, None unless asked for.
    """

    path: Path
    kind: str
    source: str
    heads: tuple[HeadId, ...]
    zeroed: tuple[HeadId, ...]
    n_heads: int
    parameters: Change
    bytes: Change
    max_difference: float
    scale: float
    forward: Change | None = None
    generation: Change | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.source} without {len(self.heads)} of {self.n_heads} heads, {self.kind}, in {self.path}",
            f"parameters {self.parameters.before:,.0f} -> {self.parameters.after:,.0f} ({self.parameters.change:+.1%})",
            f"weights    {human_bytes(int(self.bytes.before))} -> {human_bytes(int(self.bytes.after))} "
            f"({self.bytes.change:+.1%})",
            f"logits     within {self.max_difference:.1g} of the ablated model's (largest {self.scale:.3g})",
        ]
        for name, change in (("forward", self.forward), ("generation", self.generation)):
            if change is not None:
                lines.append(f"{name:10} {change.before:.3f} s -> {change.after:.3f} s ({change.change:+.1%})")
        return "\n".join((*lines, *self.notes))


def export_pruned(
    model: Model | nn.Module,
    heads: Iterable[Any],
    out: str | Path,
    kind: Kind = "masked",
    *,
    means: Mapping[HeadId, npt.NDArray[Any]] | None = None,
    folds: Folds | None = None,
    timed: int = 0,
) -> Export:
    """Write a model without some heads to a folder, as safetensors with config and tokenizer.

    The folder is loaded again and its logits compared with those of the model under `hs.ablate` before it appears
    under its name: they differ by at most 1e-5 of the largest logit (in float32), or nothing is left on disk.

    Parameters
    ----------
    heads
        `HeadId`, "decoder.3.7", or (layer, head) where there is one block.
    out
        A folder that does not exist, or an empty one.
    kind
        "masked": same architecture and size, the heads' columns of W_O are zero; loads everywhere.
        "uniform": smaller under a stock configuration, with equally many heads in every layer; heads that have to stay
        for that are zeroed and named in the result. Llama, Mistral, Qwen, Gemma, ViT and T5.
        "ragged": every layer keeps just its own heads; smaller for any choice; loaded by `hs.load_model`.
    means
        From `hs.mean_outputs`: what a removed head put out on average, W_O mean, is kept in the bias behind it.
    folds
        Any other compensation, from `headscape.pruning.compensation.folds_of` for the same heads.
    timed
        How many times a forward pass, and generation for a causal language model, are timed before and after, in
        turns; medians are reported.

    Raises
    ------
    InputError
        No heads, all heads, unknown heads or kind, a folder with something in it, a choice or a family that the kind
        cannot express (the message says which can).
    HeadscapeError
        The written network does not compute what the ablated one does.
    """
    model = model if isinstance(model, Model) else wrap_module(model)
    target = Path(out)
    chosen = _check(model, heads, target, kind)
    removed = tuple(site.heads[h] for site in model.sites for h in chosen.get(site.name, ()))
    folds = _folds(model, chosen, means, folds)
    twin = KINDS[kind](model, chosen, folds)
    with _appearing(target) as folder:
        _write(folder, model, twin, kind, removed)
        try:
            written = load_model(folder, device=model.device, dtype=model.dtype)
            difference, scale = _compare(model, written, folds)
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, OSError) as error:
            raise HeadscapeError(
                f"{model.source} exported as {kind} does not run: {str(error).splitlines()[0]}; nothing was written"
            ) from error
        tolerance = PARITY_TOLERANCE.get(model.dtype, PARITY_TOLERANCE["float32"])
        if not difference <= tolerance * scale:
            raise HeadscapeError(
                f"{model.source} exported as {kind} has logits {difference:.2g} away from the ablated model's (largest "
                f"{scale:.2g}); nothing was written"
            )
        sizes = _sizes(folder, model.module, twin.module)
        forward, generation = _times(model, written, timed) if timed else (None, None)
        parameters = Change(_n_parameters(model.module), _n_parameters(written.module))
        del written  # its weights may be mapped from the folder that is about to be renamed
    n_heads = sum(site.n_heads for site in model.sites)
    return Export(
        target,
        kind,
        model.source,
        removed,
        twin.zeroed,
        n_heads,
        parameters,
        sizes,
        difference,
        scale,
        forward,
        generation,
        twin.notes,
    )


def _check(model: Model, heads: Iterable[Any], target: Path, kind: str) -> dict[str, list[int]]:
    if kind not in KINDS:
        raise InputError(f"kind is one of {', '.join(sorted(KINDS))}, not {kind!r}")
    if model.task == "module":
        raise InputError(f"{model.source} is a plain module; only a model of transformers can be loaded again")
    if is_ragged(model.module):
        raise InputError(f"{model.source} is a ragged export already; export the intact model without all these heads")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError(f"{target} exists and is not an empty folder; choose another place or remove it")
    chosen = select_heads(model, heads)
    if not chosen:
        raise InputError("no heads to remove were given")
    n_heads = sum(site.n_heads for site in model.sites)
    if sum(len(found) for found in chosen.values()) == n_heads:
        raise InputError(f"all {n_heads} heads of {model.source} were named; at least one must stay")
    return chosen


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A folder beside the target to write into; it takes the target's name when the block ends well, else it goes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        folder = Path(scratch) / "model"
        folder.mkdir()
        try:
            yield folder
            if target.is_dir():
                target.rmdir()
            os.replace(folder, target)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise HeadscapeError(f"no space left while writing {target}; free some and export again") from error
            raise


def _write(folder: Path, model: Model, twin: Twin, kind: str, removed: tuple[HeadId, ...]) -> None:
    module: Any = twin.module
    with quiet():
        module.save_pretrained(folder)
        if hasattr(model.tokenizer, "save_pretrained"):
            model.tokenizer.save_pretrained(folder)
    if model.images is not None:
        prepared = model.images
        write_json(
            folder / "preprocessor_config.json",
            {
                "image_processor_type": "ViTImageProcessor",
                "do_normalize": True,
                "do_rescale": True,
                "do_resize": prepared.resize,
                "image_mean": list(prepared.mean),
                "image_std": list(prepared.std),
                "rescale_factor": prepared.rescale,
                "size": {"height": prepared.height, "width": prepared.width},
            },
        )
    if twin.plans:
        write_plans(folder, twin.plans)
    origin = {
        "source": model.source,
        "fingerprint": model.fingerprint,
        "kind": kind,
        "heads": [str(head) for head in removed],
        "zeroed": [str(head) for head in twin.zeroed],
    }
    write_json(folder / bundled.NOTES, {"licence": model.licence, "prefix": list(model.prefix), "pruned_from": origin})


def _folds(
    model: Model, heads: dict[str, list[int]], means: Mapping[HeadId, npt.NDArray[Any]] | None, folds: Folds | None
) -> Folds:
    """The folds given, checked, or those of zeros or means."""
    plain = folds_of(model, heads, None)
    if folds is None:
        return plain if means is None else {name: _with_means(model, name, fold, means) for name, fold in plain.items()}
    if means is not None:
        raise InputError("give either means or folds, not both")
    if set(folds) != set(plain) or any(folds[name].heads != fold.heads for name, fold in plain.items()):
        raise InputError("the folds are for other heads than those to be removed; take them from folds_of")
    return folds


def _with_means(model: Model, name: str, fold: Fold, means: Mapping[HeadId, npt.NDArray[Any]]) -> Fold:
    site = next(site for site in model.sites if site.name == name)
    output = model.module.get_submodule(output_projections(model)[name])
    dim = input_width(output) // site.n_heads
    parts = []
    for h in fold.heads:
        head = site.heads[h]
        if head not in means:
            raise InputError(f"means lack head {head}; take them from mean_outputs of the same model")
        if means[head].shape != (dim,):
            raise InputError(f"the mean of head {head} has shape {means[head].shape}, its output ({dim},)")
        parts.append(torch.as_tensor(means[head], dtype=torch.float64))
    return replace(fold, constant=torch.cat(parts))


def _compare(model: Model, written: Model, folds: Folds) -> tuple[float, float]:
    """Largest difference of the written model's logits to the ablated one's, and the largest of these."""
    batch = example_input(model, min(CHECK_TOKENS, model.max_tokens or CHECK_TOKENS))
    with torch.no_grad():
        with folded(model, folds):
            expected = main_output(run(model, batch)).float()
        with attention_implementation(written.module, "eager"):  # fused attention rounds otherwise
            found = main_output(run(written, batch)).float()
    return (found - expected).abs().max().item(), expected.abs().max().item()


def _n_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _n_bytes(module: nn.Module) -> int:
    return sum({p.data_ptr(): p.nbytes for p in module.state_dict().values()}.values())


def _sizes(folder: Path, intact: nn.Module, twin: nn.Module) -> Change:
    """Bytes of the weight files, and what they would be for the intact network written in the same way."""
    written = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return Change(written + _n_bytes(intact) - _n_bytes(twin), written)


def _times(model: Model, written: Model, repeats: int) -> tuple[Change, Change | None]:
    """Median seconds of a forward pass and of generation, both models in turns."""
    tokens = min(TIMED_TOKENS, model.max_tokens or TIMED_TOKENS)
    batch = example_input(model, tokens)
    forward = _in_turns([lambda m=m: run(m, batch) for m in (model, written)], repeats)  # type: ignore[misc]
    if model.task != "causal-lm":
        return forward, None
    prompt = batch["input_ids"][:, : max(1, tokens - NEW_TOKENS)].to(model.device)
    options = {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}

    def generate(network: Any) -> Any:
        with quiet():
            return network.generate(prompt, attention_mask=torch.ones_like(prompt), **options)

    return forward, _in_turns([lambda m=m: generate(m.module) for m in (model, written)], repeats)  # type: ignore[misc]


def _in_turns(calls: list[Callable[[], Any]], repeats: int) -> Change:
    seconds: list[list[float]] = [[] for _ in calls]
    with torch.no_grad():
        for call in calls:
            call()
        for _ in range(repeats):
            for call, taken in zip(calls, seconds, strict=True):
                start = time.perf_counter()
                call()
                taken.append(time.perf_counter() - start)
    return Change(*(median(taken) for taken in seconds))
