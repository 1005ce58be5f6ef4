"""Write a network without some of its heads: as files any loader takes, checked before they count as written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
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
from headscape.locks import locked
from headscape.pruning import forms
from headscape.pruning.compensation import Fitted, digest_of, fit_compensation, without_heads
from headscape.pruning.forms import PrunedCopy, Removed
from headscape.runs import human_bytes
from headscape.storage import write_json
from headscape.tensor import HeadId

__all__ = ["KINDS", "Change", "Export", "check_target", "export_pruned"]

Kind = Literal["masked", "uniform", "ragged"]
Means = Mapping[HeadId, npt.NDArray[Any]]
KINDS: dict[str, Callable[[Model, Removed], PrunedCopy]] = {
    "masked": forms.masked,
    "ragged": forms.ragged,
    "uniform": forms.uniform,
}
ORIGIN = "pruned_from"
"""Where the notes beside the weights say what was removed from which model."""
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


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written, and how it compares.

    `heads` were removed; of these, `zeroed` are still in the weights, with an output of zero. `bytes` are those of the
    weight files, in the number type of the model. `max_difference` is the largest difference to the logits of the
    ablated model, whose largest logit is `scale`. `forward` and `generation` are seconds, None unless asked for.
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
        sizes = [human_bytes(int(n)) for n in self.bytes]
        lines = [
            f"{self.source} without {len(self.heads)} of {self.n_heads} heads, {self.kind}, in {self.path}",
            f"parameters {self.parameters.before:,.0f} -> {self.parameters.after:,.0f} ({self.parameters.change:+.1%})",
            f"weights    {sizes[0]} -> {sizes[1]} ({self.bytes.change:+.1%})",
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
    means: Means | None = None,
    fitted: Mapping[str, Fitted] | None = None,
    recipe: Mapping[str, Any] | None = None,
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
        A folder that does not exist, or an empty one. One that holds this very export already is only checked again.
    kind
        "masked": same architecture and size, the heads' columns of W_O are zero; loads everywhere.
        "uniform": smaller under a stock configuration, with the same number of heads in every layer; heads that have to
        stay for that are zeroed and named in the result. Llama, Mistral, Qwen, Gemma, ViT and T5.
        "ragged": every layer keeps just its own heads; smaller for any choice; loaded by `hs.load_model`.
    means
        From `hs.mean_outputs`: the mean output of a removed head is kept in the bias of the output projection.
    fitted
        Any other compensation, from `headscape.pruning.compensation.fit_compensation` for the same heads.
    recipe
        Plain facts to keep beside the weights: how the heads were chosen.
    timed
        How many times to time a forward pass, and generation for a causal language model, before and after, in turns;
        medians are reported.

    Raises
    ------
    InputError
        No heads, all heads, unknown heads or kind, a folder with something in it, a choice or a family that the kind
        cannot express (the message says which can).
    HeadscapeError
        The written network does not compute what the ablated one does.
    """
    model = model if isinstance(model, Model) else wrap_module(model)
    chosen = _check(model, heads, kind)
    fitted = _checked_fit(model, chosen, means, fitted)
    copy = KINDS[kind](model, fitted)
    removed = tuple(site.heads[h] for site in model.sites for h in chosen.get(site.name, ()))
    named = {"heads": [str(head) for head in removed], "zeroed": [str(head) for head in copy.zeroed]}
    origin = {"source": model.source, "fingerprint": model.fingerprint, "kind": kind, "fit": digest_of(fitted), **named}
    origin = json.loads(json.dumps({**(recipe or {}), **origin}))
    with _appearing(Path(out), origin) as (folder, there):
        if not there:
            _write(folder, model, copy, origin)
        written, difference, scale = _compared(model, folder, kind, fitted)
        sizes = _sizes(folder, model.module, copy.module)
        forward, generation = _times(model, written, timed) if timed else (None, None)
        parameters = Change(model.n_parameters, written.n_parameters)
        del written  # its weights may be mapped from the folder that is about to be renamed
    return Export(
        path=Path(out),
        kind=kind,
        source=model.source,
        heads=removed,
        zeroed=copy.zeroed,
        n_heads=sum(site.n_heads for site in model.sites),
        parameters=parameters,
        bytes=sizes,
        max_difference=difference,
        scale=scale,
        forward=forward,
        generation=generation,
        notes=copy.notes,
    )


def _check(model: Model, heads: Iterable[Any], kind: str) -> dict[str, list[int]]:
    if kind not in KINDS:
        raise InputError(f"kind is one of {', '.join(sorted(KINDS))}, not {kind!r}")
    if model.task == "module":
        raise InputError(f"{model.source} is a plain module; only a model of transformers can be loaded again")
    if is_ragged(model.module):
        raise InputError(f"{model.source} is a ragged export already; export the intact model without all these heads")
    chosen = select_heads(model, heads)
    if not chosen:
        raise InputError("no heads to remove were given")
    n_heads = sum(site.n_heads for site in model.sites)
    if sum(len(found) for found in chosen.values()) == n_heads:
        raise InputError(f"all {n_heads} heads of {model.source} were named; at least one must stay")
    return chosen


