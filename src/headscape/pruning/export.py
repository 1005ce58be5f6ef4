"""Write a network without some of its heads, as a folder or a GGUF file that is checked before it gets its name."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from headscape.attention import bundled
from headscape.attention.capture import PARITY_TOLERANCE, main_output
from headscape.attention.deci import read_deci
from headscape.attention.gguf_reader import open_gguf
from headscape.attention.loading import mark_ragged, quiet
from headscape.attention.models import Model, load_model, wrap_module
from headscape.attention.projections import input_width, output_projections
from headscape.attention.ragged import is_ragged, write_plans
from headscape.attention.sites import example_input, run, select_heads
from headscape.attention.tapping import attention_implementation
from headscape.attention.weights import check_changeable
from headscape.errors import HeadscapeError, InputError
from headscape.locks import locked
from headscape.pruning import forms, llamacpp, savings
from headscape.pruning.compensation import Fitted, digest_of, fit_compensation, without_heads
from headscape.pruning.forms import PrunedCopy, Removed
from headscape.pruning.savings import Change
from headscape.runs import human_bytes, without_places
from headscape.storage import check_place, read_json, write_json
from headscape.tensor import HeadId

__all__ = ["KINDS", "Change", "Export", "check_kind", "check_target", "check_writable", "export_pruned"]

Kind = Literal["auto", "masked", "uniform", "ragged", "gguf"]
Means = Mapping[HeadId, npt.NDArray[Any]]
KINDS: dict[str, Callable[[Model, Removed], PrunedCopy]] = {
    "masked": forms.masked,
    "ragged": forms.ragged,
    "uniform": forms.uniform,
}
ORIGIN = "pruned_from"
"""Where the notes beside the weights say what was removed from which model."""
CHECK_TOKENS = 48  # of the input on which the written network is compared with the ablated one


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was written, and how it compares.

    `heads` were removed; of these, `zeroed` are still in the weights, with an output of zero. `bytes` are those of the
    weight files, in the number type `numbers`; `source_bytes` those of the files the model came from, 0 if there are
    none. `kv_bytes` are those of keys and values of one token, in float16; None where there is no cache.
    `max_difference` is the largest difference to the logits of the ablated model, whose largest logit is `scale`.
    `forward` and `generation` are seconds, None unless asked for: of `clock`, which is CPU time on a CPU.

    >>> export = hs.export_pruned(model, [(0, 1)], "smaller")
    >>> export.parameters.before > export.parameters.after
    True
    >>> export.max_difference < 1e-5 * export.scale  # it computes what the ablated model does
    True
    """

    path: Path
    kind: str
    source: str
    heads: tuple[HeadId, ...]
    zeroed: tuple[HeadId, ...]
    n_heads: int
    parameters: Change
    bytes: Change
    numbers: str
    source_bytes: int
    kv_bytes: Change | None
    max_difference: float
    scale: float
    forward: Change | None = None
    generation: Change | None = None
    clock: str = "CPU time"
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        sizes = [human_bytes(int(n)) for n in self.bytes]
        lines = [
            f"{self.source} without {len(self.heads)} of {self.n_heads} heads, {self.kind}, in {self.path}",
            f"parameters {self.parameters.before:,.0f} -> {self.parameters.after:,.0f} ({self.parameters.change:+.1%})",
            f"weights    {sizes[0]} -> {sizes[1]} in {self.numbers} ({self.bytes.change:+.1%})",
            f"logits     within {self.max_difference:.1g} of the ablated model's (largest {self.scale:.3g})",
        ]
        if self.kv_bytes is not None:
            before, after, change = *self.kv_bytes, self.kv_bytes.change
            lines.insert(3, f"cache      {before:,.0f} -> {after:,.0f} bytes per token in float16 ({change:+.1%})")
        for name, timed in (("forward", self.forward), ("generation", self.generation)):
            if timed is not None:
                lines.append(
                    f"{name:10} {timed.before:.3f} s -> {timed.after:.3f} s of {self.clock} ({timed.change:+.1%})"
                )
        if self.heads and self.parameters.change > -0.1:
            more = ": the cache shrinks most, where whole key/value groups are removed" if self.kv_bytes else ""
            lines.append(f"Heads are a small share of the parameters{more}.")
        if self.source_bytes and self.bytes.after > self.source_bytes:
            came = human_bytes(self.source_bytes)
            lines.append(f"WARNING: larger than the file it came from ({came}), which stores other number types.")
        elif self.bytes.after > self.bytes.before:
            lines.append("WARNING: larger than the intact model; --kind ragged or --unit group would make it smaller.")
        return "\n".join((*lines, *self.notes))


