"""A network and what headscape needs to know about it; a module that is already in memory is wrapped."""

from __future__ import annotations

import hashlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headscape.attention.inputs import ImagePreparation
from headscape.attention.loading import takes_images
from headscape.attention.placing import DeviceMap
from headscape.errors import InputError
from headscape.fingerprints import joint_hash

if TYPE_CHECKING:
    import torch

    from headscape.attention.sites import Site

__all__ = ["Model", "described", "evaluating", "lender", "wrap_module"]

Task = Literal["causal-lm", "masked-lm", "seq2seq-lm", "image-classifier", "classifier", "encoder", "module"]


@dataclass(eq=False)
class Model:
    """A loaded network and what headscape needs to know about it.

    `n_heads` counts query heads per layer, `n_kv_heads` the key/value heads they share. `max_tokens` is the longest
    context, None when there is no limit. `prefix` are ids the tokenizer should put before a text but does not.
    `location` is the absolute path of a model that is loaded by its path, None for one known by name. `quantized` says
    in how few bits the weights were stored, "" where they were not, or were drawn at random.

    >>> model.task, model.n_layers, model.n_heads, model.n_parameters
    ('causal-lm', 2, 4, ...)
    >>> model.tokenizer.encode("cat")  # of the model; .module is the network itself
    [67, 65, 84]
    """

    module: torch.nn.Module
    tokenizer: Any
    images: ImagePreparation | None
    source: str
    family: str
    task: Task
    n_kv_heads: int
    n_parameters: int
    licence: str
    max_tokens: int | None
    device: str
    dtype: str
    device_map: DeviceMap | None = None
    prefix: tuple[int, ...] = ()
    weights: tuple[Path, ...] = field(default=(), repr=False)
    random_init: int | None = None
    location: str | None = field(default=None, repr=False)
    attention: tuple[str, ...] | None = None
    example: Any = field(default=None, repr=False)
    notes: tuple[str, ...] = ()
    quantized: str = ""

    @property
    def config(self) -> Any:
        """The configuration of a transformers model (of its text part where it has several), None for others."""
        config: Any = getattr(self.module, "config", None)
        return config.get_text_config() if hasattr(config, "get_text_config") else config

    @property
    def reads_ids(self) -> bool:
        """Whether it takes token ids as its only argument, as a HookedTransformer does."""
        return self.task == "module" and _is_hooked(self.module)

    @property
    def causal(self) -> bool:
        """Whether every layer of self-attention only looks back, as seen in a run."""
        own = [site for site in self.sites if not site.block.startswith("encoder") and "cross" not in site.block]
        return bool(own) and all(site.mask == "causal" for site in own)

    @property
    def n_layers(self) -> int:
        """Attention layers of the deepest block."""
        return 1 + max(site.layer for site in self.sites)

    @property
    def n_heads(self) -> int:
        """Query heads per layer."""
        return max(site.n_heads for site in self.sites)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the weights that were loaded: of their files, or of the parameters of a module in memory."""
        if self.weights:
            found = joint_hash(self.weights)
        else:
            whole = hashlib.sha256()
            for name, tensor in self.module.state_dict().items():
                whole.update(name.encode())
                whole.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
            found = whole.hexdigest()
        return found if self.random_init is None else f"{found}-random-{self.random_init}"

    @cached_property
    def sites(self) -> list[Site]:
        """Where attention is computed, in the order of the forward pass, found by one short run."""
        from headscape.attention.sites import find_sites

        return find_sites(self)

    def describe(self) -> dict[str, Any]:
        """The plain facts, as run.json keeps them."""
        return {name: getattr(self, name) for name in _DESCRIBED.split()}


_DESCRIBED = (
    "source location family task causal n_layers n_heads n_kv_heads n_parameters licence max_tokens dtype prefix notes "
    "quantized fingerprint"
)


def _first(config: Any, *names: str, default: Any = None) -> Any:
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    return default


def _task(module: Any, config: Any) -> Task:
    name = type(module).__name__
    if config.is_encoder_decoder:
        return "seq2seq-lm"
    if name.endswith(("ForCausalLM", "LMHeadModel")) or "ForConditionalGeneration" in name:
        return "causal-lm"
    if name.endswith("ForMaskedLM"):
        return "masked-lm"
    if "Classification" in name:
        return "image-classifier" if hasattr(config, "image_size") else "classifier"
    return "encoder"


def described(module: Any, tokenizer: Any, *, folder: Path | None, **known: Any) -> Model:
    """The model of a transformers network: the facts of its configuration, and others that are known."""
    config = module.config.get_text_config()
    n_heads = int(_first(config, "num_attention_heads", "n_head", "n_heads", "num_heads", default=0))
    images = None
    if takes_images(config):
        images = ImagePreparation.from_folder(folder or Path("."), config)
    n_kv = _first(config, "num_key_value_heads", "num_kv_heads", default=n_heads)
    if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):
        n_kv = 1
    limit = _first(config, "max_position_embeddings", "n_positions", "max_seq_len")
    if limit is not None and getattr(config, "model_type", "") in ("roberta", "mpnet", "xlm-roberta", "camembert"):
        limit -= 2  # their positions start behind the padding index
    if limit is not None and not limit >= 1:
        raise InputError(f"{known['source']} takes {limit} tokens by its configuration, so no input fits")
    alibi = getattr(config, "alibi", False) or getattr(config, "model_type", "") == "bloom"
    return Model(
        module=module,
        tokenizer=tokenizer,
        images=images,
        family=str(config.model_type),
        task=_task(module, config),
        n_kv_heads=int(n_kv),
        n_parameters=sum(p.numel() for p in module.parameters()),
        max_tokens=None if images or alibi or limit is None else int(limit),
        **known,
    )


def wrap_module(
    module: Any,
    attention: Sequence[str] | None = None,
    *,
    tokenizer: Any = None,
    name: str | None = None,
    example: Any = None,
) -> Model:
    """Make a `Model` of a module that is already in memory.

    A transformers model needs nothing more, also inside a wrapper of nnsight, torch.compile or parallel training; nor
    does a HookedTransformer of TransformerLens. In any other `torch.nn.Module` the `MultiheadAttention` layers are
    found; otherwise `attention` names the submodules that compute attention (their softmax must run over a tensor
    (batch, head, query, key)). Such a module is captured on a list of its own inputs: a tensor, or a tuple or dict of
    arguments for each batch; `example` is one of them, needed before anything was captured.

    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
    >>> inputs = [torch.randn(1, 5, 8), torch.randn(1, 5, 8)]
    >>> wrapped = hs.wrap_module(torch.nn.TransformerEncoder(layer, num_layers=1).eval(), example=inputs[0])
    >>> hs.capture(wrapped, inputs).tensor(0)
    AttentionTensor(5 queries x 5 keys x 2 heads, full, probs)
    """
    module, tokenizer, attention = _underlying(module, tokenizer, attention)
    parameter, kind = next(module.parameters()), type(module).__name__
    known: dict[str, Any] = {"source": name or kind, "licence": "unknown", "device": str(parameter.device)}
    known["dtype"] = str(parameter.dtype).removeprefix("torch.")
    if hasattr(module, "config") and hasattr(module.config, "model_type"):
        return described(module.eval(), tokenizer, folder=None, **known)
    return Model(
        module=module.eval(),
        tokenizer=tokenizer,
        images=None,
        family=kind,
        task="module",
        n_kv_heads=0,
        n_parameters=sum(p.numel() for p in module.parameters()),
        max_tokens=None,
        attention=None if attention is None else tuple(attention),
        example=example,
        **known,
    )


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch dropout off inside the block; afterwards every part of the network returns to its former mode."""
    inside = _underlying(model.module if isinstance(model, Model) else model, None, None)[0]
    modes = [(part, part.training) for part in inside.modules()]
    inside.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def lender(model: Model) -> Callable[[], Model | None]:
    """A function that returns a model again without keeping it alive.

    It returns None, with a warning, once the network is gone or its weights were changed in place, as training does.
    """
    network, facts = weakref.ref(model.module), replace(model, module=None)  # type: ignore[arg-type]
    before = _changes(model)

    def found() -> Model | None:
        module = network()
        if module is not None:
            again = replace(facts, module=module)
            if _changes(again) == before:
                return again
        what = "is gone: nothing refers to it any more" if module is None else "has different weights by now"
        warnings.warn(f"the model of this capture ({facts.source}) {what}; what needs it is left out", stacklevel=4)
        return None

    return found