def check_target(target: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a folder holds a finished export with these facts; `InputError` for any other that is not empty."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        said = json.loads((target / bundled.NOTES).read_text(encoding="utf-8"))[ORIGIN]
        if all(said.get(name) == value for name, value in facts.items()):
            return True
    raise InputError(f"{target} exists and is not an empty folder; choose another place or remove it")


@contextmanager
def _appearing(target: Path, origin: Mapping[str, Any]) -> Iterator[tuple[Path, bool]]:
    """A folder to write into, which takes the target's name when the block ends well and is removed otherwise.

    Where the target holds this very export already, the target itself, and True.
    """
    if check_target(target, origin):
        yield target, True
        return
    place = target.resolve()
    folder = place.with_name(f".{place.name}.partial")
    with locked(place.with_name(f".{place.name}.lock"), f"the model in {target}", lambda _: None):
        shutil.rmtree(folder, ignore_errors=True)  # of an export that was killed
        folder.mkdir()
        try:
            yield folder, False
            if place.is_dir():
                place.rmdir()
            os.replace(folder, place)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise HeadscapeError(f"no space left while writing {target}; free some and export again") from error
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, model: Model, copy: PrunedCopy, origin: Mapping[str, Any]) -> None:
    module: Any = copy.module
    with quiet():
        module.save_pretrained(folder)
        if hasattr(model.tokenizer, "save_pretrained"):
            model.tokenizer.save_pretrained(folder)
    if model.images is not None:
        p = model.images
        config = {"image_processor_type": "ViTImageProcessor", "do_normalize": True, "do_rescale": True}
        config |= {"do_resize": p.resize, "image_mean": list(p.mean), "image_std": list(p.std)}
        config |= {"rescale_factor": p.rescale, "size": {"height": p.height, "width": p.width}}
        write_json(folder / "preprocessor_config.json", config)
    if copy.plans:
        write_plans(folder, copy.plans)
    write_json(folder / bundled.NOTES, {"licence": model.licence, "prefix": list(model.prefix), ORIGIN: origin})


def _checked_fit(model: Model, heads: dict[str, list[int]], means: Means | None, fitted: Removed | None) -> Removed:
    """The compensation that was given, checked; or zeros or means."""
    plain = fit_compensation(model, heads, None)
    if fitted is None:
        return plain if means is None else {name: _with_means(model, name, fit, means) for name, fit in plain.items()}
    if means is not None:
        raise InputError("give either means or a fitted compensation, not both")
    if set(fitted) != set(plain) or any(fitted[name].heads != fit.heads for name, fit in plain.items()):
        raise InputError("the compensation was fitted for other heads than those to be removed; use fit_compensation")
    return fitted


def _with_means(model: Model, name: str, fitted: Fitted, means: Means) -> Fitted:
    site = next(site for site in model.sites if site.name == name)
    output = model.module.get_submodule(output_projections(model)[name])
    dim = input_width(output) // site.n_heads
    for head in (site.heads[h] for h in fitted.heads):
        if head not in means:
            raise InputError(f"means lack head {head}; take them from mean_outputs of the same model")
        if means[head].shape != (dim,):
            raise InputError(f"the mean of head {head} has shape {means[head].shape}, its output ({dim},)")
    return replace(fitted, constant=np.concatenate([means[site.heads[h]] for h in fitted.heads], dtype=np.float64))


def _compared(model: Model, folder: Path, kind: str, fitted: Removed) -> tuple[Model, float, float]:
    """The model loaded again; the largest difference of its logits to the ablated one's, and the largest of these."""
    batch = example_input(model, min(CHECK_TOKENS, model.max_tokens or CHECK_TOKENS))
    try:
        written = load_model(folder, device=model.device, dtype=model.dtype)
        with torch.no_grad():
            with without_heads(model, fitted):
                expected = main_output(run(model, batch)).float()
            with attention_implementation(written.module, "eager"):  # fused attention rounds differently
                found = main_output(run(written, batch)).float()
        difference, scale = (found - expected).abs().max().item(), expected.abs().max().item()
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, OSError) as error:
        raise HeadscapeError(
            f"{model.source} exported as {kind} does not run: {str(error).splitlines()[0]}; nothing was written"
        ) from error
    if not difference <= PARITY_TOLERANCE.get(model.dtype, PARITY_TOLERANCE["float32"]) * scale:
        raise HeadscapeError(
            f"{model.source} exported as {kind} has logits {difference:.2g} away from the ablated model's (largest "
            f"{scale:.2g}); nothing was written"
        )
    return written, difference, scale


def _sizes(folder: Path, *modules: nn.Module) -> Change:
    """Bytes of the weight files, and what they would be for the intact network written in the same way."""
    written = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    intact, copy = (sum({p.data_ptr(): p.nbytes for p in m.state_dict().values()}.values()) for m in modules)
    return Change(written + intact - copy, written)


def _times(model: Model, written: Model, repeats: int) -> tuple[Change, Change | None]:
    """Median seconds of a forward pass and of generation, both models in turns."""
    tokens = min(TIMED_TOKENS, model.max_tokens or TIMED_TOKENS)
    batch = example_input(model, tokens)
    forward = _in_turns(lambda m: run(m, batch), (model, written), repeats)
    if model.task != "causal-lm":
        return forward, None
    prompt = batch["input_ids"][:, : max(1, tokens - NEW_TOKENS)].to(model.device)
    options = {"min_new_tokens": NEW_TOKENS, "max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}

    def generate(one: Model) -> None:
        network: Any = one.module
        with quiet():
            network.generate(prompt, attention_mask=torch.ones_like(prompt), **options)

    return forward, _in_turns(generate, (model, written), repeats)


def _in_turns(call: Callable[[Model], Any], models: tuple[Model, Model], repeats: int) -> Change:
    seconds: list[list[float]] = [[] for _ in models]
    with torch.no_grad():
        for _ in range(repeats + 1):  # the first time does not count
            for model, taken in zip(models, seconds, strict=True):
                start = time.perf_counter()
                call(model)
                taken.append(time.perf_counter() - start)
    return Change(*(median(taken[1:]) for taken in seconds))
