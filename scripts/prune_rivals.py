"""Remove more and more heads of a model by many methods, on the same data and by the same judge; one result file.

    python scripts/prune_rivals.py RUN --text JUDGE.txt --calibrate RANK.txt --out docs/results/prune/MODEL.json

RUN is a capture with its organize study. What is in the file already is kept, so that methods, shares and windows can be
added later; losses are per input, for paired intervals. scripts/prune_page.py makes docs/prune.md of the files.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

import headscape as hs
from headscape.captures import open_capture
from headscape.pruning.compensation import without_heads
from headscape.pruning.criteria import draw_order
from headscape.pruning.rivals import _lowest, remove_by
from headscape.storage import write_json
from headscape.studies.prune.evidence import add_organized
from headscape.studies.prune.pruning import Pruning

METHODS = [
    *("novelty", "michel", "flap", "wanda", "slimllm", "slimgpt", "depth", "random 0", "random 1", "random 2"),
    *("l1_top", "l1_all", "attention_entropy", "random 0 + linear", "michel + linear"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--calibrate", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--first", type=int, help="judge on the first windows of every ability only")
    parser.add_argument("--shares", default="10,20,30,40,50")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--unit", default="head")
    parser.add_argument("--repeats", type=float, default=1 / 3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    captured = open_capture(args.run)
    model = hs.load_model(json.loads((args.run / "run.json").read_text())["model"]["source"], device="cpu")
    options = {"inputs": args.text, "calibrate": args.calibrate, "windows": args.windows, "repeats": args.repeats}
    pruning = Pruning.of(captured, model, captured.blocks[0], **options, unit=args.unit)
    live = pruning.prepare(model, captured)
    add_organized(live.evidence, captured, controls=False)
    found = json.loads(args.out.read_text()) if args.out.is_file() else {}
    found |= {"model": model.source, "heads": len(live.evidence.heads), "unit": args.unit, "facts": live.facts}
    found |= {"data": live.data, "repeats": args.repeats}
    if model.task == "encoder":
        found.pop("intact", None)  # similarities are to the intact network, which must be judged first
    for name, judge in (("intact", live.judging), ("chance", live.controls)):
        if judge is not None:
            evaluate(found.setdefault(name, {}), judge, {}, model, args.first)
    started = time.process_time()
    for share in args.shares.split(","):
        for method in args.methods.split(","):
            n = round(int(share) / 100 * len(live.evidence.heads))
            removal = removed(method, live.evidence, n)
            row = found.setdefault("methods", {}).setdefault(method, {}).setdefault(share, {})
            heads = sorted(f"{name}.{h}" for name, layer in removal.items() for h in layer.heads)
            row["n"] = len(heads)
            evaluate(row.setdefault("losses", {}), live.judging, removal, model, args.first)
            write_json(args.out, found)
            text = next(iter(row["losses"].values()))
            print(
                f"{share} % {method}: {np.mean(list(text.values())):.4f}, {time.process_time() - started:.0f} s",
                flush=True,
            )


def removed(method: str, evidence, n: int):
    if method.startswith("random"):
        name, _, compensation = method.partition(" + ")
        score = evidence.by_unit(draw_order(len(evidence.heads), int(name.split()[1])))
        return _lowest(evidence, score, n, compensation or "none")
    return remove_by(method.replace("michel + ", "gradient + "), evidence, n)


def evaluate(known: dict, judge, removal, model, first: int | None) -> None:
    """Add what is not known yet: by ability, {key of the input: losses}."""
    names = {key: name for name, keys in judge.parts.items() for key in keys[:first]}
    with torch.no_grad(), without_heads(model, removal):
        for key, tasks in judge.pieces:
            if key in names and key[:12] not in known.setdefault(names[key], {}):
                loss = judge.join([judge.run(task) for task in tasks])
                known[names[key]][key[:12]] = [round(float(v), 6) for v in loss.values]


if __name__ == "__main__":
    main()
