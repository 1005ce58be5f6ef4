"""Load a transformer: by bundled name, from a folder, a .gguf file or a hub id."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from headscape import hooks
from headscape.attention import bundled
from headscape.attention.convert import converted
from headscape.attention.loading import (
    draw_module,
    has_tokenizer,
    lacks_head,
    read_config,
    read_module,
    read_tokenizer,
    reading,
    stock_class,
)
from headscape.attention.placing import DeviceMap
from headscape.attention.wrapping import Model, described, wrap_module
from headscape.checks import one_of, seed
from headscape.errors import InputError
from headscape.fingerprints import file_hash, full_hash

__all__ = ["Model", "ModelEntry", "bundled_folder", "device_of", "list_models", "load_model", "wrap_module"]

DTYPES = ("float32", "bfloat16", "float16", "auto")
SPREAD = {"split": "auto", "disk": "disk"}  # values of device that stand for a device map


@dataclass(frozen=True)
class ModelEntry:
    """One line of `headscape models`."""

    name: str
    summary: str
    licence: str
    download: int
    present: bool
    quantized: str = ""


def list_models() -> list[ModelEntry]:
    """The bundled models, and whether their weights are here.

    >>> [entry.name for entry in hs.list_models()]
    ['smollm2-135m', 'minilm-l6', 'gemma3-270m', 'mpnet-base', 'vit-fmnist']
    """
    return [
        ModelEntry(m.name, m.summary, m.licence, m.download, bundled.is_present(m), m.quantized)
        for m in bundled.BUNDLED.values()
    ]


def device_of(device: str) -> str:
    """The device of that name, checked to exist; "auto" takes the best available."""
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    kind = device.split(":")[0]
    if kind in SPREAD:
        raise InputError(f"networks that are trained here take one device: auto, cpu, cuda or mps, not {device!r}")
    if kind not in ("cpu", "cuda", "mps"):
        raise InputError(f"device is auto, cpu, cuda, mps, split or disk, not {device!r}")
    if (kind == "cuda" and not torch.cuda.is_available()) or (kind == "mps" and not torch.backends.mps.is_available()):
        raise InputError(f"this machine has no {kind} device; use device='cpu' or 'auto'")
    return device


def load_model(
    spec: str | Path,
    *,
    device: str = "auto",
    dtype: str = "float32",
    device_map: DeviceMap | None = None,
    online: bool = False,
    random_init: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Model:
    """Load a model: a bundled name, a local folder, a .gguf file, or a hub id.

    Parameters
    ----------
    spec
        Bundled names are listed by `list_models`; their weights are fetched when missing. A hub id (owner/name) is
        taken from the local hub cache unless `online`.
    device
        "auto", "cpu", "cuda" or "mps"; "split" and "disk" are device_map="auto" and "disk".
    dtype
        Of the weights: "float32", "bfloat16", "float16", or "auto" for that of the files.
    device_map
        For a model larger than one device, through accelerate: "auto" fills the devices, then memory, then disk; "disk"
        leaves all layers on disk and reads each when its turn comes; or a device ("cpu", "cuda:0", "disk") by module
        name. Capture, interventions, losses and roles work as usual; weights cannot be changed in place.
    random_init
        A seed: keep the architecture, draw new random weights. The control of most studies.

    Raises
    ------
    InputError
        Unknown name, folder without weights, pickled checkpoint, wrong device or dtype.

    >>> vit = hs.load_model("vit-fmnist")  # comes with headscape
    >>> vit.task, vit.n_layers, vit.n_heads
    ('image-classifier', 6, 6)
    >>> control = hs.load_model("vit-fmnist", random_init=0)  # the same network before training
    """
    if find_spec("torch") is None or find_spec("transformers") is None:
        raise InputError("loading a model needs torch and transformers: pip install 'headscape[models]'")
    if not isinstance(spec, (str, Path)):
        raise InputError(f"a model is given by its name or path, not {spec!r}")
    one_of("dtype", dtype, DTYPES)
    if random_init is not None:
        seed(random_init, "random_init")
    device_map = SPREAD.get(device, device_map)
    if device_map is not None and random_init is not None:
        raise InputError(
            "random weights are drawn whole: load them without a device map; on the command line use another --device, or "
            "leave the control out (--no-control)"
        )
    place = Place("cpu" if device in SPREAD else device_of(device), dtype, device_map)
    text = str(spec)
    path = Path(spec)
    if text in bundled.BUNDLED:
        entry = bundled.BUNDLED[text]
        model = _from_folder(bundled_folder(entry, say), text, place, random_init)
        model.licence = entry.licence
        model.quantized = entry.quantized if random_init is None else ""
        return model
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InputError(f"no file {path}")
        return _from_folder(converted(path, say), text, place, random_init)
    if path.is_dir():
        return _from_folder(path, text, place, random_init)
    if path.exists():
        raise InputError(f"{path} is neither a model folder nor a .gguf file")
    if text.count("/") == 1 and not text.startswith((".", "/", "~")):
        return _from_folder(_hub_folder(text, online), text, place, random_init)
    if "/" in text or path.suffix:
        raise InputError(f"no model folder or .gguf file at {path}")
    bundled.find_bundled(text)
    raise AssertionError("unreachable")


def bundled_folder(entry: bundled.Bundled, say: Callable[[str], None]) -> Path:
    """The folder a bundled model is loaded from: fetched, checked, and converted where it came as GGUF."""
    folder = bundled.fetch(entry.name, say)
    bundled.check_bundled(entry, folder)
    return converted(next(folder.glob("*.gguf")), say) if entry.form == "gguf" else folder


def _hub_folder(hub_id: str, online: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
    try:
        return Path(snapshot_download(hub_id, local_files_only=not online, allow_patterns=patterns))
    except LocalEntryNotFoundError:
        way = "could not be reached" if online else "is not in the local hub cache; allow the download with --online"
        raise InputError(f"{hub_id}: no such folder here, and as a hub id it {way}") from None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise InputError(f"{hub_id}: the hub answered {str(error).splitlines()[0]}") from None


def _weights_in(folder: Path) -> tuple[Path, ...]:
    found = tuple(sorted(folder.glob("*.safetensors")))
    if found:
        return found
    pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth"), *folder.glob("*.ckpt")]
    if pickled:
        raise InputError(
            f"{folder} holds a pickled checkpoint ({pickled[0].name}), which can run code when read; "
            "convert it to safetensors first (save_pretrained does)"
        )
    gguf = sorted(folder.glob("*.gguf"))
    if gguf:
        raise InputError(f"{folder} holds GGUF weights; name the file itself: {gguf[0]}")
    raise InputError(f"{folder} holds no weights (*.safetensors)")


@dataclass(frozen=True)
class Place:
    """Where and in which number type a model is loaded."""

    device: str
    dtype: str
    device_map: DeviceMap | None = None


def _from_folder(folder: Path, source: str, place: Place, random_init: int | None) -> Model:
    """The model of a folder; whatever goes wrong in reading untrusted files becomes one line."""
    with reading(folder):
        return _read_folder(folder, source, place, random_init)


def _read_folder(folder: Path, source: str, place: Place, random_init: int | None) -> Model:
    import torch
    import transformers

    from headscape.attention.ragged import PLAN_FILE, RAGGED_NOTE, ragged_class

    if not (folder / "config.json").is_file():
        _weights_in(folder)
        raise InputError(f"{folder} has no config.json; a model folder has one beside its weights")
    weights = _weights_in(folder)
    ragged = (folder / PLAN_FILE).is_file()
    notes = [RAGGED_NOTE] if ragged else []
    config = read_config(folder)
    dtype = place.dtype if place.dtype != "auto" else str(config.dtype or "float32").removeprefix("torch.")
    torch_dtype = getattr(torch, dtype)
    kind = ragged_class(stock_class(config), folder) if ragged else stock_class(config)
    if random_init is None:
        module, missing = read_module(kind, folder, torch_dtype, place.device_map, config if ragged else None)
        if missing and kind is not transformers.AutoModel and not ragged:
            # a head without weights would be random: the backbone alone is what the folder really holds
            notes.append(f"{kind.__name__}: no weights for {missing[0]}; loaded the backbone alone")
            module, missing = read_module(transformers.AutoModel, folder, torch_dtype, place.device_map)
            missing = [name for name in missing if "pooler" not in name]
        if missing:
            raise InputError(f"{folder}: the weights lack {missing[0]} (and {len(missing) - 1} more)")
    else:
        module = draw_module(kind, config, folder, random_init).to(torch_dtype)
        if kind is not transformers.AutoModel and not ragged and lacks_head(module, weights):
            # the control of a network that is loaded as its backbone alone
            module = draw_module(transformers.AutoModel, config, folder, random_init).to(torch_dtype)
        notes.append(f"random weights, seed {random_init}")
    tokenizer = None
    if has_tokenizer(folder):
        tokenizer = read_tokenizer(folder)
    module.eval()
    if place.device_map is None:
        module.to(place.device)
    said = bundled.read_notes(folder)
    model = described(
        module,
        tokenizer,
        source=source,
        folder=folder,
        device=place.device if place.device_map is None else str(module.device),
        device_map=place.device_map,
        dtype=dtype,
        licence=str(said.get("licence") or _licence(folder)),
        prefix=tuple(map(int, said.get("prefix", ()))),
        weights=weights,
        random_init=random_init,
        location=str(Path(source).resolve()) if Path(source).exists() and source not in bundled.BUNDLED else None,
        notes=tuple(notes),
        quantized=str(said.get("quantized", "")) if random_init is None else "",
    )
    record = getattr(module.config, "headscape_hopfield", None)
    if record is not None and hooks.restore_conversion is not None:
        del module.config.headscape_hopfield
        hooks.restore_conversion(model, record)
        model.notes = (*model.notes, "converted to Modern Hopfield Attention: " + json.dumps(record))
    return model


def verify_weights(model: Model) -> str:
    """Read every byte of a model's weights, and raise if their SHA-256, which is returned, is not the known one.

    Otherwise a file is read again only when its size or one of its times has changed, which a failing disk does not do.
    """
    entry = bundled.BUNDLED.get(model.source)
    if entry is not None:
        bundled.check_bundled(entry, bundled.weights_folder(entry), full=True)
    for file in model.weights:
        believed, found = file_hash(file), full_hash(file)
        if believed != found:
            raise InputError(
                f"{file} is not what it was, though its size and times are (SHA-256 {found[:12]}..., not "
                f"{believed[:12]}...): a failing disk, or times set back; restore the file, and touch it"
            )
    return model.fingerprint


def _licence(folder: Path) -> str:
    """The licence a model card states in its first lines, else unknown."""
    card = folder / "README.md"
    if card.is_file():
        for line in card.read_text(encoding="utf-8", errors="replace").splitlines()[:40]:
            if line.startswith("license:"):
                return line.split(":", 1)[1].strip()
    return "unknown"