def export_pruned(
    model: Model | nn.Module,
    heads: Iterable[Any],
    out: str | Path,
    kind: Kind = "auto",
    *,
    means: Means | None = None,
    fitted: Mapping[str, Fitted] | None = None,
    recipe: Mapping[str, Any] | None = None,
    numbers: str = "f16",
    timed: int = 0,
) -> Export:
    """Write a model without some heads: a folder of safetensors with config and tokenizer, or a GGUF file.

    What was written is loaded again and its logits compared with those of the model under `hs.ablate` before it appears
    under its name: they differ by at most 1e-5 of the largest logit (in float32; more by as much as the number type of a
    GGUF file rounds), or nothing is left on disk.

    Parameters
    ----------
    heads
        `HeadId`, "decoder.3.7", or (layer, head) where there is one block.
    out
        A folder that does not exist, or an empty one; or FILE.gguf. One that already holds exactly this export is only
        checked again.
    kind
        "auto": "gguf" for FILE.gguf; else "uniform" where the choice of heads allows it, else "ragged".
        "gguf": for llama.cpp, Llama-type models; every layer keeps its own groups. Without any heads to remove, the
        intact model.
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
    numbers
        Number type of the matrices of a GGUF file: "f16", "q8_0" or "q4_1".
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

    >>> export = hs.export_pruned(model, [(0, 1), (1, 2)], "smaller")
    >>> export.kind, len(export.heads), export.n_heads
    ('ragged', 2, 8)
    >>> hs.load_model("smaller").n_parameters < model.n_parameters
    True
    """
    model = model if isinstance(model, Model) else wrap_module(model)
    check_kind(kind, out, numbers)
    asked, kind = kind, "gguf" if Path(out).suffix == ".gguf" else kind
    chosen = _check(model, heads, kind)
    fitted = _checked_fit(model, chosen, means, fitted)
    if kind == "auto":
        kind = "uniform" if forms.is_uniform(model, fitted) else "ragged"
    copy = None if kind == "gguf" else KINDS[kind](model, fitted)
    removed = tuple(site.heads[h] for site in model.sites for h in chosen.get(site.name, ()))
    origin: dict[str, Any] = {"source": model.source, "fingerprint": model.fingerprint, "fit": digest_of(fitted)}
    origin |= {"kind": kind, "asked": asked, "heads": [str(head) for head in removed]}
    origin |= {"numbers": numbers} if copy is None else {"zeroed": [str(head) for head in copy.zeroed]}
    origin = json.loads(json.dumps({**without_places(recipe or {}), **without_places(origin)}))
    zeroed, notes = ((), ()) if copy is None else (copy.zeroed, copy.notes)
    with _appearing(Path(out), origin) as (place, there), _unchanged(Path(out), there):
        if copy is not None and not there:
            _write(place, model, copy, origin)
        elif not there:
            zeroed = llamacpp.write_gguf(place, model, fitted, numbers, origin)
            notes = (f"{len(zeroed)} removed heads stay as zeros: every group needs the same number",) if zeroed else ()
        written, difference, scale = _compared(model, place, kind, fitted, numbers if copy is None else None)
        parameters = Change(model.n_parameters, written.n_parameters)
        if copy is None:
            sizes = savings.gguf_sizes(place, parameters, numbers)
        else:
            sizes = savings.sizes(place, model.module, copy.module)
        forward, generation = savings.times(model, written, timed) if timed else (None, None)
        cache = savings.kv_bytes(model, written)
        del written  # its weights may be mapped from the folder that is about to be renamed
    return Export(
        path=Path(out),
        kind=kind,
        source=model.source,
        heads=removed,
        zeroed=zeroed,
        n_heads=sum(site.n_heads for site in model.sites),
        parameters=parameters,
        bytes=sizes,
        numbers=numbers if copy is None else model.dtype,
        source_bytes=savings.source_bytes(model),
        kv_bytes=cache,
        max_difference=difference,
        scale=scale,
        forward=forward,
        generation=generation,
        clock="CPU time" if model.device == "cpu" else "time",
        notes=notes,
    )


def check_kind(kind: str, out: str | Path | None, numbers: str = "f16") -> None:
    """Raise an `InputError` for an unknown kind, or one that does not suit the path to write to."""
    if kind not in ("auto", "gguf", *KINDS):
        raise InputError(f"kind is one of {', '.join(sorted(['auto', 'gguf', *KINDS]))}, not {kind!r}")
    if numbers not in llamacpp.NUMBERS:
        raise InputError(f"the number type of a GGUF file is one of {', '.join(llamacpp.NUMBERS)}, not {numbers!r}")
    file = out is not None and Path(out).suffix == ".gguf"
    if out is not None and file != (kind == "gguf") and kind != "auto":
        raise InputError(
            f"{out}: kind gguf writes a file that ends in .gguf, the other kinds write folders; not {kind}"
        )
    if numbers != "f16" and not file:
        raise InputError(f"{numbers} is a number type of GGUF files; write one with --out FILE.gguf, or leave it out")


def check_writable(model: Model, kind: str) -> None:
    """Raise an `InputError` for a model that cannot be written in this way, whatever heads are removed."""
    if model.task == "module":
        raise InputError(f"{model.source} is a plain module; only a model of transformers can be loaded again")
    if is_ragged(model.module):
        raise InputError(f"{model.source} is a ragged export already; export the intact model without all these heads")
    check_changeable(model.module, "writing a smaller model copies it")
    if kind == "gguf":
        llamacpp.check_gguf(model)
    if kind == "uniform":
        forms.check_uniform(model)


