"""Write the tables of the documents from the result files in docs/results: python docs/make_tables.py.

A table stands between `<!-- made: NAME ARGUMENTS -->` and `<!-- end -->`; everything between is written anew. A number in a
sentence stands between `<!-- from: FILE WORDS -->` and `<!-- end -->`: docs/results/FILE holds these words once, with the number
in place of `{}`. Names of pages (`python docs/make_tables.py verdicts theory/trees ../README`) limit it to these.
`python docs/make_tables.py --add RUN STUDY NAME COMMAND` keeps the newest result of a study as docs/results/STUDY/NAME.json;
claims that were tested with `--only` replace their rows and leave the others.
"""

from __future__ import annotations

import csv
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from headscape.intervals import Interval, mean_interval, median_interval, share_interval, student_interval
from headscape.papers import claim, claims
from headscape.records import as_records
from headscape.storage import write_json
from headscape.verdicts import Judgement, strictest

DOCS = Path(__file__).parent
MADE = re.compile(r"(<!-- made: (\w+) ?([^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!-- (from|cost): (\S+) (.+?) -->).*?(<!-- end -->)")
NUMBER = r"(-?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?(?: \[[^]]*\])?(?: \(n = \d+\))?)"
SIGNS = {"holds": "✓ holds", "does not hold": "✗ does not hold", "cannot tell": "? cannot tell"}
INTERVAL = r"-?[\d.]+(?:e[-+]?\d+)?(?: \[[^]]+\])?(?: \(n = \d+[^)]*\))?"
COMPARED = re.compile(rf"(?:lies (above|below)|and|equals) ({INTERVAL})(?: \([^)]*\))?( overlap)?")
"""What `judge` writes after the statistic: the side, and the control's value."""


def add(run: str, study: str, name: str, command: str) -> None:
    """Keep findings and short tables of a result."""
    import headscape as hs
    from headscape.studies.claims.study import chosen
    from headscape.studies.compare.result import CompareResult

    # a comparison belongs to no run
    result = CompareResult.load(Path(run) / study) if study == "compare" else hs.open_result(run, study)
    findings = [
        {"claim": f.claim, "verdict": f.verdict, "why": f.judgement.why if f.judgement else None, "text": f.text}
        for f in result.findings()
    ]
    tables = {title: as_records(frame) for title, frame in result.summary()}
    facts = {"command": command, "findings": findings, "tables": tables}
    if study == "claims":  # the rows are the result; what claims.toml says of each is not kept again
        asked = {one.id for one in chosen(result.settings["only"])}  # what an earlier command tested is kept by its own
        own = result.claims[result.claims["claim"].isin(asked)]
        rows = as_records(own[["claim", "value", "low", "high", "n", "verdict", "why"]])
        facts = {"command": command, "quick": result.settings["quick"], "claims": rows}
        facts = _joined(results(study).get(name), facts) if result.settings["only"] else facts
    write_json(DOCS / "results" / study / f"{name}.json", facts)


def _joined(known: dict | None, new: dict) -> dict:
    """The rows of a result of some claims in place of those that were known, and both commands."""
    if known is None:
        return new
    rows = {row["claim"]: row for row in (*known["claims"], *new["claims"])}
    commands = dict.fromkeys((*known["command"].split("; "), new["command"]))
    return new | {"command": "; ".join(commands), "claims": list(rows.values())}


