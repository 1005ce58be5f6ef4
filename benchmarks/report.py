"""Time, memory and size of a report, and how soon a browser shows it.

    python benchmarks/report.py [RUN] [--repeats 3] [--heads 5000 [--batches 4]]

RUN is a run directory with finished studies; without one, SmolLM2 reads ten windows of 256 tokens of the sample prose
(with --heads, so many heads of random attention over 64 tokens, in --batches batches)
and a stand-in takes the place of the studies (the report draws, it does not compute). Each build runs in a process of
its own, so that its peak memory is its own; `processor` is the time that other work on the machine does not change.
Baseline: read all batches of the capture once, and write two of them as they are.
The browser is Chromium without a graphics card; `paint` is the first paint, with
the grid of heads; `usable` when a head is open and can be changed; `map` when plotly's head map can be used; `all` when
every picture is drawn, and `page` the processor time of the page until then.
Limits are for two idle cores: 1 s, and 2 s up to 270 heads, 4 s up to 1,000.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from headscape.captures import open_capture
from headscape.results import FigureSpec, Finding, Result
from headscape.runs import Run, human_bytes

LIMITS = {"seconds": 20.0, "processor": 20.0, "peak memory": 2e9, "size": 25e6, "paint": 1.0}
SHOWN = ("paint", "usable", "map", "all", "page")


@dataclass(frozen=True, eq=False)
class StandIn(Result):
    """Pictures of heads from the distances of their maps in the first batch, enough to fill the page."""

    study: ClassVar[str] = "stand-in"
    title: ClassVar[str] = "A stand-in for the studies"
    frame: pd.DataFrame
    shown: list[FigureSpec]

    def to_frame(self) -> pd.DataFrame:
        return self.frame

    def figures(self) -> list[FigureSpec]:
        return self.shown

    def findings(self) -> list[Finding]:
        return [Finding("These pictures stand in for a study.", "map")]


def stand_in(run: Run) -> StandIn:
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import pdist, squareform

    from headscape.tree import PartitionTree

    capture = open_capture(run)
    X = capture.tensor(0)
    side = X.shape[0] // 16
    small = X.values.reshape(16, side, 16, side, -1).mean(axis=(1, 3)).reshape(16 * 16, -1).T
    distance = squareform(pdist(small, "cityblock"))
    affinity = np.exp(-distance / np.median(distance))
    values, vectors = np.linalg.eigh(affinity)
    tree = PartitionTree.from_linkage(linkage(small, "ward"))
    frame = pd.DataFrame(X.heads).assign(spread=small.std(axis=1), top=small.max(axis=1))
    tokens = [np.random.default_rng(i).permutation(X.shape[0]) for i in range(len(capture))]
    ranks = np.arange(1, 41)
    data: dict[str, Any] = {
        "coordinates": (vectors * values)[:, -2:-5:-1],
        "query_orders": tokens,
        "key_orders": tokens,
        "decay": {
            "x": ranks,
            "heads": 1 / ranks ** (1 + frame[["spread"]].to_numpy()),
            "null": np.tile(1 / ranks, (len(frame), 1)),
        },
        "by_batch": {"spread": np.tile(frame["spread"], (len(capture), 1))},
    }
    kinds: list[tuple[str, Any, dict[str, Any]]] = [
        ("map", "head_map", data),
        ("matrix", "head_matrix", {"values": affinity, "order": tree.order}),
        ("tree", "head_tree", {"labels": tree.labels, "order": tree.order}),
        ("grid", "head_grid", {"score": "spread"}),
    ]
    return StandIn(
        frame, [FigureSpec(id=name, title=name, kind=kind, data=content, read="Look.") for name, kind, content in kinds]
    )


def results_of(run: Run) -> list[Any]:
    from headscape.studies import load_results

    found = load_results(run)
    return found if any(isinstance(result, Result) for result in found) else [stand_in(run)]


def build(path: Path, way: str, out: Path) -> dict[str, float]:
    """Run one way in this process."""
    from headscape.report import write_report

    run = Run.open(path)
    results = results_of(run)
    start, used = time.perf_counter(), time.process_time()
    if way == "report":
        write_report(run, results, out)
    else:
        capture = open_capture(run)
        arrays = [
            np.concatenate([capture.batch(i).read(name) for name in capture.batch(i).names if "probs" in name])
            for i in range(min(2, len(capture)))
        ]
        np.savez(out, *arrays)
        for i in range(2, len(capture)):
            for name in capture.batch(i).names:
                capture.batch(i).read(name)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "processor": used, "peak memory": peak, "size": out.stat().st_size}


def browse(page: Path) -> dict[str, float]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"],
            viewport={"width": 1280, "height": 900},
        )
        tab = context.new_page()
        session = context.new_cdp_session(tab)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        tab.goto(page.resolve().as_uri())
        tab.wait_for_selector("body[data-ready]", timeout=120_000)
        found = tab.evaluate(
            """[performance.getEntriesByName('first-contentful-paint')[0].startTime,
            ...["usable", "first", "ready"].map((what) => Number(document.body.dataset[what]))]"""
        )
        metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
        context.close()
    return dict(zip(SHOWN, (*(ms / 1000 for ms in found), metrics["TaskDuration"]), strict=True))


def capture_ten(folder: Path) -> Path:
    import headscape as hs

    hs.capture(hs.load_model("smollm2-135m"), [hs.sample_text()], tokens=256, batches=10, out=folder)
    return folder


def random_heads(folder: Path, n: int, batches: int) -> Path:
    import headscape as hs

    X = np.random.default_rng(0).gamma(0.3, size=(batches, n // 50, 50, 64, 64)).astype(np.float32)
    X *= np.tri(64, dtype=np.float32)
    np.save(folder.with_suffix(".npy"), X / X.sum(axis=-1, keepdims=True))
    hs.import_array(folder.with_suffix(".npy"), folder, layout="batch,layer,head,query,key")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--heads", type=int, default=0)
    parser.add_argument("--batches", type=int, default=1)
    parser.add_argument("run", nargs="?", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--way", choices=("report", "baseline"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(build(options.run, options.way, options.out)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "run"
        run = options.run or (
            random_heads(place, options.heads, options.batches) if options.heads else capture_ten(place)
        )
        measured: dict[str, list[dict[str, float]]] = {"report": [], "baseline": []}
        shown = []
        for _ in range(options.repeats):
            for way, found in measured.items():
                out = Path(scratch) / ("report.html" if way == "report" else "baseline.npz")
                command = [sys.executable, __file__, str(run), "--way", way, "--out", str(out)]
                found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
            shown.append(browse(Path(scratch) / "report.html"))
        medians = {w: {k: statistics.median(f[k] for f in found) for k in found[0]} for w, found in measured.items()}
        print(f"{'':12} {'report':>12} {'baseline':>12} {'ratio':>8}  limit")
        for key in ("seconds", "processor", "peak memory", "size"):
            ours, base = medians["report"][key], medians["baseline"][key]
            words = [
                f"{v:.2f} s" if key in ("seconds", "processor") else human_bytes(v) for v in (ours, base, LIMITS[key])
            ]
            print(f"{key:12} {words[0]:>12} {words[1]:>12} {ours / base:>8.2f}  {words[2]}")
        limits = {"paint": LIMITS["paint"], "usable": 2.0 if options.heads <= 270 else 4.0}
        for key in SHOWN:
            seconds = statistics.median(one[key] for one in shown)
            print(f"{key:12} {seconds:>10.2f} s" + (f"  limit {limits[key]:.0f} s" if key in limits else ""))


if __name__ == "__main__":
    main()
