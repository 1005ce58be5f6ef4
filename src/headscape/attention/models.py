"""Load a transformer: by bundled name, from a folder, a .gguf file or a hub id; or wrap a module of one's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headscape import hooks
from headscape.attention import bundled
from headscape.attention.convert import converted
from headscape.attention.inputs import ImagePreparation
from headscape.attention.loading import (
    draw_module,
    has_tokenizer,
    read_config,
    read_module,
    read_tokenizer,
    reading,
    stock_class,
    takes_images,
)
from headscape.attention.placing import DeviceMap
from headscape.checks import seed
from headscape.errors import InputError
from headscape.fingerprints import file_hash, full_hash, joint_hash

if TYPE_CHECKING:
    import torch

    from headscape.attention.sites import Site

__all__ = ["Model", "ModelEntry", "device_of", "evaluating", "list_models", "load_model", "wrap_module"]

Task = Literal["causal-lm", "masked-lm", "seq2seq-lm", "image-classifier", "classifier", "encoder", "module"]
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


@dataclass(eq=False)
class Model:
    """A loaded network and what headscape needs to know of it.

    `n_heads` counts query heads a layer, `n_kv_heads` the key/value heads they share. `max_tokens` is the longest
    context, None when there is no limit. `prefix` are ids the tokenizer should put before a text but does not.
    `location` is the absolute path of a model that is loaded by its path, None for one known by name. `quantized` says
    in how few bits the weights were stored, "" where they were not, or were drawn anew.

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
        """Whether it is a network of its own that takes token ids as its one argument, as a HookedTransformer does."""
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
        """Query heads a layer."""
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


def device_of(device: str) -> str:
    """The device of that name, checked to be there; "auto" takes the best there is."""
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    kind = device.split(":")[0]
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
        name. Capture, interventions, losses and roles work as ever; weights cannot be changed in place.
    random_init
        A seed: keep the architecture, draw the weights anew. The control of most studies.

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
    if dtype not in DTYPES:
        raise InputError(f"dtype is one of {', '.join(DTYPES)}, not {dtype!r}")
    if random_init is not None:
        seed(random_init, "random_init")
    device_map = SPREAD.get(device, device_map)
    if device_map is not None and random_init is not None:
        raise InputError(
            "random weights are drawn whole: load them without a device map; on the command line take another --device, or "
            "leave the control out (--no-control)"
        )
    place = Place("cpu" if device in SPREAD else device_of(device), dtype, device_map)
    text = str(spec)
    path = Path(spec)
    if text in bundled.BUNDLED:
        entry = bundled.BUNDLED[text]
        folder = bundled.fetch(text, say)
        bundled.check_bundled(entry, folder)
        if entry.form == "gguf":
            folder = converted(next(folder.glob("*.gguf")), say)
        model = _from_folder(folder, text, place, random_init)
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
    """The model of a folder; whatever goes wrong in reading a stranger's files is one line."""
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
        notes.append(f"random weights, seed {random_init}")
    tokenizer = None
    if has_tokenizer(folder):
        tokenizer = read_tokenizer(folder)
    module.eval()
    if place.device_map is None:
        module.to(place.device)
    said = bundled.read_notes(folder)
    model = _describe(
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
    """Read every byte of a model's weights, and raise if they are not what headscape believed; their SHA-256.

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
                f"{believed[:12]}...): a failing disk, or times set back; put the file back, and touch it"
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


def _describe(module: Any, tokenizer: Any, *, folder: Path | None, **known: Any) -> Model:
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
        raise InputError(f"{known['source']} takes {limit} tokens by its configuration; it cannot be shown anything")
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
    does a HookedTransformer of TransformerLens. Of any other `torch.nn.Module`, its `MultiheadAttention` layers are
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
    if hasattr(module, "config") and hasattr(module.config, "model_type"):
        parameter = next(module.parameters())
        return _describe(
            module.eval(),
            tokenizer,
            source=name or type(module).__name__,
            folder=None,
            device=str(parameter.device),
            dtype=str(parameter.dtype).removeprefix("torch."),
            licence="unknown",
            prefix=(),
            notes=(),
        )
    parameter = next(module.parameters())
    return Model(
        module=module.eval(),
        tokenizer=tokenizer,
        images=None,
        source=name or type(module).__name__,
        family=type(module).__name__,
        task="module",
        n_kv_heads=0,
        n_parameters=sum(p.numel() for p in module.parameters()),
        licence="unknown",
        max_tokens=None,
        device=str(parameter.device),
        dtype=str(parameter.dtype).removeprefix("torch."),
        attention=None if attention is None else tuple(attention),
        example=example,
    )


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Switch dropout off inside the block; afterwards every part of the network is in the mode it was in."""
    inside = _underlying(model.module if isinstance(model, Model) else model, None, None)[0]
    modes = [(part, part.training) for part in inside.modules()]
    inside.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _underlying(module: Any, tokenizer: Any, attention: Sequence[str] | None) -> tuple[Any, Any, Sequence[str] | None]:
    """The network inside a wrapper, with the wrapper's tokenizer.

    torch.compile keeps it as `_orig_mod`, parallel training as `module`, nnsight as `_module` (formerly `_model`).
    A HookedTransformer is a network of its own, whose attention is computed in blocks.N.attn. TransformerLens' bridge
    puts parts of its own into the network, so that what is inside is no transformers model any more.
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
