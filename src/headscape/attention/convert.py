"""GGUF weights, turned once into a folder of safetensors that loads in seconds."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from headscape.attention import bundled
from headscape.errors import InputError
from headscape.storage import write_json

__all__ = ["converted", "quiet"]


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and notices of transformers, which would break up our own output."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # the GGUF reader draws a bar that no setting switches off
            yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def converted(folder: Path | None, file: Path, say: Callable[[str], None]) -> Path:
    """A folder of safetensors made once from a GGUF file, kept in the cache under the file's hash."""
    fingerprint = str(bundled.read_notes(folder).get("fingerprint", "")) if folder else ""
    fingerprint = fingerprint or bundled.sha256_of(file)
    target = bundled.cache_folder() / "converted" / fingerprint[:32]
    if (target / "config.json").is_file():
        return target
    say(f"converting {file.name} once to safetensors (about 20 s)")
    import gguf
    import torch
    import transformers

    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        fields = gguf.GGUFReader(file).fields
    except (ValueError, IndexError, OSError) as error:
        raise InputError(f"{file.name} cannot be read as GGUF: {str(error).splitlines()[0]}") from None
    said: Mapping[str, Any] = {name: field.contents() for name, field in fields.items() if "tokens" not in name}
    with quiet(), tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        options = {"gguf_file": file.name, "local_files_only": True}
        try:
            module = transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
            tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **options)
        except (ValueError, KeyError, OSError) as error:
            raise InputError(f"{file.name} cannot be read as GGUF: {str(error).splitlines()[0]}") from None
        for holder, entry in (
            (module.config, "quantization_config"),
            (module, "hf_quantizer"),
            (module, "quantization_method"),
            (module, "is_quantized"),
        ):
            if hasattr(holder, entry):
                delattr(holder, entry)
        made = Path(scratch) / "model"
        module.save_pretrained(made)
        tokenizer.save_pretrained(made)
        bos = said.get("tokenizer.ggml.bos_token_id")
        needs_bos = said.get("tokenizer.ggml.add_bos_token") and tokenizer.encode("x")[0] != bos
        write_json(
            made / bundled.NOTES,
            {
                "fingerprint": fingerprint,
                "licence": said.get("general.license", "unknown"),
                "prefix": [int(bos)] if needs_bos and bos is not None else [],
            },
        )
        try:
            os.replace(made, target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
    return target
