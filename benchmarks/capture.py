"""Peak memory and time of capture against collecting `output_attentions` under eager attention.

    python benchmarks/capture.py [--tokens 512 1024 2048]

A GPT-2-shaped decoder with 12 x 12 heads and random weights. Each measurement runs in a process of its own (peak memory
can only grow within one), A, B and C alternate, medians are printed. `plain` is the eager forward pass that keeps
nothing: what any capture under eager attention costs at least.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time

WAYS = ("plain", "output_attentions", "headscape", "headscape to disk")


def measure(way: str, tokens: int, threads: int) -> dict[str, float]:
    """Run one way in this process; peak memory above the loaded model, and the time of one pass after a warm-up."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import headscape as hs
    from headscape.attention.samples import Sample

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    network = GPT2LMHeadModel(GPT2Config(n_layer=12, n_head=12, n_embd=768, n_positions=tokens, vocab_size=1000)).eval()
    ids = torch.randint(0, 1000, (1, tokens))
    model = hs.wrap_module(network)
    warm = torch.randint(0, 1000, (1, 64))
    from headscape.attention import capture as module
    from headscape.attention.capture_tap import CaptureTap, Memory

    def sample(x: torch.Tensor) -> Sample:
        return Sample({"input_ids": x}, {}, {}, [])

    chosen = {site.name: (site, list(range(site.n_heads))) for site in model.sites}
    tap = CaptureTap(network, chosen, ("probs",), "float16")

    def run(x: torch.Tensor, folder: str) -> object:
        if way in ("plain", "output_attentions"):
            network.set_attn_implementation("eager")
            with torch.no_grad():
                return network.transformer(x, use_cache=False, output_attentions=way == "output_attentions")
        if way == "headscape":
            sink = Memory()
            module._run_sample(model, sample(x), tap, sink)
            return sink
        from pathlib import Path

        from headscape.storage import ArrayWriter

        with ArrayWriter(Path(folder) / "batch.safetensors", 12) as writer:
            module._run_sample(model, sample(x), tap, writer)
        return None

    with tempfile.TemporaryDirectory() as folder:
        run(warm, folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        kept = run(ids, folder)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        del kept
    said = module.estimate(model, tokens, ("probs",), "float16", 1, 144, way == "headscape to disk").memory_bytes
    return {"megabytes": (peak - before) / 1024, "seconds": seconds, "said": said / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]), args.threads)))
        return
    print(f"12 x 12 heads, {args.threads} thread(s), median of {args.repeats}; memory above the model\n")
    print("| tokens | way | peak memory | said beforehand | less than output_attentions | time | over plain |")
    print("|---|---|---|---|---|---|---|")
    for tokens in args.tokens:
        found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for _ in range(args.repeats):
            for way in WAYS:
                command = [sys.executable, __file__, "--one", way, str(tokens), "--threads", str(args.threads)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found[way].append(json.loads(done.stdout.splitlines()[-1]))
        middle = {
            way: {key: statistics.median(row[key] for row in rows) for key in rows[0]} for way, rows in found.items()
        }
        for way in WAYS:
            memory, seconds = middle[way]["megabytes"], middle[way]["seconds"]
            less = middle["output_attentions"]["megabytes"] / max(memory, 1e-9)
            said = f"{middle[way]['said']:.0f} MB" if "headscape" in way else ""
            over = seconds / middle["plain"]["seconds"]
            print(
                f"| {tokens} | {way} | {memory:.0f} MB | {said} | {less:.1f}x | {seconds:.2f} s | {over:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
