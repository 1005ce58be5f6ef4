"""GGUF weights, turned once into a folder of safetensors that loads in seconds."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headscape.attention import bundled
from headscape.attention.deci import deci_tokenizer, read_deci
from headscape.attention.gguf_reader import open_gguf
from headscape.attention.loading import gguf_weights, mark_ragged, quiet, read_gguf
from headscape.attention.ragged import write_plans
from headscape.fingerprints import file_hash, joint_hash
from headscape.storage import ArrayWriter, write_json

__all__ = ["converted", "fields_of"]

CONVERTED = "converted-2"  # 0.1 kept no hash of what it made
LISTS = (".tokens", ".merges", ".scores", ".token_type")  # with an entry per token


def _quantized(file_type: object) -> str:
    """The number type most weights of a GGUF file have, "" where that is 16 bits or more."""
    import gguf

    name = {int(kind): kind.name for kind in gguf.LlamaFileType}.get(file_type, "")  # type: ignore[call-overload]
    name = name.removeprefix("MOSTLY_")
    return "" if name in ("ALL_F32", "F16", "BF16") else name


def converted(file: Path, say: Callable[[str], None]) -> Path:
    """A folder of safetensors made once from a GGUF file, kept in the cache under the file's hash.

    One whose weights were changed since is made again.
    """
    fingerprint = file_hash(file)
    target = bundled.cache_folder() / CONVERTED / fingerprint[:32]
    if (target / "config.json").is_file():
        if bundled.read_notes(target).get("weights") == joint_hash(sorted(target.glob("*.safetensors"))):
            return target
        shutil.rmtree(target)
    say(f"converting {file.name} once to safetensors (about 20 s)")

    target.parent.mkdir(parents=True, exist_ok=True)
    reader = open_gguf(file)
    said = fields_of(reader)
    with quiet(), tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        if said.get("general.architecture") == "deci":
            (module, plans), tokenizer = read_deci(file, reader), deci_tokenizer(file, Path(scratch))
            module.save_pretrained(made)
            if plans:
                write_plans(made, plans)
                mark_ragged(made)
        else:
            module, tokenizer = read_gguf(file)
            with ArrayWriter(made / "model.safetensors", len(module.state_dict()), {"format": "pt"}) as writer:
                for name, weights in gguf_weights(reader, module):
                    writer.add(name, weights.astype(np.float32, copy=False))
            module.config.architectures, module.config.dtype = [type(module).__name__], "float32"
            module.config.save_pretrained(made)
            module.generation_config.save_pretrained(made)
        if tokenizer is not None:
            tokenizer.save_pretrained(made)
        bos = said.get("tokenizer.ggml.bos_token_id")
        needs_bos = said.get("tokenizer.ggml.add_bos_token") and tokenizer and tokenizer.encode("x")[0] != bos
        write_json(
            made / bundled.NOTES,
            {
                "fingerprint": fingerprint,
                "weights": joint_hash(sorted(made.glob("*.safetensors"))),
                "licence": said.get("general.license", "unknown"),
                "quantized": _quantized(said.get("general.file_type")),
                "prefix": [int(bos)] if needs_bos and bos is not None else [],
            },
        )
        try:
            os.replace(made, target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
    return target


def fields_of(reader: Any) -> Mapping[str, Any]:
    """The fields of an open GGUF file but for its tokens."""
    fields = reader.fields.items()
    return {name: field.contents() for name, field in fields if not name.endswith(LISTS)}
