"""What the calibration mixture does: how much text, and what shares of repeats; one result file.

    python scripts/prune_shares.py RUN --text JUDGE.txt --calibrate RANK.txt --out docs/results/prune/shares-MODEL.csv

Moments are measured once for each part of the mixture (text, repeated random tokens, repeated text) and kept in RUN; every
mixture is then a weighted sum of them. Rows that are in the file already are kept. Costs are those of removing 30 % of the
heads, on inputs that no table of docs/prune.md is judged on: `headscape prune` chooses on them.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

import headscape as hs
from headscape.attention.samples import samples_of
from headscape.captures import open_capture
from headscape.pruning.abilities import repeats
from headscape.pruning.compensation import Calibration, calibrated, without_heads
from headscape.pruning.judges import content_of
from headscape.pruning.rivals import remove_by
from headscape.storage import read_arrays, write_arrays
from headscape.studies.prune.pruning import Pruning

TEXT = (48, 32, 32)
"""Windows of the parts of text."""
REPEATED = 12
"""Windows of repeated random tokens, and of repeated text."""
MIXTURES = (  # windows of text, and as how many windows the two kinds of repeats count
    *((48, 0, 0), (48, 12, 12), (80, 6, 18), (112, 0, 0), (112, 12, 12), (112, 12, 24), (112, 18, 18)),
)
ABILITIES = ("text", "copy.random", "copy.text")
SHARE = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--calibrate", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--first", type=int, default=6, help="windows of text; half as many of every other ability")
    args = parser.parse_args()
    torch.set_num_threads(1)
    captured = open_capture(args.run)
    model = hs.load_model(json.loads((args.run / "run.json").read_text())["model"]["source"], device="cpu")
    options = {"inputs": args.text, "calibrate": args.calibrate, "windows": 32}
    live = Pruning.of(captured, model, captured.blocks[0], **options).prepare(model, captured)
    judge, n = live.choosing, round(SHARE * len(live.evidence.heads))
    keys = {name: judge.parts[name][: args.first if name == "text" else args.first // 2] for name in ABILITIES}
    counts = ", ".join(f"{name} {len(own)}" for name, own in keys.items())
    about = (
        f"# {model.source}, {SHARE:.0%} of the heads removed, mixtures of scripts/prune_shares.py; windows: {counts}"
    )
    known = rows_of(args.out, about)
    parts, intact = measured(model, live.evidence.samples, args), losses(judge, keys)
    for mixture in MIXTURES:
        if mixture not in known:
            vars(live.evidence)["calibration"] = mixed(parts, mixture)
            with without_heads(model, remove_by("novelty", live.evidence, n)):
                now = losses(judge, keys)
            rise = {name: float(np.mean(now[name] - intact[name])) for name in keys}
            text = 100 * rise.pop("text") / float(np.mean(intact["text"]))
            known[mixture] = [f"{text:+.2f}", *(f"{value:+.3f}" for value in rise.values())]
            print(*mixture, *known[mixture], flush=True)
        with args.out.open("w", encoding="utf-8", newline="") as file:
            file.write(f"{about}\n")
            columns = [
                "windows of text",
                "random repeats",
                "text repeats",
                "text, %",
                "copy.random, nats",
                "copy.text, nats",
            ]
            csv.writer(file, lineterminator="\n").writerows([columns, *([*m, *known[m]] for m in sorted(known))])


def rows_of(file: Path, about: str) -> dict[tuple[int, ...], list[str]]:
    """What a result file holds already: costs by mixture; none where it was measured otherwise."""
    first, _, *lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else ["", ""]
    rows = [line.split(",") for line in lines] if first == about else []
    return {tuple(int(cell) for cell in row[:3]): row[3:] for row in rows}


def measured(model: hs.Model, ranked, args: argparse.Namespace) -> dict[str, Calibration]:
    """The calibration on every part, measured or read from the run."""
    found, _ = samples_of(model, args.calibrate, ranked[0].stored["input_ids"].size, seed=0, shown=False)
    text = list(ranked)
    for seed, n in ((0, TEXT[0] - len(ranked)), (1, sum(TEXT[1:]))):
        seen = {content_of(sample.stored) for sample in text}
        left = [sample for sample in found if content_of(sample.stored) not in seen]
        drawn = np.random.default_rng(seed).permutation(len(left))[:n]
        text += [left[i] for i in (drawn if seed else sorted(drawn))]  # the first as `headscape prune` takes them
    again = repeats(model, [sample.stored["input_ids"] for sample in text[: TEXT[0]]], 2 * REPEATED)
    ends = np.cumsum(TEXT)
    parts = {f"text {i}": text[end - n : end] for i, (n, end) in enumerate(zip(TEXT, ends, strict=True))}
    parts |= {"random": again[::2], "copied": again[1::2]}
    names = [site.name for site in model.sites]
    known = {}
    for part, samples in parts.items():
        path = args.run / f"moments-{part.replace(' ', '-')}.safetensors"
        if not path.is_file():
            made = calibrated(model, samples)
            power = np.array([made.power[name] for name in names])
            write_arrays(path, {name: made.moments[name].numpy() for name in names} | {"power": power})
        arrays, _ = read_arrays(path)
        moments = {name: torch.from_numpy(arrays[name].copy()) for name in names}
        known[part] = Calibration(moments, dict(zip(names, arrays["power"].tolist(), strict=True)))
    return known


def mixed(parts: Mapping[str, Calibration], mixture: tuple[int, int, int]) -> Calibration:
    """The moments of a mixture; powers are those of the first part of text."""
    text, random, copied = mixture
    weights = {f"text {i}": n for i, n in enumerate(TEXT) if sum(TEXT[: i + 1]) <= text}
    weights |= {"random": random, "copied": copied}
    total = sum(weights.values())
    first = parts["text 0"]
    moments = {
        name: sum(weight / total * parts[part].moments[name] for part, weight in weights.items())
        for name in first.moments
    }
    return Calibration(moments, first.power)


def losses(judge, keys: Mapping[str, list[str]]) -> dict[str, np.ndarray]:
    """Losses by ability."""
    pieces = dict(judge.pieces)
    with torch.no_grad():
        found = {
            name: [judge.join([judge.run(t) for t in pieces[key]]).values for key in own] for name, own in keys.items()
        }
    return {name: np.concatenate(several) for name, several in found.items()}


if __name__ == "__main__":
    main()
