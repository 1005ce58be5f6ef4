"""The one place where transformers reads a folder: local files, safetensors, and never code that a folder brings.

`trust_remote_code=False` is in every call: without it, transformers asks on standard input whether it may run it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from functools import partial
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

from headscape.attention.gguf_reader import fast_reader
from headscape.attention.placing import DeviceMap, device_map_of
from headscape.errors import HeadscapeError, InputError
from headscape.fingerprints import cache_root
from headscape.storage import read_json, write_json

__all__ = [
    "draw_module",
    "gguf_weights",
    "has_tokenizer",
    "lacks_head",
    "mark_ragged",
    "quiet",
    "read_config",
    "read_gguf",
    "read_gguf_tokenizer",
    "read_module",
    "read_tokenizer",
    "reading",
    "stock_class",
    "takes_images",
]

_MAY_ASK = ("config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the progress bars and notices of transformers, which would break up our own output."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    accelerate = getLogger("accelerate")  # which notes that weights are on disk, as they were asked to be
    level = accelerate.level
    logging.set_verbosity_error()
    accelerate.setLevel(ERROR)
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # the GGUF reader draws a bar that no setting switches off
            yield
    finally:
        logging.set_verbosity(before)
        accelerate.setLevel(level)
        if bars:
            logging.enable_progress_bar()


def _own_code(place: Path) -> str | None:
    """The code that a folder wants to run ("config.json asks for evil.Model"), or None."""
    folder = place if place.is_dir() else place.parent
    for name in _MAY_ASK:
        try:
            asked = read_json(folder / name)["auto_map"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        wanted = asked.values() if isinstance(asked, dict) else [asked]
        flat = [str(one) for each in wanted for one in (each if isinstance(each, list) else [each]) if one]
        if flat:
            return f"{name} asks for {', '.join(sorted(set(flat)))}"
    return None


@contextmanager
def reading(place: Path) -> Iterator[None]:
    """Turn an error of transformers about a folder or file into one line."""
    try:
        with quiet():
            yield
    except (HeadscapeError, MemoryError):
        raise
    except Exception as error:  # of many types: JSON, safetensors, tokenizers, shapes, a division by no head
        code = _own_code(place)
        if code is not None:
            raise InputError(
                f"{place} needs its own code ({code}), which headscape does not run; load the module yourself and "
                "give it to hs.wrap_module"
            ) from error
        said = next(iter(str(error).splitlines()), "")
        raise InputError(f"{place} cannot be read as a model: {type(error).__name__}: {said}") from error


MOST_LAYERS = 10_000
RAGGED = "headscape ragged {}: open this folder with headscape.load_model"
"""Model type of a ragged network, which plain transformers reports as unknown."""


def mark_ragged(folder: Path) -> None:
    """Say in config.json that a folder is not what its stock type promises."""
    file = folder / "config.json"
    said = read_json(file)
    write_json(file, {**said, "model_type": RAGGED.format(said["model_type"]), "stock_model_type": said["model_type"]})


def _check_layers(folder: Path, said: Any) -> None:
    """Refuse a number of layers that transformers would take hours to build."""
    for name, value in said.items() if isinstance(said, dict) else ():
        _check_layers(folder, value)
        if "layer" in name and isinstance(value, int | float) and value > MOST_LAYERS:
            raise InputError(f"{folder}: config.json says {name} = {value:g}; up to {MOST_LAYERS:,} layers are built")


def read_config(folder: Path) -> Any:
    """The configuration of a model folder; of a ragged one, that of the stock network it was cut from."""
    import transformers

    with reading(folder):
        said = read_json(folder / "config.json")
        _check_layers(folder, said)
        stock = said.pop("stock_model_type", None) if isinstance(said, dict) else None
        if stock is not None:
            config = transformers.AutoConfig.for_model(**{**said, "model_type": stock})
        else:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    kernel = getattr(config, "_attn_implementation", None)
    if kernel is not None and "/" in str(kernel):
        raise InputError(
            f"{folder}: config.json asks for attention from the hub kernel {kernel}, which headscape does not run; "
            "take the entry attn_implementation out"
        )
    return config


def stock_class(config: Any) -> Any:
    """The class of transformers that a configuration names, or `AutoModel` where it names none of them."""
    import transformers

    named = getattr(transformers, (getattr(config, "architectures", None) or [""])[0] or "", None)
    stock = isinstance(named, type) and issubclass(named, transformers.PreTrainedModel)
    return named if stock else transformers.AutoModel


def read_module(
    kind: Any, folder: Path, dtype: Any, device_map: DeviceMap | None = None, config: Any = None
) -> tuple[Any, list[str]]:
    """The network of a folder as `kind`, and the names of the weights that the folder lacks."""
    options = {"dtype": dtype, "use_safetensors": True, "output_loading_info": True, "local_files_only": True}
    if config is not None:
        options["config"] = config
    with reading(folder):
        if device_map is not None:
            import torch

            with torch.device("meta"):
                bare = _builder(kind)(read_config(folder))
            # safetensors are read where they are; only weights that change their type are written again
            options |= {"device_map": device_map_of(device_map, bare), "offload_folder": cache_root() / "offload"}
        with _unmapped() if _changes(folder, dtype) else nullcontext():
            module, info = kind.from_pretrained(folder, trust_remote_code=False, **options)
    return module, sorted(info["missing_keys"])


def _changes(folder: Path, dtype: Any) -> bool:
    """Whether weights of a folder get another number type in memory than they have in its files."""
    from safetensors import safe_open

    kept = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}.get(str(dtype).removeprefix("torch."))
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="np") as opened:
            types = {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
        if any(kind != kept and kind.lstrip("B").startswith("F") for kind in types):  # not counters and masks
            return True
    return False


@contextmanager
def _unmapped() -> Iterator[None]:
    """Let transformers read weights rather than map their files.

    A mapped file whose weights are converted stays in memory beside what is made of it until the last one is done.
    """
    from transformers import modeling_utils as untyped

    reading: Any = untyped
    mapped = reading.safe_open

    def opened(*given: Any, **options: Any) -> Any:
        return mapped(*given, **(options | {"backend": "pread"} if "backend" in options else options))

    reading.safe_open = opened
    try:
        yield
    finally:
        reading.safe_open = mapped


def _builder(kind: Any) -> Any:
    """The function that makes a network from a configuration."""
    import transformers

    return (
        partial(transformers.AutoModel.from_config, trust_remote_code=False) if kind is transformers.AutoModel else kind
    )


def draw_module(kind: Any, config: Any, folder: Path, seed: int) -> Any:
    """The network of a folder with weights drawn at random; the state of torch's generator is left as it was."""
    import torch

    devices: list[Any] = []
    with reading(folder), torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        return _builder(kind)(config)


