"""Memory and time of pooled capture as the context grows, beside the plain forward pass of the backbone.

    python benchmarks/long_context.py [--tokens 512 1024 2048 4096 8192] [--pool 256]

SmolLM2, backbone only. Each measurement runs in a process of its own (peak memory can only grow within one), after a
warm-up on 64 tokens; memory is the peak above the loaded model. `sdpa` is the model's own pass with the attention it
uses by default, `eager` the one that computes maps as well; both keep nothing. Eager is left out above --eager-most
tokens, where its maps do not fit. Times are processor seconds of one thread, so that a busy machine does not blur them.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

WAYS = ("pooled", "sdpa", "eager")


def measure(way: str, tokens: int, pool: int, name: str) -> dict[str, float]:
    """Run one way in this process; peak memory above the loaded model, and the time of one pass after a warm-up."""
    import torch

    import headscape as hs
    from headscape.attention.capture import _run_sample
    from headscape.attention.capture_tap import CaptureTap, Memory
    from headscape.attention.estimate import Stored, estimate
    from headscape.attention.samples import Sample
    from headscape.attention.sites import example_input, run

    torch.set_num_threads(1)
    model = hs.load_model(name, device="cpu")
    chosen = {site.name: (site, list(range(site.n_heads))) for site in model.sites}
    if way == "eager":
        model.module.set_attn_implementation("eager")

    def once(n: int, blocks: int) -> object:
        arguments = example_input(model, n)
        if way == "pooled":
            sink = Memory()
            tap = CaptureTap(model.module, chosen, ("probs",), "float16", blocks)
            _run_sample(model, Sample(arguments, {}, {}, []), tap, sink)
            return sink
        with torch.no_grad():
            return run(model, arguments, whole=False)

    once(64, 16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, wall = time.process_time(), time.perf_counter()
    kept = once(tokens, min(pool, tokens))
    found = {"seconds": time.process_time() - start, "wall": time.perf_counter() - wall}
    found["megabytes"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    del kept
    n_heads = sum(site.n_heads for site in model.sites)
    said = estimate(model, tokens, Stored(("probs",), "float16", n_heads, min(pool, tokens)), 1, False)
    return found | {"said": said.memory_bytes / 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--pool", type=int, default=256)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--eager-most", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], int(args.one[1]), args.pool, args.model)))
        return
    print(f"{args.model}, pool {args.pool}, one thread, median of {args.repeats}; memory above the model\n")
    print("| tokens | pooled (said) | sdpa | eager | pooled time | over sdpa | over eager | grows by | sdpa grows by |")
    print("|---|---|---|---|---|---|---|---|---|")
    last: dict[str, float] = {}
    for tokens in args.tokens:
        ways = [way for way in WAYS if way != "eager" or tokens <= args.eager_most]
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(args.repeats):
            for way in ways:
                command = [sys.executable, __file__, "--one", way, str(tokens), "--pool", str(args.pool)]
                done = subprocess.run([*command, "--model", args.model], stdout=subprocess.PIPE, text=True, check=True)
                found[way].append(json.loads(done.stdout.splitlines()[-1]))
        middle = {way: {k: statistics.median(r[k] for r in rows) for k in rows[0]} for way, rows in found.items()}
        pooled, sdpa = middle["pooled"], middle["sdpa"]
        eager = middle.get("eager")
        cells = [
            f"{tokens}",
            f"{pooled['megabytes']:.0f} MB ({pooled['said']:.0f})",
            f"{sdpa['megabytes']:.0f} MB",
            f"{eager['megabytes']:.0f} MB" if eager else "-",
            f"{pooled['seconds']:.1f} s",
            f"{pooled['seconds'] / sdpa['seconds']:.2f}",
            f"{pooled['seconds'] / eager['seconds']:.2f}" if eager else "-",
            f"{pooled['seconds'] / last['pooled']:.1f}x" if last else "",
            f"{sdpa['seconds'] / last['sdpa']:.1f}x" if last else "",
        ]
        last = {way: middle[way]["seconds"] for way in ("pooled", "sdpa")}
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
