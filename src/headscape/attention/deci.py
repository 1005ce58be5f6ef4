"""GGUF files of llama.cpp's architecture `deci`: a Llama whose layers have their own numbers of heads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.attention.gguf_reader import open_gguf
from headscape.attention.loading import read_gguf_tokenizer
from headscape.errors import InputError

__all__ = ["deci_tokenizer", "read_deci"]

LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def read_deci(file: Path, reader: Any) -> tuple[Any, tuple[Any, ...]]:
    """Network (a Llama with cut layers) and how the layers are cut, of a file that `open_gguf` has opened."""
    import gguf
    import torch
    import transformers

    from headscape.attention.ragged import LayerPlan, cut_layer

    def of(name: str) -> Any:
        if f"deci.{name}" not in reader.fields:
            raise InputError(f"{file.name} lacks the field deci.{name}")
        return reader.fields[f"deci.{name}"].contents()

    n = int(of("block_count"))
    heads, groups = (_each(of(f"attention.{name}"), n) for name in ("head_count", "head_count_kv"))
    tensors = {t.name: t for t in reader.tensors}
    if not all(kv and h % kv == 0 for h, kv in zip(heads, groups, strict=True)):
        raise InputError(f"{file.name} has layers without attention, or with uneven groups; headscape cannot open it")
    size, n_kv = max(h // kv for h, kv in zip(heads, groups, strict=True)), max(groups)
    dim = int(of("attention.key_length"))
    options: dict[str, Any] = {"num_attention_heads": size * n_kv, "num_key_value_heads": n_kv, "head_dim": dim}
    options |= {"hidden_size": int(of("embedding_length")), "intermediate_size": int(of("feed_forward_length"))}
    options |= {"num_hidden_layers": n, "max_position_embeddings": int(of("context_length"))}
    vocabulary = tensors["token_embd.weight"].shape[1]
    for name in ("bos_token_id", "eos_token_id"):
        field = reader.fields.get(f"tokenizer.ggml.{name}")
        options[name] = None if field is None else field.contents()
    config = transformers.LlamaConfig(
        **options,
        vocab_size=int(vocabulary),
        rms_norm_eps=float(of("attention.layer_norm_rms_epsilon")),
        rope_parameters={"rope_type": "default", "rope_theta": float(of("rope.freq_base"))},
        tie_word_embeddings="output.weight" not in tensors,
    )
    network: Any = transformers.LlamaForCausalLM
    module = network(config).float()
    plans = []
    for i, (h, kv) in enumerate(zip(heads, groups, strict=True)):
        kept = tuple(j * size + q for j in range(kv) for q in range(h // kv))
        bias = f"blk.{i}.attn_output.bias" in tensors
        if h < size * n_kv or bias:
            name = f"model.layers.{i}.self_attn"
            plans.append(LayerPlan(name, f"{name}.o_proj", size * n_kv, kept, tuple(j // size for j in kept), bias))
            cut_layer(module, plans[-1])
    places = module.state_dict()
    missing = set(places) - {"lm_head.weight"}
    for name, tensor in tensors.items():  # each is put in its place before the next is read
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for ours, weights in _ours(name, array, heads, groups).items():
            if ours not in places or places[ours].shape != weights.shape:
                raise InputError(f"{file.name} is not a Llama whose layers have their own numbers of heads: {ours}")
            places[ours].copy_(torch.from_numpy(weights))
            missing.discard(ours)
    if missing:
        raise InputError(f"{file.name} is not a Llama whose layers have their own numbers of heads: {min(missing)}")
    return module.eval(), tuple(plans)


def _each(value: Any, n: int) -> list[int]:
    return [int(v) for v in value] if isinstance(value, list) else [int(value)] * n


def _ours(
    name: str, array: npt.NDArray[np.float32], heads: list[int], groups: list[int]
) -> dict[str, npt.NDArray[np.float32]]:
    """A tensor under the name that transformers gives it, queries and keys in its order."""
    parts = name.split(".")
    if parts[0] != "blk":
        return {f"{WHOLE[parts[0]]}.{parts[1]}": array} if parts[0] in WHOLE else {}
    layer, kind, end = int(parts[1]), parts[2], parts[3]
    if kind in ("attn_q", "attn_k"):
        n = heads[layer] if kind == "attn_q" else groups[layer]
        rest = array.shape[1:]
        array = array.reshape(n, -1, 2, *rest).swapaxes(1, 2).reshape(-1, *rest)
    return {f"model.layers.{layer}.{LAYER[kind]}.{end}": np.ascontiguousarray(array)} if kind in LAYER else {}


def deci_tokenizer(file: Path, scratch: Path) -> Any:
    """The tokenizer, which transformers reads from a file that claims to be of architecture llama; None without one."""
    import gguf

    fields = open_gguf(file).fields
    kind = fields.get("tokenizer.ggml.model")
    if kind is None or kind.contents() in ("none", "no_vocab"):
        return None
    plain = scratch / "tokenizer.gguf"
    writer = gguf.GGUFWriter(plain, "llama")
    for name, field in fields.items():
        if name.startswith("tokenizer."):
            array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if array else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return read_gguf_tokenizer(plain)