def lacks_head(module: Any, weights: Sequence[Path]) -> bool:
    """Whether a network has a part beyond its backbone, with parameters of its own, that the weights know nothing of."""
    from safetensors import safe_open

    inside = f"{module.base_model_prefix}."
    parts = {name.split(".")[0] for name, _ in module.named_parameters() if not name.startswith(inside)}
    held: set[str] = set()
    for file in weights:
        with reading(file), safe_open(file, "pt") as opened:
            held |= {name.split(".")[0] for name in opened.keys()}  # noqa: SIM118
    return not parts <= held


def takes_images(config: Any) -> bool:
    """Whether the network of a configuration sees images."""
    return hasattr(config, "image_size") and hasattr(config, "num_channels")


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder brings a tokenizer."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json"))


def read_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model folder."""
    import transformers

    with reading(folder):
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def read_gguf(file: Path) -> tuple[Any, Any]:
    """Network (on the meta device: shapes and names without weights) and tokenizer of a GGUF file."""
    import torch
    import transformers

    with reading(file), fast_reader():
        config = _of_gguf(transformers.AutoConfig, file)
        build: Any = transformers.AutoModelForCausalLM.from_config
        with torch.device("meta"):
            module = build(config, trust_remote_code=False)
    return module, read_gguf_tokenizer(file)


def read_gguf_tokenizer(file: Path) -> Any:
    """The tokenizer of a GGUF file."""
    import transformers

    with reading(file), fast_reader():
        return _of_gguf(transformers.AutoTokenizer, file)


def _of_gguf(kind: Any, file: Path) -> Any:
    return kind.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True, trust_remote_code=False)


def gguf_weights(reader: Any, module: Any) -> Iterator[tuple[str, Any]]:
    """The weights of an open GGUF file for that network, dequantized to float32, one at a time: name and array."""
    import gguf
    from transformers import modeling_gguf_pytorch_utils as untyped

    reading: Any = untyped  # transformers' own table of names and layouts, read without its list of all tensors
    kind = str(reader.fields["general.architecture"].contents())
    parsed: dict[str, Any] = {"config": module.config.to_dict(), "tensors": {}}
    processor = reading.TENSOR_PROCESSORS.get(kind, reading.TensorProcessor)(config=parsed["config"])
    names = reading.get_gguf_hf_weights_map(module, processor)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        made = processor.process(weights=weights, name=tensor.name, tensor_key_mapping=names, parsed_parameters=parsed)
        if made.name in names:
            yield names[made.name], made.weights
    yield from (
        (name, weights.numpy()) for name, weights in parsed["tensors"].items()
    )  # experts that were put together