def _changes(model: Model) -> int:
    """How often weights were changed in place; 0 where they come and go with every pass."""
    own = [] if model.device_map is not None else model.module.parameters()
    return sum(weight._version for weight in own if not weight.is_inference())


def _underlying(module: Any, tokenizer: Any, attention: Sequence[str] | None) -> tuple[Any, Any, Sequence[str] | None]:
    """The network inside a wrapper, with the wrapper's tokenizer.

    torch.compile keeps it as `_orig_mod`, parallel training as `module`, nnsight as `_module` (formerly `_model`).
    A HookedTransformer has its own kind of network, whose attention is computed in blocks.N.attn. TransformerLens' bridge
    puts its own parts into the network, so that what is inside is no longer a transformers model.
    """
    import torch
    from torch.nn import Module

    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while isinstance(inner := getattr(module, "module" if isinstance(module, parallel) else "_orig_mod", None), Module):
        module = inner
    for name in ("_module", "_model"):
        inner = getattr(module, name, None)
        if isinstance(inner, torch.nn.Module):
            return inner, tokenizer or getattr(module, "tokenizer", None), attention
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"a model is a torch module or wraps one, not a {type(module).__name__}")
    if _is_hooked(module) and hasattr(module, "original_model"):
        raise InputError(
            f"a {type(module).__name__} replaces the attention of its network; give hs.from_attentions(cache) the cache of "
            "its run_with_cache, or hs.capture the transformers model as it was loaded"
        )
    if attention is None and _is_hooked(module):
        found = [f"blocks.{i}.attn" for i, block in enumerate(module.blocks) if hasattr(block, "attn")]  # type: ignore[arg-type]
        return module, tokenizer or getattr(module, "tokenizer", None), found or None
    return module, tokenizer, attention


def _is_hooked(module: Any) -> bool:
    return hasattr(module, "cfg") and hasattr(module, "blocks")
