"""Write the tables of docs/prune.md from the result files of scripts/prune_rivals.py.

    python scripts/prune_page.py [--check]

Costs are means over the inputs that a method was judged on, with `headscape.intervals.mean_interval` (wider above where all
inputs have one sign, since they may be skewed), of accuracies with `share_change`; differences to `novelty` are paired
by input. `--check` only says whether the page is up to date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from headscape.intervals import Interval, mean_interval, share_change
from headscape.studies.prune.judging import Curve
from headscape.verdicts import Judgement, judge, strictest

ROOT = Path(__file__).resolve().parent.parent
PAGE, RESULTS = ROOT / "docs" / "prune.md", ROOT / "docs" / "results" / "prune"
START, END = "<!-- tables: scripts/prune_page.py -->\n", "<!-- end of tables -->\n"
NAMES = {
    "novelty": "`novelty`, linear (the default)",
    "novelty + heal 40": "`novelty`, linear, then healed (`--heal 40`)",
    "novelty + heal 100": "`novelty`, linear, then healed (`--heal 100`)",
    "michel": "gradient importance (Michel et al. 2019)",
    "michel + linear": "gradient importance, linear compensation",
    "flap": "FLAP (An et al. 2024)",
    "slimgpt": "SlimGPT (Ling et al. 2024)",
    "slimllm": "SlimLLM (Guo et al. 2025)",
    "wanda": "Wanda-style (Sun et al. 2024)",
    "depth": "late layers first",
    "l1_top": "`l1_top`, the source paper's",
    "l1_all": "`l1_all`",
    "attention_entropy": "`attention_entropy`",
    "random 0 + linear": "random, linear compensation",
}
KINDS = {
    "similarity": ("1 - rank correlation, in percent", "sentence pairs"),
    "accuracy": ("drop of accuracy in points", "images"),
}

USED = ("novelty", "novelty + heal 40", "novelty + heal 100", "slimgpt", "slimllm", "flap", "wanda", "michel", "random")
FEW = 8  # comparisons that are listed with their numbers


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    files = [*sorted(RESULTS.glob("*.json")), *sorted(RESULTS.glob("earlier/*.json"))]
    made = before + START + "".join(section(json.loads(f.read_text(encoding="utf-8")), f) for f in files) + END + after
    if "--check" in sys.argv:
        sys.exit(0 if made == page else f"{PAGE.name} is not what its result files say; run scripts/prune_page.py")
    PAGE.write_text(made, encoding="utf-8")


def section(found: dict[str, Any], file: Path) -> str:
    main_ability = next(iter(found["intact"]))
    unit, what = KINDS.get(main_ability, ("rise of the loss in percent", "windows"))
    methods = found["methods"]
    shares = sorted({share for rows in methods.values() for share in rows}, key=int)
    facts = found["facts"]
    inputs = "images" if main_ability == "accuracy" else "windows of text"
    fitted = f"{facts['ranked'] + facts.get('calibrated_on', 0)} {inputs}"
    fitted += f" and {facts['repeats']} that repeat their first half" if facts.get("repeats") else ""
    earlier = f", an earlier calibration ({fitted})" if file.parent.name == "earlier" else ""
    lines = [f"### {found['model']}{earlier}", ""]
    lines += [
        f"{found['heads']} heads, calibrated on {fitted}, judged on other {what}; {unit} [95 % interval over n {what}].",
        "",
    ]
    lines += header(shares)
    rows = {name: [cost(found, name, share, main_ability) for share in shares] for name in grouped(methods)}
    order = sorted(
        rows, key=lambda name: (rows[name].count(None), np.mean([cell.value for cell in rows[name] if cell]))
    )
    for name in order:
        lines.append(row(label(found, name), rows[name]))
    lines += ["", *behind(found, shares, main_ability), *abilities(found, shares, main_ability)]
    return "\n".join([*lines, ""]) + "\n"


def header(shares: list[str]) -> list[str]:
    """The head of a table with a column for every share."""
    return [f"| heads removed | {' | '.join(f'{share} %' for share in shares)} | n |", "|---" * (len(shares) + 2) + "|"]


def row(name: str, cells: list[Interval | None]) -> str:
    """A row of such a table; n once where it is the same for all shares."""
    n = sorted({cell.n for cell in cells if cell})
    return f"| {name} | {' | '.join(map(shown, cells))} | {'-'.join(map(str, n))} |"


def label(found: dict[str, Any], name: str) -> str:
    """A method as readers know it."""
    draws = sum(re.fullmatch(r"random \d", one) is not None for one in found["methods"])
    return NAMES.get(name) or (f"random, {draws} draws".replace("1 draws", "1 draw") if name == "random" else name)


def grouped(methods: dict[str, Any]) -> list[str]:
    """Names of the methods; draws of a random choice are one."""
    return list(dict.fromkeys("random" if name in ("random 0", "random 1", "random 2") else name for name in methods))


def values(found: dict[str, Any], name: str, share: str, ability: str) -> dict[str, np.ndarray]:
    """Losses by input, mean over random draws, of inputs that all draws have."""
    several = [f"random {i}" for i in range(3)] if name == "random" else [name]
    known = [found["methods"].get(one, {}).get(share, {}).get("losses", {}).get(ability, {}) for one in several]
    known = [one for one in known if one]
    keys = [key for key in (known[0] if known else {}) if all(key in one for one in known)]
    return {key: np.mean([one[key] for one in known], axis=0) for key in keys}


def cost(
    found: dict[str, Any], name: str, share: str, ability: str, rival: str | None = None, nats: bool = False
) -> Interval | None:
    """Mean cost in percent, or in nats, or mean difference to a rival; None where it was not measured."""
    own = values(found, name, share, ability)
    other = found["intact"][ability] if rival is None else values(found, rival, share, ability)
    keys = [key for key in own if key in other]
    if not keys:
        return None
    if ability == "similarity" and rival is None:
        return mean_interval(np.concatenate([own[key] for key in keys])).scaled(100)
    each = np.concatenate([own[key] - np.array(other[key]) for key in keys])
    difference = share_change(each) if ability == "accuracy" else mean_interval(each)
    if nats:
        return difference
    intact = np.mean(np.concatenate([found["intact"][ability][key] for key in keys]))
    return difference.scaled(100 / {"similarity": 1.0, "accuracy": -1.0}.get(ability, intact))


def judged(found: dict[str, Any]) -> dict[str, Judgement]:
    """What these costs say of the claims on criteria, by the rules of the study (`headscape prune RUN --study`).

    `novelty` is the criterion of the default, with the compensation that `michel + linear` has; it takes no gradients.
    """
    top, ours, rival = (_curve(found, [name]) for name in ("l1_top", "novelty", "michel + linear"))
    random = _curve(found, sorted(name for name in found["methods"] if re.fullmatch(r"random \d", name)))
    less = sorted((ours.minus(rival, i) for i in range(len(ours.n))), key=lambda one: one.value)
    control = "no difference from gradient importance, at the share of heads where it does worst"
    ahead = strictest(*(judge(one, below=0.0, control=control) for one in less))
    by_chance = judge(top.area, below=random.by_draw, control="another random choice")
    return {"prune.gradients": ahead, "prune.gradient_free": ahead, "prune.l1_top": by_chance}


def _curve(found: dict[str, Any], names: list[str]) -> Curve:
    """Costs on the main ability of a method, or of several draws, at every share of heads."""
    ability = next(iter(found["intact"]))
    intact = np.concatenate([np.array(each) for each in found["intact"][ability].values()])
    shares = sorted(found["methods"][names[0]], key=int)
    losses = np.array([[_losses(found, name, share, ability) for share in shares] for name in names])
    scale = {"similarity": 1.0, "accuracy": -1.0}.get(ability, intact.mean())
    return Curve(names[0], "", ability, tuple(map(int, shares)), losses, (losses - intact) / scale, answers=scale == -1)


def _losses(found: dict[str, Any], name: str, share: str, ability: str) -> np.ndarray:
    """Losses of all inputs, in the order of those of the intact model."""
    own = found["methods"][name][share]["losses"][ability]
    return np.concatenate([np.array(own[key]) for key in found["intact"][ability]])


def shown(cell: Interval | None) -> str:
    if cell is None:
        return "-"
    digits = 2 if abs(cell.value) < 10 else 1
    ends = f" [{cell.low + 0.0:.{digits}f}, {cell.high + 0.0:.{digits}f}]" if cell.known else ""
    return f"{round(cell.value, digits) + 0.0:+.{digits}f}{ends}"  # + 0.0: a drop of nothing is no -0


def behind(found: dict[str, Any], shares: list[str], ability: str) -> list[str]:
    """Where a rival is not surely behind, paired by input."""
    open_cases, beaten = [], []
    for name in grouped(found["methods"]):
        for share in shares:
            difference = None if name.startswith("novelty") else cost(found, "novelty", share, ability, rival=name)
            if difference is not None and difference.known:
                (beaten if difference.high < 0 else open_cases).append((name, share, difference))
    if not beaten and not open_cases:
        return []
    total = len(beaten) + len(open_cases)
    text = f"`novelty` is surely ahead in {len(beaten)} of {total} comparisons (paired by input, 95 %)."
    if len(open_cases) <= FEW:
        worse = [f"{NAMES.get(n, n)} at {s} % ({shown(d)})" for n, s, d in open_cases]
    else:
        at: dict[str, list[str]] = {}
        for name, share, _ in open_cases:
            at.setdefault(name, []).append(share)
        worse = [f"{NAMES.get(name, name)} at {', '.join(several)} %" for name, several in at.items()]
    return [text + (f" Not surely: {'; '.join(worse)}." if worse else ""), ""]


def abilities(found: dict[str, Any], shares: list[str], main_ability: str) -> list[str]:
    """Losses of the other abilities, in nats above the intact model, by methods that others would use."""
    others = [name for name in found["intact"] if name != main_ability]
    lines = []
    for ability in others:
        intact = np.mean(np.concatenate([np.array(v) for v in found["intact"][ability].values()]))
        lines += [f"`{ability}`, in nats above intact ({intact:.3g}):", "", *header(shares)]
        for name in [one for one in USED if one in grouped(found["methods"])]:
            cells = [cost(found, name, share, ability, nats=True) for share in shares]
            if any(cells):
                lines.append(row(label(found, name), cells))
        lines.append("")
    return lines


if __name__ == "__main__":
    main()
