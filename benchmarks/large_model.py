"""Capture a model larger than the memory it may take: layers are read from disk, one at a time.

A Llama of random weights is written to a folder; then processes of their own load and capture it, one with all layers on
disk under a limit on its memory, mapped files included (it is ended at once when it takes more), one in whole without a
limit. Memory is the peak above the bare imports.

    python benchmarks/large_model.py --gigabytes 4 --limit 2 --whole
    python benchmarks/large_model.py --model FILE.gguf          # or a folder: what loading takes; GGUF is converted anew
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any


def write_llama(folder: Path, gigabytes: float, width: int = 2048, tokens: int = 1000) -> None:
    """A Llama of about so many gigabytes of float32, one file per layer: random numbers, the same block again and again."""
    import numpy as np
    import torch
    import transformers
    from safetensors.numpy import save_file

    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "vocab_size": tokens}
    one = sizes | {"num_attention_heads": 16, "head_dim": width // 16}
    layer_bytes = 4 * (4 * width**2 + 3 * 4 * width**2)
    config = transformers.LlamaConfig(num_hidden_layers=max(2, round(gigabytes * 1e9 / layer_bytes)), **one)
    config.architectures = ["LlamaForCausalLM"]
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in transformers.LlamaForCausalLM(config).named_parameters()}
    block = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32) / width**0.5
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, list[str]] = {}
    for name in shapes:
        part = name.split(".")[2] if ".layers." in name else "rest"
        files.setdefault(f"model-{part}.safetensors", []).append(name)
    places, total = {}, 0
    for file, names in files.items():
        arrays = {n: np.ones(shapes[n], np.float32) if "norm" in n else _filled(block, shapes[n]) for n in names}
        save_file(arrays, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(names, file)
        total += sum(array.nbytes for array in arrays.values())
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": places})
    )
    config.save_pretrained(folder)


def _filled(block: Any, shape: tuple[int, ...]) -> Any:
    """An array of a shape, filled with a block again and again."""
    import numpy as np

    array = np.empty(shape, block.dtype)
    flat = array.reshape(-1)
    for start in range(0, flat.size, block.size):
        flat[start : start + block.size] = block[: flat.size - start]
    return array


def in_memory() -> tuple[int, int]:
    """Bytes of this process that are in memory now: those it allocated itself, and with pages of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "VmRSS"))}
    return found["RssAnon"], found["VmRSS"]


def child(source: Path, limit: float | None, device: str, dtype: str, tokens: int) -> None:
    """Load, run a plain pass and capture in this process; print figures as JSON."""
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    import headscape as hs
    from headscape.attention.capture import capture
    from headscape.attention.models import load_model
    from headscape.attention.sites import run

    torch.set_num_threads(1)
    bare, bare_mapped = in_memory()
    peak, mapped, done = 0, 0, threading.Event()

    def watch() -> None:
        nonlocal peak, mapped
        while not done.wait(0.005):
            now, with_files = in_memory()
            peak, mapped = max(peak, now), max(mapped, with_files)
            if limit is not None and mapped - bare_mapped > limit * 1e9:
                print(f"took more than {limit:g} GB above the bare imports", file=sys.stderr, flush=True)
                os._exit(9)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    start = time.perf_counter()
    model = load_model(source, device=device, dtype=dtype)
    loaded, at_load, mapped_at_load = time.perf_counter() - start, peak, mapped
    ids = torch.arange(10, 10 + tokens)[None]
    with torch.no_grad():
        start = time.perf_counter()
        run(model, {"input_ids": ids}, whole=False)
        plain = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        taken = capture(model, ids, out=Path(out) / "run")
        captured = time.perf_counter() - start
        checksum = float(taken.tensor(0).values[:, :, -1].sum())
    done.set()
    watcher.join()
    kept = sum(weights.numel() * weights.element_size() for weights in model.module.parameters())
    figures = {"weights": kept, "peak loading": at_load - bare, "peak": peak - bare, "loading": loaded, "plain": plain}
    figures |= {"loading with mapped files": mapped_at_load - bare_mapped, "with mapped files": mapped - bare_mapped}
    print(
        json.dumps(figures | {"capture": captured, "checksum": checksum, "device": device, "version": hs.__version__})
    )


def measure(source: Path, limit: float | None, device: str, dtype: str, tokens: int) -> dict[str, float]:
    """The figures of a process of its own, with a cache of its own: a GGUF file is converted there."""
    call = [sys.executable, __file__, "--child", str(source), "--device", device, "--dtype", dtype]
    call += ["--tokens", str(tokens)] + ([] if limit is None else ["--limit", str(limit)])
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(call, capture_output=True, text=True, env=os.environ | {"HEADSCAPE_CACHE": cache})
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--limit", type=float, default=None, help="gigabytes that the process may have in memory")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--device", default="disk")
    parser.add_argument("--dtype", default="float32", help="number type of the weights in memory")
    parser.add_argument("--model", type=Path, help="load this folder or .gguf file whole, instead of a Llama made here")
    parser.add_argument("--child", type=Path)
    parser.add_argument("--whole", action="store_true", help="also load it whole, without a limit")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.limit, options.device, options.dtype, options.tokens)
        return
    found = (
        [] if options.model is None else [measure(options.model, options.limit, "cpu", options.dtype, options.tokens)]
    )
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "llama"
        if not found:
            write_llama(folder, options.gigabytes)
            found = [measure(folder, options.limit, "disk", options.dtype, options.tokens)]
            if options.whole:
                found.append(measure(folder, None, "cpu", options.dtype, options.tokens))
    if options.json:
        print(json.dumps(found))
        return
    for row in found:
        loading, mapped = (row[name] / row["weights"] for name in ("peak loading", "loading with mapped files"))
        print(
            f"layers on {row['device']}: weights {row['weights'] / 1e9:.2f} GB, peak while loading {loading:.2f} of that "
            f"({mapped:.2f} with mapped files), in all {row['peak'] / 1e9:.2f} GB allocated, "
            f"{row['with mapped files'] / 1e9:.2f} GB with mapped files; a capture takes "
            f"{row['capture'] / row['plain']:.1f} plain passes of {row['plain']:.1f} s"
        )
    if len(found) == 2:
        print("the same attention" if found[0]["checksum"] == found[1]["checksum"] else "OTHER ATTENTION")


if __name__ == "__main__":
    main()
