"""Capture a model larger than the memory it may take: layers are read from disk, one at a time.

A Llama of random weights is written to a folder; then processes of their own load and capture it, one with all layers on
disk under a limit on its memory (RLIMIT_DATA: what a process allocates itself; pages of a mapped file are the system's
to give back), one in whole without a limit. Memory is the peak above the bare imports.

    python benchmarks/large_model.py --gigabytes 4 --limit 2
"""

from __future__ import annotations

import argparse
import json
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


def allocated() -> int:
    """Bytes that this process has allocated itself and that are in memory now."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def child(folder: Path, limit: float | None, device: str, tokens: int) -> None:
    """Load, run a plain pass and capture in this process; print figures as JSON."""
    import resource

    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    import headscape as hs
    from headscape.attention.capture import capture
    from headscape.attention.models import load_model
    from headscape.attention.sites import run

    torch.set_num_threads(1)
    bare = allocated()
    if limit is not None:
        status = Path("/proc/self/status").read_text()
        data = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (data + int(limit * 1e9), resource.RLIM_INFINITY))
    peak, done = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, allocated())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    model = load_model(folder, device=device)
    loaded, at_load = time.perf_counter() - start, peak
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
    kept = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    figures = {"weights": kept, "peak loading": at_load - bare, "peak": peak - bare, "loading": loaded, "plain": plain}
    print(
        json.dumps(figures | {"capture": captured, "checksum": checksum, "device": device, "version": hs.__version__})
    )


def measure(folder: Path, limit: float | None, device: str, tokens: int) -> dict[str, float]:
    """The figures of a process of its own."""
    call = [sys.executable, __file__, "--child", str(folder), "--device", device, "--tokens", str(tokens)]
    done = subprocess.run(call + ([] if limit is None else ["--limit", str(limit)]), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--limit", type=float, default=None, help="gigabytes that the process may allocate")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--device", default="disk")
    parser.add_argument("--child", type=Path)
    parser.add_argument("--whole", action="store_true", help="also load it whole, without a limit")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(options.child, options.limit, options.device, options.tokens)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "llama"
        write_llama(folder, options.gigabytes)
        found = [measure(folder, options.limit, "disk", options.tokens)]
        if options.whole:
            found.append(measure(folder, None, "cpu", options.tokens))
    if options.json:
        print(json.dumps(found))
        return
    for row in found:
        print(
            f"layers on {row['device']}: weights {row['weights'] / 1e9:.2f} GB, peak while loading {row['peak loading'] / row['weights']:.2f} of "
            f"that, in all {row['peak'] / 1e9:.2f} GB ({row['peak'] / row['weights']:.2f}); a capture takes {row['capture'] / row['plain']:.1f} "
            f"plain passes of {row['plain']:.1f} s"
        )
    if options.whole:
        print("the same attention" if found[0]["checksum"] == found[1]["checksum"] else "OTHER ATTENTION")


if __name__ == "__main__":
    main()
