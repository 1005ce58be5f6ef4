"""GGUF files for llama.cpp: a Llama whose layers have their own numbers of heads, as its architecture `deci`.

`deci` is `llama` with the counts of heads as arrays over layers, and has a bias after the output projection: an
unmodified llama.cpp loads it and allocates a key/value cache for the kept groups only. The queries of a layer must
divide evenly into its key/value heads; where they do not, removed heads stay as zeros.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from headscape.attention import bundled, projections
from headscape.attention.gguf_reader import open_gguf
from headscape.attention.models import Model
from headscape.attention.sites import Site
from headscape.errors import InputError
from headscape.pruning.forms import Removed, fill_groups
from headscape.tensor import HeadId

__all__ = ["NUMBERS", "as_written", "check_gguf", "origin_of", "write_gguf"]

NUMBERS = {"f16": ("F16", 1), "q8_0": ("Q8_0", 7), "q4_1": ("Q4_1", 3)}
"""By name: the type of matrices, and what GGUF calls a file of it."""
ORIGIN = "headscape.pruned_from"
FAMILY = "llama"
ARCHITECTURE = "deci"
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
PRETOKENIZERS = {"Digits": "smollm", "(?i:'s|'t": "llama-bpe", "ByteLevel": "gpt-2"}
"""The name llama.cpp has for a pre-tokenizer, by what its description here contains; the first match counts."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Layer:
    """The query heads and key/value heads a layer keeps, its output projection and the bias after it."""

    heads: list[int]
    kv_heads: list[int]
    weight: Array
    bias: Array | None


def check_gguf(model: Model) -> None:
    """Raise an `InputError` for a model that the file cannot describe."""
    config = model.config
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if model.family != FAMILY or model.task != "causal-lm" or kind != "default":
        what = f"{model.family} with {kind} rotation" if model.family == FAMILY else model.family
        raise InputError(f"GGUF files are written for Llama-type models, not for {what}; write a folder: --out FOLDER")
    if getattr(config, "hidden_act", "silu") != "silu" or getattr(config, "mlp_bias", False):
        raise InputError(f"{model.source} differs from Llama in its feed-forward layers; write a folder: --out FOLDER")
    if getattr(config, "attention_bias", False):
        raise InputError(
            f"{model.source} has a bias in its queries, keys and values, which headscape cannot read back from a GGUF "
            "file yet; write a folder: --out FOLDER"
        )