def _check(model: Model, heads: Iterable[Any], kind: str) -> dict[str, list[int]]:
    check_writable(model, kind)
    chosen = select_heads(model, heads)
    if not chosen and kind != "gguf":
        raise InputError("no heads to remove were given")
    n_heads = sum(site.n_heads for site in model.sites)
    if sum(len(found) for found in chosen.values()) == n_heads:
        raise InputError(f"all {n_heads} heads of {model.source} were named; at least one must stay")
    return chosen


def check_target(target: Path, facts: Mapping[str, Any]) -> bool:
    """Whether a folder or file holds a finished export with these facts.

    Raises an `InputError` for any other that is not empty, and where nothing can be written.
    """
    check_place(target)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        if target.suffix == ".gguf":
            said = llamacpp.origin_of(target)
        else:
            said = read_json(target / bundled.NOTES)[ORIGIN]
        if all(said.get(name) == value for name, value in facts.items()):
            return True
    what = "a file with other content" if target.suffix == ".gguf" else "not an empty folder"
    raise InputError(f"{target} exists and is {what}; choose another place or remove it")


@contextmanager
def _appearing(target: Path, origin: Mapping[str, Any]) -> Iterator[tuple[Path, bool]]:
    """A folder or file to write; it takes the target's name when the block succeeds and is removed otherwise.

    Where the target already holds exactly this export: the target itself, and True.
    """
    check_target(target, origin)  # before a lock is made beside it
    place = target.resolve()
    file = place.suffix == ".gguf"
    folder = place.with_name(f".{place.stem}.partial.gguf" if file else f".{place.name}.partial")
    with locked(place.with_name(f".{place.name}.lock"), f"the model in {target}", lambda _: None):
        if check_target(target, origin):
            yield target, True
            return
        _clear(folder)  # of an export that was killed
        if not file:
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
            _clear(folder)


def _clear(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


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
        mark_ragged(folder)
    write_json(folder / bundled.NOTES, {"licence": model.licence, "prefix": list(model.prefix), ORIGIN: origin})


def _checked_fit(model: Model, heads: dict[str, list[int]], means: Means | None, fitted: Removed | None) -> Removed:
    """The given compensation, checked; or else zeros or means."""
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


@contextmanager
def _unchanged(out: Path, there: bool) -> Iterator[None]:
    """An existing export that differs from what was written is a problem of the file, not of headscape."""
    try:
        yield
    except HeadscapeError:
        if not there:
            raise
        raise InputError(
            f"{out} was changed after it was written: it does not compute what the pruned model does; remove it, and the "
            "same command writes it again"
        ) from None


def _compared(
    model: Model, folder: Path, kind: str, fitted: Removed, numbers: str | None
) -> tuple[Model, float, float]:
    """The model loaded again; the largest difference between its logits and the ablated model's, and the largest logit.

    A GGUF file is checked in two steps, each to the precision of the arithmetic: the ablated model against the model that
    the file describes, and that one with rounded weights against the file.
    """
    batch = example_input(model, min(CHECK_TOKENS, model.max_tokens or CHECK_TOKENS))
    try:
        if numbers is None:
            written = load_model(folder, device=model.device, dtype=model.dtype)
        else:  # not through the cache of converted files
            module, _ = read_deci(folder, open_gguf(folder))
            written = wrap_module(module.to(model.device))
        with torch.no_grad():
            with without_heads(model, fitted):
                ablated = main_output(run(model, batch)).float()
            found = _logits(written, batch)
            pairs = [(found, ablated)]
            if numbers is not None:
                with llamacpp.as_written(model, fitted, None):
                    pairs = [(_logits(model, batch), ablated)]
                with llamacpp.as_written(model, fitted, numbers):
                    pairs.append((found, _logits(model, batch)))
    except (RuntimeError, ValueError, TypeError, AttributeError, IndexError, OSError) as error:
        raise HeadscapeError(
            f"{model.source} exported as {kind} does not run: {str(error).splitlines()[0]}; nothing was written"
        ) from error
    scale = ablated.abs().max().item()
    worst = max((one - other).abs().max().item() for one, other in pairs)
    if not worst <= PARITY_TOLERANCE.get(model.dtype, PARITY_TOLERANCE["float32"]) * scale:
        beyond = "" if numbers is None else f", beyond the rounding to {numbers}"
        raise HeadscapeError(
            f"{model.source} exported as {kind} has logits {worst:.2g} away from the ablated model's (largest "
            f"{scale:.2g}){beyond}; nothing was written"
        )
    return written, (found - ablated).abs().max().item(), scale


def _logits(model: Model, batch: Any) -> torch.Tensor:
    with attention_implementation(model.module, "eager"):  # fused attention rounds differently
        return main_output(run(model, batch)).float()
