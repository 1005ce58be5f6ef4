"""Remove more and more heads of a model by many methods, on the same data and by the same judge; one result file.

    python scripts/prune_rivals.py RUN --text JUDGE.txt --calibrate RANK.txt --out docs/results/prune/MODEL.json

RUN is a capture with its organize study. What is in the file already is kept, so that methods, shares and windows can be
added later; losses are per input, for paired intervals. scripts/prune_page.py makes docs/prune.md of the files.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import headscape as hs
from headscape.captures import open_capture
from headscape.pruning.compensation import without_heads
from headscape.pruning.criteria import draw_order, scores
from headscape.pruning.heal import heal
from headscape.pruning.rivals import RIVALS, _lowest, remove_by
from headscape.storage import write_json
from headscape.studies.prune.evaluations import Evaluations
from headscape.studies.prune.evidence import add_organized
from headscape.studies.prune.inputs import REPEATS
from headscape.studies.prune.pruning import Pruning
from headscape.studies.work.folder import Folder
from headscape.studies.work.how import Work

HEALED = "novelty + heal "  # and how many steps
MAIN = ("text", "accuracy", "similarity")
METHODS = [
    *("novelty", "michel", "flap", "wanda", "slimllm", "slimgpt", "depth", "random 0", "random 1", "random 2"),
    *("l1_top", "l1_all", "attention_entropy", "random 0 + linear", "michel + linear"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--text", type=Path, help="text or images to judge on; by default those of headscape")
    parser.add_argument("--calibrate", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--first", type=int, help="judge on the first windows of text (or images, pairs) only")
    parser.add_argument("--others", type=int, help="and on the first windows of every other ability only")
    parser.add_argument("--shares", default="10,20,30,40,50")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"or `{HEALED}40`, healed by so many steps")
    parser.add_argument("--unit", default="head")
    parser.add_argument("--repeats", type=float, default=REPEATS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    captured = open_capture(args.run)
    model = hs.load_model(json.loads((args.run / "run.json").read_text())["model"]["source"], device="cpu")
    options = {"inputs": args.text, "calibrate": args.calibrate, "windows": args.windows, "repeats": args.repeats}
    methods = args.methods.split(",")
    steps = {0, *(int(method.removeprefix(HEALED)) for method in methods if method.startswith(HEALED))}
    if len(steps) > 2:
        parser.error("healing takes new windows for its steps: give one number of them at a time")
    pruning = Pruning.of(captured, model, captured.blocks[0], **options, unit=args.unit, heal=max(steps))
    live = pruning.prepare(model, captured)
    units = args.run / "prune" / "units"  # what `headscape prune` calibrated is taken
    folder = Folder("prune", "rivals", units, units)
    live.calibrate(Evaluations(replace(pruning, data=live.data), live, folder, Work.of()).calibration)
    add_organized(live.evidence, captured, controls=False)
    few = (args.first, args.others)
    found = json.loads(args.out.read_text()) if args.out.is_file() else {}
    if "data" in found and found["data"]["fitted"] != live.data["fitted"]:
        parser.error(f"{args.out} was calibrated on other data; write to another file, or delete it")
    known: dict[str, np.ndarray] = {}
    found |= {"model": model.source, "heads": len(live.evidence.heads), "unit": args.unit, "facts": live.facts}
    found |= {"data": found.get("data", {}) | live.data, "repeats": args.repeats}
    if model.task == "encoder":
        found.pop("intact", None)  # similarities are to the intact network, which must be judged first
    for name, judge in (("intact", live.judging), ("chance", live.controls)):
        if judge is not None:
            evaluate(found.setdefault(name, {}), judge, {}, model, few)
    started = time.process_time()
    for share in args.shares.split(","):
        for method in methods:
            n = round(int(share) / 100 * len(live.evidence.heads))
            healed = method.startswith(HEALED)
            removal = removed("novelty" if healed else method, live.evidence, n, known)
            row = found.setdefault("methods", {}).setdefault(method, {}).setdefault(share, {})
            heads = sorted(f"{name}.{h}" for name, layer in removal.items() for h in layer.heads)
            row["n"] = len(heads)
            if healed:
                removal = heal(model, removal, live.healing or live.evidence.fit, max(steps))
            evaluate(row.setdefault("losses", {}), live.judging, removal, model, few)
            write_json(args.out, found)
            text = next(iter(row["losses"].values()))
            print(
                f"{share} % {method}: {np.mean(np.concatenate(list(text.values()))):.4f}, {time.process_time() - started:.0f} s",
                flush=True,
            )


def removed(method: str, evidence, n: int, known: dict[str, np.ndarray]):
    """What a method removes and puts back; `known` are scores of criteria that were measured before."""
    name, _, compensation = {"novelty": "novelty + linear"}.get(method, method).partition(" + ")
    name = name.replace("michel", "gradient")
    if name in RIVALS and name != "novelty":
        return remove_by(name, evidence, n)
    if name not in known:
        drawn = name.startswith("random")
        known[name] = (
            evidence.by_unit(draw_order(len(evidence.heads), int(name.split()[1]))) if drawn else scores(name, evidence)
        )
    return _lowest(evidence, known[name], n, compensation or "none")


def evaluate(known: dict, judge, removal, model, few: tuple[int | None, int | None]) -> None:
    """Add what is not known yet: by ability, {key of the input: losses}; on the first `few` inputs of text, and of others.

    Of a classifier it is not losses, but which images are classified correctly.
    """
    most = {name: few[name not in MAIN] for name in judge.parts}
    names = {key: name for name, keys in judge.parts.items() for key in keys[: most[name]]}
    with torch.no_grad(), without_heads(model, removal):
        for key, tasks in judge.pieces:
            if key in names and key[:12] not in known.setdefault(names[key], {}):
                loss = judge.join([judge.run(task) for task in tasks])
                found = loss.correct if names[key] == "accuracy" else loss.values
                known[names[key]][key[:12]] = [round(float(v), 6) for v in found]


if __name__ == "__main__":
    main()
