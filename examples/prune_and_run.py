"""Prune a Llama within a budget of its abilities, write it for llama.cpp, and let llama.cpp speak.

    python examples/prune_and_run.py smollm2-135m [--budget text=2%,copy=5%] [--out smaller.gguf]

Five to ten minutes of CPU for SmolLM2. The last step needs `pip install xllamacpp`; without it the file is written all
the same, and any llama.cpp runs it: llama-cli -m smaller.gguf -p "The capital of France is".
"""

from __future__ import annotations

import argparse
import tempfile
from importlib.util import find_spec
from pathlib import Path

import headscape as hs
from headscape.cli.prune import budget_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--budget", default="text=2%,copy=5%,retrieval=10%")
    parser.add_argument("--out", type=Path, default=Path("smaller.gguf"))
    parser.add_argument("--windows", type=int, default=16)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = hs.load_model(args.model, device="cpu")
        run = hs.capture(model, [hs.sample_text("rank")], tokens=256, batches=10, out=Path(scratch) / "run")
        result = hs.prune(run, model=model, budget=budget_of(args.budget), windows=args.windows, out=args.out)
        print(*result.findings(), sep="\n")
        if not result.proposal:
            return
        print(result.export(args.out))  # the very model that was judged
    if find_spec("xllamacpp") is None:
        return
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel = str(args.out), 512, 1
    params.verbosity = 1  # errors alone
    server = xllamacpp.Server(params)
    request = {"prompt": "The capital of France is", "n_predict": 24, "temperature": 0.0}
    print(server.handle_completions(request)["choices"][0]["text"])


if __name__ == "__main__":
    main()