def write_gguf(
    file: Path, model: Model, removed: Removed, numbers: str, origin: Mapping[str, Any]
) -> tuple[HeadId, ...]:
    """Write a model without some heads, compensated, as GGUF; returns the removed heads that stay as zeros."""
    import gguf

    layers, zeroed = _layers(model, removed)
    writer = gguf.GGUFWriter(file, ARCHITECTURE)
    _write_facts(writer, model, layers, NUMBERS[numbers][1])
    writer.add_string(ORIGIN, json.dumps(origin, sort_keys=True))
    for name, array in _tensors(model, layers):
        kind = _kind(array, numbers)
        writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(array, np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return zeroed


def _kind(array: Array | Tensor, numbers: str) -> Any:
    """The number type of a tensor: matrices have the one asked for, where their rows are whole blocks of it."""
    import gguf

    matrix = array.ndim == 2 and array.shape[1] % 32 == 0
    return gguf.GGMLQuantizationType[NUMBERS[numbers][0] if matrix else "F32"]


def _rounded(weight: Tensor, numbers: str | None) -> Tensor:
    """A matrix as it is read from a file of these numbers; None leaves it as it is."""
    import gguf

    if numbers is None:
        return weight
    kind = _kind(weight, numbers)
    blocks = gguf.quants.quantize(np.ascontiguousarray(weight.detach().float().cpu().numpy()), kind)
    return torch.from_numpy(gguf.quants.dequantize(blocks, kind)).to(weight)


@contextmanager
def as_written(model: Model, removed: Removed, numbers: str | None) -> Iterator[None]:
    """Run the model as a file of these numbers describes it: compensation in W_O, every matrix rounded (None: exact).

    The weights themselves are left alone; one matrix at a time is rounded when its turn in the pass comes.
    """
    outputs = projections.output_projections(model)
    sites = {outputs[site.name]: site for site in model.sites}
    with ExitStack() as restore:
        for name, part in model.module.named_modules():
            if name in sites:
                hook = _cut(model, sites[name], outputs[sites[name].name], removed, numbers)
            elif isinstance(part, nn.Linear):
                hook = _linear(part, numbers)
            elif isinstance(part, nn.Embedding):
                hook = _embedding(part, numbers)
            else:
                continue
            restore.callback(part.register_forward_hook(hook).remove)
        yield


Hook = Callable[[nn.Module, Any, Tensor], Tensor]


def _cut(model: Model, site: Site, output: str, removed: Removed, numbers: str | None) -> Hook:
    def hook(_: nn.Module, args: Any, __: Tensor) -> Tensor:
        layer = _layer(model, site, output, removed)
        heads = args[0].unflatten(-1, (site.n_heads, -1))[..., layer.heads, :].flatten(-2)
        weight = _rounded(torch.from_numpy(layer.weight).float(), numbers).to(heads)
        bias = None if layer.bias is None else torch.from_numpy(layer.bias).to(heads)
        return nn.functional.linear(heads, weight, bias)

    return hook


def _linear(part: nn.Linear, numbers: str | None) -> Hook:
    return lambda _, args, __: nn.functional.linear(args[0], _rounded(part.weight, numbers), part.bias)


def _embedding(part: nn.Embedding, numbers: str | None) -> Hook:
    def hook(_: nn.Module, args: Any, __: Tensor) -> Tensor:
        rows = part.weight[args[0].flatten()]
        return _rounded(rows, numbers).reshape(*args[0].shape, -1)

    return hook


def origin_of(file: Path) -> dict[str, Any]:
    """What `write_gguf` noted of the model a file came from; empty for any other file."""
    field = open_gguf(file).fields.get(ORIGIN)
    return {} if field is None else dict(json.loads(field.contents()))


def _layers(model: Model, removed: Removed) -> tuple[list[_Layer], tuple[HeadId, ...]]:
    outputs = projections.output_projections(model)
    layers = [_layer(model, site, outputs[site.name], removed) for site in model.sites]
    gone = {site.heads[h] for site in model.sites if site.name in removed for h in removed[site.name].heads}
    written = [site.heads[h] for site, layer in zip(model.sites, layers, strict=True) for h in layer.heads]
    return layers, tuple(head for head in written if head in gone)


def _layer(model: Model, site: Site, name: str, removed: Removed) -> _Layer:
    part = model.module.get_submodule
    output = part(name)
    layout = projections.layout_of(part(site.name), output, site.n_heads)
    weight, bias = projections.columns_of(output).double().cpu(), getattr(output, "bias", None)
    added = None if bias is None else bias.detach().double().cpu()
    gone: tuple[int, ...] = ()
    if site.name in removed:
        fitted = removed[site.name]
        gone = fitted.heads
        if fitted.constant is not None or fitted.offset is not None:
            added = fitted.bias(weight) + (0 if added is None else added)
        weight = fitted.weight(weight)
    kept = [h for h in range(site.n_heads) if h not in gone]
    heads, kv_heads = fill_groups(kept, layout)
    columns = np.concatenate([np.arange(h * layout.dim, (h + 1) * layout.dim) for h in heads])
    return _Layer(heads, kv_heads, weight.numpy()[:, columns], None if added is None else added.numpy())


def _write_facts(writer: Any, model: Model, layers: list[_Layer], file_type: int) -> None:
    config: Any = model.config
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta") or config.rope_theta
    writer.add_name(f"{model.source} by headscape")
    writer.add_file_type(file_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count([len(layer.heads) for layer in layers])
    writer.add_head_count_kv([len(layer.kv_heads) for layer in layers])
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(float(theta))
    writer.add_rope_dimension_count(dim)
    writer.add_vocab_size(config.vocab_size)
    for name, value, kinds in _tokenizer(model):
        writer.add_key_value(name, value, *kinds)


def _tensors(model: Model, layers: list[_Layer]) -> Iterator[tuple[str, Array]]:
    """The tensors of a Llama by their GGUF names; queries and keys in the order in which llama.cpp rotates them."""
    module: Any = model.module
    state = {name: tensor.detach().float().cpu().numpy() for name, tensor in module.state_dict().items()}
    yield "token_embd.weight", state["model.embed_tokens.weight"]
    yield "output_norm.weight", state["model.norm.weight"]
    if not model.config.tie_word_embeddings:
        yield "output.weight", state["lm_head.weight"]
    for i, layer in enumerate(layers):
        for ours, theirs in NAMES.items():
            for end in ("weight", "bias"):
                name = f"model.layers.{i}.{ours}.{end}"
                array = state.get(name)
                if ours == "self_attn.o_proj":
                    array = layer.weight if end == "weight" else layer.bias
                elif array is not None and ours.startswith("self_attn."):
                    array = _rows(array, layer, ours, model)
                if array is not None:
                    yield f"blk.{i}.{theirs}.{end}", array


def _rows(array: Array, layer: _Layer, name: str, model: Model) -> Array:
    heads = layer.heads if "q_proj" in name else layer.kv_heads
    total = model.config.num_attention_heads if "q_proj" in name else model.config.num_key_value_heads
    by_head = array.reshape(total, -1, *array.shape[1:])[heads]
    if "v_proj" not in name:  # rotated pairs lie half a head apart in transformers, side by side in llama.cpp
        by_head = by_head.reshape(len(heads), 2, -1, *array.shape[1:]).swapaxes(1, 2)
    return np.asarray(by_head.reshape(-1, *array.shape[1:]))


def _tokenizer(model: Model) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """The fields of the tokenizer: of the GGUF file the model came from, or made from a byte-level BPE tokenizer."""
    import gguf

    folder = bundled.weights_folder(bundled.BUNDLED[model.source]) if model.source in bundled.BUNDLED else None
    files = list(folder.glob("*.gguf")) if folder is not None else [Path(model.source)]
    source = next((file for file in files if file.suffix == ".gguf" and file.is_file()), None)
    if source is not None:
        for name, field in open_gguf(source).fields.items():
            if name.startswith("tokenizer."):
                array = field.types[0] == gguf.GGUFValueType.ARRAY
                yield name, field.contents(), (field.types[0], field.types[-1] if array else None)
        return
    kinds = gguf.GGUFValueType
    described = getattr(model.tokenizer, "backend_tokenizer", None)
    if described is None:
        yield "tokenizer.ggml.model", "none", (kinds.STRING,)
        return
    said = json.loads(described.to_str())
    before = json.dumps(said["pre_tokenizer"])
    pre = next((name for sign, name in PRETOKENIZERS.items() if sign in before), None)
    if said["model"]["type"] != "BPE" or "ByteLevel" not in before or pre is None:
        yield "tokenizer.ggml.model", "none", (kinds.STRING,)
        return
    size = model.config.vocab_size
    tokens, types = [f"[PAD{i}]" for i in range(size)], [5] * size  # unused, until they are named
    for token, i in said["model"]["vocab"].items():
        tokens[i], types[i] = token, 1
    for one in said["added_tokens"]:
        tokens[one["id"]], types[one["id"]] = one["content"], 3 if one["special"] else 4
    merges = [m if isinstance(m, str) else " ".join(m) for m in said["model"]["merges"]]
    yield "tokenizer.ggml.model", "gpt2", (kinds.STRING,)
    yield "tokenizer.ggml.pre", pre, (kinds.STRING,)
    yield "tokenizer.ggml.tokens", tokens, (kinds.ARRAY, kinds.STRING)
    yield "tokenizer.ggml.token_type", types, (kinds.ARRAY, kinds.INT32)
    yield "tokenizer.ggml.merges", merges, (kinds.ARRAY, kinds.STRING)
    yield "tokenizer.ggml.add_bos_token", bool(model.prefix), (kinds.BOOL,)
    for name in ("bos", "eos", "unk", "pad"):
        number = getattr(model.tokenizer, f"{name}_token_id", None)
        if number is not None:
            long = {"unk": "unknown", "pad": "padding"}.get(name, name)
            yield f"tokenizer.ggml.{long}_token_id", int(number), (kinds.UINT32,)