def results(study: str) -> dict[str, dict]:
    """The kept results of a study by name."""
    files = sorted((DOCS / "results" / study).glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    clean = [[_text(str(cell)).replace("|", "&#124;").replace("\n", " ") for cell in row] for row in rows]
    lines = [columns, ["---"] * len(columns), *clean]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _text(words: str) -> str:
    """Words that may hold tags, as models write them, made harmless."""
    return re.sub(r"<(?=[A-Za-z/])", "&lt;", words)


def verdicts(study: str) -> str:
    """One row per claim, one column per kept result: the verdict and the rule behind it."""
    known = results(study)
    rows = []
    for id in [id for id, one in claims().items() if one.study == study]:
        cells = []
        for found in known.values():
            judged = [f for f in found["findings"] if f["claim"] == id]
            cells.append("; ".join(f"{SIGNS[f['verdict']]}: {f['why']}" for f in judged[:3]) or "-")
        if any(cell != "-" for cell in cells):
            rows.append([f"{claim(id).statement} ({claim(id).citation})", *cells])
    commands = "\n".join(f"* {name}: `{found['command']}`" for name, found in known.items())
    return f"{table(['claim', *known], rows)}\n{commands}\n"


def flagship(paper: str) -> str:
    """The claims of one paper (or of all others, `rest`) by model: the verdict, and the number behind it."""
    kept, main = results("claims"), ("fasina2025", "wertich2024", "masumura2025")
    rows, undecided = [], {}  # why a verdict is open, and on which models: of which claims
    for id, one in claims().items():
        if one.source.id != paper and not (paper == "rest" and one.source.id not in main):
            continue
        cells, reasons = [], {}
        for name, found in kept.items():
            row = next((row for row in found["claims"] if row["claim"] == id), None)
            cells.append("-" if row is None else _cell(row))
            if row and row["verdict"] == "cannot tell":
                reasons.setdefault(_reason(row), []).append(name)
        for reason, names in reasons.items():
            where = "every model" if len(names) == len(kept) else ", ".join(names)
            undecided.setdefault((reason, where), []).append(id)
        place = one.place if paper != "rest" else one.citation
        rows.append([f"{one.statement} (`{id}`, {place})", f"{one.statistic}: {one.rule}", one.control, *cells])
    lines = [f"* `{'`, `'.join(ids)}` on {where}: {reason}." for (reason, where), ids in undecided.items()]
    why = "\nWhy we cannot tell:\n\n" + "\n".join(lines) + "\n" if lines else ""
    return table(["claim", "measured: holds if", "control", *kept], rows) + why


def _cell(row: dict) -> str:
    """Sign and number of a verdict, and the value of the control that it was compared with."""
    if row["value"] is None:
        return _sign(row["verdict"])
    ends = [float("nan") if row[end] is None else row[end] for end in ("low", "high")]
    return f"{_sign(row['verdict'])} {Interval(row['value'], *ends, row['n'])}{_control(row['why'])}"


def _sign(verdict: str) -> str:
    """One character for a verdict."""
    return SIGNS.get(verdict, "–")[0]


def _control(why: str) -> str:
    """Where a number lies, and beside which value of the control."""
    found = COMPARED.search(why)
    if found is None:
        return ""
    side = found[1] or ("overlaps" if found[3] else "equals")
    return f", {side} {found[2]}"


def _reason(row: dict) -> str:
    """Why a verdict is open, without the interval that the table shows, so that models with one reason stand together."""
    interval = r"-?[\d.e-]+ \[[^]]+\] \(n = \d+\)"
    overlap = re.fullmatch(rf"{interval} and (.*) overlap", row["why"])
    if overlap is None or row["value"] is None:
        return row["why"]
    return f"the interval {'overlaps' if re.match(interval, overlap[1]) else 'includes'} {overlap[1]}"


def longer(_: str) -> str:
    """What longer runs say of claims, where that is another verdict than the quick look's, or it has no number."""
    kept, rows = results("claims"), []
    for id, one in claims().items():
        for name, judged in _fuller(one.study):
            ours = [found for model, found in kept.items() if model == name or name not in kept]
            quick = [row for found in ours for row in found["claims"] if row["claim"] == id]
            if id not in judged or all(
                (r["verdict"], r["value"] is None) == (judged[id].verdict, False) for r in quick
            ):
                continue
            verdict, why = judged[id].verdict, judged[id].why
            if verdict == "cannot tell" and "(n = " not in why:  # nothing was measured there either
                continue
            signs = " ".join(dict.fromkeys(_sign(row["verdict"]) for row in quick))
            page = {"table1": "collapse", "train": "hopfield"}.get(one.study, one.study)
            rows.append([f"{one.statement} (`{id}`)", f"[{name}]({page}.md)", signs, f"{_sign(verdict)} {why}"])
    return table(["claim", "longer run", "quick look", "longer run: verdict"], rows)


def _fuller(study: str) -> Iterator[tuple[str, dict[str, Judgement]]]:
    """Kept results of a study that are no quick looks: the name, and by claim the judgement that decides."""
    if study == "prune":
        page = runpy.run_path(str(DOCS.parent / "scripts" / "prune_page.py"))
        yield from ((name, page["judged"](found)) for name, found in results(study).items())
        return
    known = {name: found["findings"] for name, found in results(study).items() if "--quick" not in found["command"]}
    if study == "train":
        said = sorted(TRAINED.glob("*/findings.json"))
        known = {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in said}
    for name, found in known.items():
        judged: dict[str, list[Judgement]] = {}
        for one in found:
            if one["verdict"]:
                judged.setdefault(one["claim"], []).append(Judgement(one["verdict"], one["why"]))
        yield name, {id: strictest(*several) for id, several in judged.items()}


def commands(study: str) -> str:
    """The commands behind the kept results of a study."""
    return "\n".join(f"* {name}: `{found['command']}`" for name, found in results(study).items()) + "\n"


def findings(study: str) -> str:
    """The findings of every kept result, as the program says them."""
    parts = []
    for name, found in results(study).items():
        lines = "\n".join(f"* {_text(f['text'])}" for f in found["findings"])
        parts.append(f"**{name}**\n\n{lines}\n")
    return "\n".join(parts)


def said(name: str) -> str:
    """The findings of one kept result, STUDY NAME, but those on the claims named after it."""
    study, stem, *without = name.split()
    found = results(study)[stem]["findings"]
    return "\n".join(f"* {_text(f['text'])}" for f in found if f["claim"] not in without) + "\n"


def tables(name: str) -> str:
    """The short tables of one kept result, STUDY NAME, each under its title."""
    study, _, stem = name.partition(" ")
    parts = []
    for title, rows in results(study)[stem]["tables"].items():
        cells = [[_plain(value) for value in row.values()] for row in rows]
        parts.append(f"**{title}**\n\n{table(list(rows[0]), cells)}")
    return "\n".join(parts)


def _plain(value: object) -> str:
    """A cell of a kept table: three digits of a number."""
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def variants(measure: str) -> str:
    """A measure of the collapse study after the last layer: one row per variant, one column per model."""
    known = {name: found["tables"]["After the last layer"] for name, found in results("collapse").items()}
    rows = []
    for variant in dict.fromkeys(row["variant"] for found in known.values() for row in found):
        cells = []
        for found in known.values():
            row = next((row for row in found if row["variant"] == variant), None)
            whole = None if row is None or measure != "residual" else _interval(row)
            cells.append("-" if row is None else _plain(row[measure]) if whole is None else str(whole))
        rows.append([variant, *cells])
    return table([f"{measure} after the last layer", *known], rows)


def _interval(row: dict) -> Interval | None:
    """The residual of a variant with its interval, where it has one."""
    low, high = row["residual_low"], row["residual_high"]
    return None if low is None else Interval(row["residual"], low, high, row["n"])


def checks(page: str) -> str:
    """What a paper prints, what is right and what was measured, as docs/theory/checks.py found."""
    found = json.loads((DOCS / "results" / "theory" / f"{page}.json").read_text(encoding="utf-8"))
    return table(["what", "as printed", "corrected", "measured, or measured on"], found["rows"])


def kept(name: str) -> str:
    """A table kept as docs/results/NAME.csv; lines that begin with "#" say how it was measured and are not shown."""
    lines = (DOCS / "results" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    columns, *rows = csv.reader(line for line in lines if not line.startswith("#"))
    return table(columns, rows)


TRAINED = DOCS / "results" / "hopfield"


def comparisons(names: str) -> str:
    """One row per training comparison that is kept: the verdicts, and what they rest on; arms that were not run are left out."""
    arms = {"hidden": "hidden state", "both": "Modern Hopfield Attention", "realformer": "RealFormer"}
    columns = ["trained", "seeds", "standard", "best baseline", *arms.values(), "a third more steps (control)"]
    rows = []
    for name in names.split():
        if not (TRAINED / name / "findings.json").is_file():
            continue
        said = {f["claim"]: f for f in json.loads((TRAINED / name / "findings.json").read_text(encoding="utf-8"))}
        table_ = {row["arm"]: row for row in _csv(f"hopfield/{name}/table")}
        by_arm = {row["arm"]: row for row in _csv(f"hopfield/{name}/arms")}
        unit = next(column for column in table_["standard"] if column in ("bits per byte", "% of test images"))
        beaten = list(table_.values())[-1]
        row = [name, by_arm["standard"]["seeds"], f"{table_['standard'][unit]} {unit}"]
        row.append(f"{beaten['arm']} {beaten[unit]}")
        for arm in (*arms, "longer"):
            found = said.get("train.control" if arm == "longer" else f"train.{arm}")
            row.append(
                "" if found is None or arm not in by_arm else f"{SIGNS[found['verdict']]}: {_change(by_arm[arm])}"
            )
        rows.append(row)
    return table(columns, rows)


def _change(row: dict[str, str]) -> str:
    """The change of an arm from standard attention, as its table shows it."""
    low, high = row["change_low"], row["change_high"]
    return f"{float(row['change']):+.3g}" + (f" [{float(low):.3g}, {float(high):.3g}]" if low else "")


def _csv(name: str) -> list[dict[str, str]]:
    """The rows of docs/results/NAME.csv."""
    with (DOCS / "results" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def collapsed(names: str) -> str:
    """Tokens after the last layer of trained networks, by comparison and arm, and what follows for the paper's claims."""
    rows, said = [], []
    for name in names.split():
        if not (TRAINED / name / "findings.json").is_file():
            continue
        found = _csv(f"hopfield/{name}/layers")
        depth = max(int(row["layer"]) for row in found)
        for arm in dict.fromkeys(row["arm"] for row in found):
            own = [row for row in found if row["arm"] == arm]
            end = max(int(row["step"]) for row in own)
            final = [row for row in own if int(row["step"]) == end]
            last = [row for row in final if int(row["layer"]) == depth]
            spans = [student_interval([float(row[m]) for row in last]) for m in ("residual", "rank", "similarity")]
            most = max(float(row["aligned"]) for row in final if int(row["layer"]))
            rows.append([name, arm, *map(str, spans), f"{most:.2%}"])
        findings_ = json.loads((TRAINED / name / "findings.json").read_text(encoding="utf-8"))
        said += [f"* {name}: {_text(f['text'])}" for f in findings_ if f["claim"] in ("train.tokens", "train.entropy")]
    columns = ["trained", "arm", "residual", "effective rank", "mean cosine", "aligned pairs, most in a layer and seed"]
    return table(columns, rows) + "\n" + "\n".join(said) + "\n"


def trained(given: str) -> str:
    """A section on one training comparison, NAME TITLE: what was trained, arms, findings; nothing before it is kept."""
    name, _, title = given.partition(" ")
    place = TRAINED / name
    if not (place / "findings.json").is_file():
        return ""
    facts = json.loads((place / "study.json").read_text(encoding="utf-8"))
    said = json.loads((place / "findings.json").read_text(encoding="utf-8"))
    lines = [f"### {name}: {title}", "", _settings(facts), "", kept(f"hopfield/{name}/table")]
    lines += [f"* {SIGNS[f['verdict']][:2] if f['verdict'] else ''}{_text(f['text'])}" for f in said]
    return "\n".join(lines) + "\n"


def by_layer(given: str) -> str:
    """A section with figures 4 to 20 of the paper for one training comparison, NAME TITLE; nothing before it is kept."""
    name, _, title = given.partition(" ")
    place = TRAINED / name
    if not (place / "findings.json").is_file():
        return ""
    lines = [f"## {name}: {title}"]
    for figures, what, how in (
        ("4 to 12", "similarity", "mode / median / mean of the cosines of pairs of tokens / share at .99 or more"),
        ("13 to 20", "entropy", "entropy over its maximum: lowest head / mean / highest head"),
    ):
        lines += ["", f"Figures {figures} of the paper, at the end of training ({how}), all seeds together:", ""]
        lines += [kept(f"hopfield/{name}/{what}").rstrip()]
    return "\n".join(lines) + "\n"


def raised(name: str) -> str:
    """Validation loss by step of a model trained further, without and with a hidden state that is raised from 0."""
    facts = json.loads((TRAINED / name / "study.json").read_text(encoding="utf-8"))
    asked, data = facts["settings"], facts["inputs"]["data"]
    bits = sum(data["tokens"].values()) / data["bytes"] / np.log(2)
    loss = {
        (row["arm"], int(row["step"]), int(row["seed"])): float(row["valid"]) * bits
        for row in _csv(f"hopfield/{name}/curves")
    }
    seeds, rows = asked["seeds"], []
    for step in sorted({step for _, step, _ in loss}):
        own, other = ([loss[arm, step, seed] for seed in seeds] for arm in ("standard", "hidden"))
        change = student_interval(np.subtract(other, own))
        share = asked["alpha_hidden"][0] * min(1.0, step / asked["ramp"])
        rows.append([str(step), f"{share:.2g}", f"{np.mean(own):.3f}", f"{np.mean(other):.3f}", str(change)])
    return table(["step", "a'", "standard", "hidden state", "change, paired by seed"], rows)


def _settings(facts: dict) -> str:
    """What was trained, on what, and how its learning rates were chosen."""
    asked, data = facts["settings"], facts["inputs"]["data"]
    net, n = asked["network"], len(asked["seeds"])
    sizes = f"{net['layers']} layers × {net['heads']} heads × width {net['dim']}"
    if "images" in data:
        each, source = "images", f"{data['counts']['train']:,} training images of {data['images']}"
        each += f" ({(net['image'] // net['patch']) ** 2 + 1} tokens)"
    else:
        each = f"windows of {net['tokens']} {'bytes' if data['tokenizer'] == 'bytes' else 'tokens'}"
        source = f"{data['bytes'] / 1e6:.3g} MB of text ({data['text']})"
    rates = ", ".join(f"{rate:g}" for rate in asked["rates"])
    chosen = f"learning rates {rates}"
    if asked["finalists"] >= len(asked["rates"]) > 1:
        chosen += ", each with all seeds"
    elif len(asked["rates"]) > 1:
        chosen += f", chosen by one seed in runs of {asked['search_steps']:,} steps"
    steps = f"{asked['steps']:,} steps of {asked['batch']} {each}"
    return f"`{asked['name']}`, {sizes}: {steps}, {source}, {n} seed{'s' * (n > 1)}; {chosen}."


def coverage(_: str) -> str:
    """How often intervals hold the truth: normal and log-normal inputs, means and medians, 4,000 draws each."""
    sizes = (2, 3, 5, 8, 10, 30)
    laws: dict[str, tuple[Callable, float, float]] = {}
    for middle in (0.0, 2.0, 3.0, 10.0):
        draw = lambda rng, n, m=middle: rng.normal(m, 1, n)  # noqa: E731
        laws[f"normal (mean {middle:g} sd)"] = (draw, middle, middle)
    for sigma in (0.5, 1.0, 1.5, 2.0):
        draw = lambda rng, n, s=sigma: rng.lognormal(0, s, n)  # noqa: E731
        laws[f"log-normal, sigma {sigma:g}"] = (draw, float(np.exp(sigma**2 / 2)), 1.0)
    rows = []
    for name, (draw, mean, median) in laws.items():
        for what, truth, interval in (("mean", mean, mean_interval), ("median", median, median_interval)):
            if what == "median" and name.startswith("normal") and median:
                continue  # covers whatever the middle
            cells = []
            for n in sizes:
                rng = np.random.default_rng(0)
                held, few = _held([draw(rng, n) for _ in range(4000)], interval, truth)
                said = f" ({few:.0%} too few to say)" if 0.005 < few < 1 else ""
                cells.append(f"{held:.1%}{said}" if few < 1 else "too few to say")
            rows.append([f"{what} of {name} inputs", *cells])
    return table(["95 % interval of the", *(f"n = {n}" for n in sizes)], rows)


def share_coverage(_: str) -> str:
    """The same of shares of 12 heads, at the share where coverage is lowest; where fewer than 6 inputs agree there is none."""
    sizes, heads, rows = (3, 5, 6, 8, 10, 30), 12, []
    alike = lambda rng, p, n: rng.binomial(1, p, (4000, n)) * heads  # noqa: E731
    apart = lambda rng, p, n: rng.binomial(heads, p, (4000, n))  # noqa: E731
    partly = lambda rng, p, n: rng.binomial(heads, rng.beta(5 * p, 5 - 5 * p, (4000, n)))  # noqa: E731
    for words, draw, step in (
        ("one by one; step of a head", apart, 1 / heads),
        ("partly together (correlation 1/6); step of a head", partly, 1 / heads),
        ("all or none; step of all heads", alike, 1.0),
        ("all or none; step of a head", alike, 1 / heads),
    ):
        cells = []
        for n in sizes:
            rng, worst = np.random.default_rng(0), 1.0
            for p in (0.003, 0.01, 0.03, 0.05, 0.08, 0.1, 0.2, 0.3, 0.5):
                passed = draw(rng, p, n) / heads
                worst = min(worst, _held(passed, lambda x, step=step: share_interval(x, step), p)[0])
            cells.append(f"{worst:.1%}")
        rows.append([words, *cells])
    return table(["the heads of an input pass", *(f"n = {n}" for n in sizes)], rows)


def _held(draws: Sequence, interval: Callable, truth: float) -> tuple[float, float]:
    """Of all draws with an interval, the share whose interval holds the truth; and the share of draws without one."""
    kinds, counts = np.unique(np.sort(draws, axis=1), axis=0, return_counts=True)
    found = [interval(kind) for kind in kinds]
    known = np.array([one.known for one in found])
    held = np.array([one.low <= truth <= one.high for one in found])
    n_known = int(counts[known].sum())
    return float(counts[known & held].sum()) / n_known if n_known else float("nan"), 1 - n_known / len(draws)


def listed(_: str) -> str:
    """All claims, with source, statistic, control and rule."""
    rows = [[id, c.statement, c.citation, c.statistic, c.control, c.rule] for id, c in claims().items()]
    return table(["id", "claim", "source", "statistic", "control", "rule"], rows)


def quantized(_: str) -> str:
    """How the bundled models are stored."""
    from headscape.attention.models import list_models

    return table(["model", "stored as"], [[m.name, m.quantized or "32-bit floats"] for m in list_models()])


def models(_: str) -> str:
    """The bundled models, and where their weights come from."""
    from headscape.attention.models import list_models

    rows = [
        [f"`{m.name}`", m.summary, f"{m.download / 1e6:.0f} MB, fetched" if m.download else "in the package"]
        for m in list_models()
    ]
    return table(["name", "what", "weights"], rows)


def quoted(file: str, words: str) -> str:
    """The number that stands in place of `{}` in words of a result file; `{.2f}` rounds it, `...` skips some words.

    A JSON file is read as lines `key.key: value`, a CSV file as lines `first cell.column: value`.
    """
    before, spec, after = re.fullmatch(r"(.*)\{(.*?)\}(.*)", words).groups()  # type: ignore[union-attr]
    pattern = "(?:.*?)".join(map(re.escape, before.split("..."))) + NUMBER + re.escape(after)
    found = {one for line in lines(file) for one in re.findall(pattern, line)}
    if len(found) != 1:
        raise ValueError(f"docs/results/{file} has {len(found)} numbers where one is asked for: {words}")
    return f"{float(found.pop()):{spec}}" if spec else found.pop()


def lines(file: str) -> list[str]:
    """A result file, one line per value."""
    path = next((DOCS / "results").glob(f"{file}.*"))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        columns, *rows = csv.reader(line for line in text.splitlines() if not line.startswith("#"))
        return [f"{row[0]}.{column}: {cell}" for row in rows for column, cell in zip(columns, row, strict=True)]
    return list(_flat(json.loads(text)))


def _flat(value: object, key: str = "") -> Iterator[str]:
    """Values of nested lists and mappings, each with its key."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if pairs is None:
        yield f"{key}: {value}"
        return
    for name, one in pairs:
        yield from _flat(one, f"{key}.{name}" if key else str(name))


def cost(file: str, words: str) -> str:
    """What it costs to remove heads, METHOD SHARE ABILITY of a result of scripts/prune_rivals.py: in percent."""
    page = runpy.run_path(str(DOCS.parent / "scripts" / "prune_page.py"))
    found = json.loads((DOCS / "results" / f"{file}.json").read_text(encoding="utf-8"))
    interval = page["cost"](found, *words.rsplit(maxsplit=2))
    return f"{page['shown'](interval).removeprefix('+')} (n = {interval.n})"


MAKERS = {
    f.__name__: f
    for f in (
        verdicts,
        flagship,
        longer,
        commands,
        findings,
        said,
        tables,
        variants,
        checks,
        kept,
        coverage,
        share_coverage,
        listed,
        models,
        quantized,
        comparisons,
        trained,
        by_layer,
        raised,
        collapsed,
    )
}


def main(names: Sequence[str] = ()) -> None:
    """Write every table of every page, or of the pages named."""
    pages = [
        DOCS.parent / "README.md",
        DOCS.parent / "CHANGELOG.md",
        *sorted([*DOCS.glob("*.md"), *DOCS.glob("theory/*.md")]),
    ]
    for page in [DOCS / f"{name}.md" for name in names] or pages:
        text = page.read_text(encoding="utf-8")
        made = INLINE.sub(inline, MADE.sub(block, text))
        if made != text:
            page.write_text(made, encoding="utf-8")
            print(page.name)


def block(found: re.Match[str], without: Sequence[str] = ()) -> str:
    """A table with the marks around it, written anew but for the makers named."""
    return found[0] if found[2] in without else found[1] + MAKERS[found[2]](found[3].strip()) + found[4]


def inline(found: re.Match[str]) -> str:
    """A number with the marks around it, written anew."""
    return found[1] + {"from": quoted, "cost": cost}[found[2]](found[3], found[4]) + found[5]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--add"]:
        add(*sys.argv[2:6])
    else:
        main(sys.argv[1:])
