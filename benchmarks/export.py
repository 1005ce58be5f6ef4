"""Size and speed of SmolLM2 without some heads, exported as `ragged`, against the intact model.

    python benchmarks/export.py [--shares 0.2 0.4] [--repeats 9] [--threads 1] [--gguf [--out FILE]]

`--gguf` removes as many key/value groups and runs both models in llama.cpp instead (the wheel xllamacpp): size of file,
bytes that llama.cpp holds per token, and speed. These bytes are measured: what the state of a context grows by from a short
prompt to a long one when llama.cpp saves it, keys and values in float16 with a few bytes of positions. Speed is in tokens
per second of CPU time, which hardly feels other work on the machine; the intact model stands there twice, as a control.

The heads are a seeded random choice over all layers: size and speed do not depend on which. All models are in memory
and run in turns; medians are printed. Generation is greedy, with a fixed number of tokens.
"""

import argparse
import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from _timing import in_turns, keep, table

PROMPT, NEW = 64, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.2, 0.4])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gguf", action="store_true")
    parser.add_argument("--out", type=Path, help="add the table of --gguf to this CSV file")
    args = parser.parse_args()
    if args.gguf:
        llama_cpp(args)
        return
    import torch

    import headscape as hs
    from headscape.attention.sites import example_input, run
    from headscape.pruning.export import export_pruned

    torch.set_num_threads(args.threads)
    intact = hs.load_model(args.model, device="cpu")
    heads = [head for site in intact.sites for head in site.heads]
    order = np.random.default_rng(0).permutation(len(heads))
    models, facts = {"intact": intact}, {}
    with tempfile.TemporaryDirectory() as folder:
        for share in args.shares:
            removed = [heads[i] for i in order[: round(share * len(heads))]]
            name = f"{share:.0%} removed"
            report = export_pruned(intact, removed, Path(folder) / f"{share}", "ragged")
            models[name] = hs.load_model(report.path, device="cpu")
            facts["intact"] = (report.parameters.before, report.bytes.before)
            facts[name] = (report.parameters.after, report.bytes.after)
        batch = example_input(intact, args.tokens)
        prompt = example_input(intact, PROMPT)["input_ids"]
        options = {"min_new_tokens": NEW, "max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        with torch.no_grad():
            forward = in_turns({n: lambda m=m: run(m, batch, whole=False) for n, m in models.items()}, args.repeats)
            generation = in_turns(
                {n: lambda m=m: m.module.generate(prompt, **options) for n, m in models.items()}, args.repeats
            )
    print(
        f"{args.model}, {len(heads)} heads, float32, {args.threads} thread(s), medians of {args.repeats} in turns; "
        f"forward: {args.tokens} tokens without the output head; generation: {NEW} tokens after {PROMPT}\n"
    )

    def cells(now: float, before: float, shown: str) -> str:
        return shown if now == before else f"{shown} ({now / before - 1:+.1%})"

    rows = []
    for name, (parameters, size) in facts.items():
        first = facts["intact"]
        rows.append(
            [
                name,
                cells(parameters, first[0], f"{parameters / 1e6:.1f} M"),
                cells(size, first[1], f"{size / 2**20:.0f} MB"),
                *(
                    cells(times[name].wall, times["intact"].wall, f"{times[name].wall:.3f} s")
                    + f", cpu {times[name].cpu / times['intact'].cpu - 1:+.1%}"
                    for times in (forward, generation)
                ),
            ]
        )
    print(table(["", "parameters", "file", "forward", "generation"], rows))


def llama_cpp(args: argparse.Namespace) -> None:
    import xllamacpp

    import headscape as hs
    from headscape.pruning.export import export_pruned
    from headscape.pruning.units import units_of

    model = hs.load_model(args.model, device="cpu")
    units = [[site.heads[h] for h in own] for site in model.sites for own in units_of(model, "group")[site.name]]
    order = np.random.default_rng(0).permutation(len(units))
    rows, servers = [], {}
    with tempfile.TemporaryDirectory() as folder:
        names = ["intact", "intact again (control)", *(f"{share:.0%} of the groups removed" for share in args.shares)]
        for name, share in zip(names, (0.0, 0.0, *args.shares), strict=True):
            heads = [head for i in order[: round(share * len(units))] for head in units[i]]
            report = export_pruned(model, heads, Path(folder) / f"{name}.gguf")
            params = xllamacpp.CommonParams()
            params.model.path, params.n_ctx, params.n_parallel = str(report.path), PROMPT + 2 * NEW, 1
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
            params.slot_save_path, params.endpoint_slots = f"{folder}/", True
            servers[name] = (report, xllamacpp.Server(params))
        prompt = list(range(100, 100 + PROMPT))
        request = {"prompt": prompt, "n_predict": NEW, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
        calls = {name: lambda s=server: s.handle_completions(request) for name, (_, server) in servers.items()}
        times = in_turns(calls, args.repeats)
        held = {name: bytes_per_token(server, prompt) for name, (_, server) in servers.items()}
        first = next(iter(servers))
        for name, (report, _) in servers.items():
            cells = [name, f"{report.bytes.after / 2**20:.0f} MB", f"{held[name]:,.0f}", f"{NEW / times[name].cpu:.1f}"]
            if name != first:
                cells[1] += f" ({report.bytes.change:+.1%})"
                cells[2] += f" ({held[name] / held[first] - 1:+.1%})"
                cells[3] += f" ({times[first].cpu / times[name].cpu - 1:+.1%})"
            rows.append(cells)
        servers.clear()
    header = [args.model, "file, f16", "bytes per token in llama.cpp", f"tokens per CPU second, {NEW} after {PROMPT}"]
    print(table(header, rows))
    if args.out:
        keep(args.out, header, rows)


def bytes_per_token(server: Any, prompt: list[int]) -> float:
    """What the state that llama.cpp saves of its context grows by, from half a prompt to the whole."""
    found = []
    for n in (len(prompt) // 2, len(prompt)):
        server.handle_completions({"prompt": prompt[:n], "n_predict": 1, "cache_prompt": False})
        asked = json.dumps({"filename": f"state-{n}"}).encode()
        url = f"{server.listening_address}/slots/0?action=save"
        with urllib.request.urlopen(urllib.request.Request(url, asked, {"Content-Type": "application/json"})) as answer:
            found.append(json.loads(answer.read()))
    return (found[1]["n_written"] - found[0]["n_written"]) / (found[1]["n_saved"] - found[0]["n_saved"])


if __name__ == "__main__":
    main()
