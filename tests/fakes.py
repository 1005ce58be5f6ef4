"""Runs and results made from arrays alone: planted groups of heads, any tokens, images, every kind of figure."""

import base64
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
from PIL import Image

from headscape.results import FigureSpec, Finding, Result
from headscape.runs import Run
from headscape.storage import ArrayWriter
from headscape.tree import PartitionTree
from headscape.verdicts import Judgement, cannot_tell

HOLDS = Judgement("holds", "0.9 [0.8, 1] (n = 8) lies above 0.1 (chance)")
FAILS = Judgement("does not hold", "0.2 [0.1, 0.3] (n = 8) lies below 0.5 (rows <b>shuffled</b>)")

NASTY = [
    "<script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 2'>",
    "</script><script>window.owned = 3</script>",
    '"><svg onload=window.owned=4>',
    "<a href='javascript:window.owned=5'>click</a>",
    "' onmouseover='window.owned = 6",
    "<b>bold</b>&amp;<br>",
    "%{x} ${window.owned = 7} {{constructor.constructor('window.owned=8')()}}",
    "\u202egnirts desrever\u202c",
    "العربية עברית",
    "👩‍🚀 🏳️‍🌈 😀",
    "\x00\x01\x1b[31m\x7f\r\n\t\x85",
    "\u2028\u2029\ufeff\u200b",
    "x" * 10_000,
    "\ud800",
    "]]><!--",
    "",
    " ",
]


@dataclass(frozen=True, eq=False)
class FakeResult(Result):
    """A result that shows what it is given."""

    study: ClassVar[str] = "fake"
    title: ClassVar[str] = "A made-up study"
    frame: pd.DataFrame
    shown: list[FigureSpec] = field(default_factory=list)
    found: list[Finding] = field(default_factory=list)

    def to_frame(self):
        return self.frame

    def figures(self):
        return self.shown

    def findings(self):
        return self.found


def groups_of(n_layer, n_head):
    """Three planted groups of heads, by layer and head."""
    return (np.arange(n_layer)[:, None] // 2 + np.arange(n_head)) % 3


def attention(n_layer=4, n_head=3, n_token=24, n_batch=2, mask="causal", seed=0):
    """Attention (batch, layer, head, query, key): heads look at the first token, the one before, or all over."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(n_batch, n_layer, n_head, n_token, n_token))
    group = groups_of(n_layer, n_head)
    scores[:, group == 0, :, 0] += 5
    before = np.eye(n_token, k=-1, dtype=bool)
    scores[:, (group == 1)[:, :, None, None] & before] += 6
    if mask == "causal":
        scores = np.where(np.tri(n_token, dtype=bool), scores, -np.inf)
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def make_run(folder, values, *, tokens=None, mask="causal", pixels=None, grid=None, source="made-up", blocks=None):
    """Write a run directory of attention (batch, layer, head, query, key), or of several blocks."""
    folder = Path(folder)
    by_block = blocks or {"decoder": values}
    first = next(iter(by_block.values()))
    inputs = {"kind": "text", "texts": 1, "windows": len(first)} if grid is None else {"kind": "images", "images": 9}
    run = Run.create(
        folder,
        config={"kind": "capture", "tokens": int(first.shape[-1]), "batches": len(first), "keep": ["probs"], "seed": 0},
        model={"source": source, "family": "made up", "task": "none", "n_parameters": 12345},
        inputs=inputs if grid is None else inputs | {"grid": list(grid)},
    )
    for i in range(len(first)):
        info = {"keep": ["probs"], "blocks": {}, "layers": {}}
        for block, array in by_block.items():
            names = tokens or [f" t{j}" for j in range(array.shape[-1])]
            info["blocks"][block] = {"mask": mask, "query_tokens": names, "key_tokens": names}
            info["layers"][block] = {str(n): list(range(array.shape[2])) for n in range(array.shape[1])}
        n_array = sum(array.shape[1] for array in by_block.values()) + 1
        with ArrayWriter(run.batch_path(i), n_array, {"headscape": json.dumps(info)}) as writer:
            for block, array in by_block.items():
                for n, maps in enumerate(array[i]):
                    writer.add(f"probs/{block}.{n}", maps.astype(np.float16))
            if pixels is not None:
                writer.add("pixel_values", pixels[i].astype(np.float32))
    run.update(finished={"attention": len(first)})
    return run


def frame_of(n_layer, n_head, block="decoder", seed=0):
    """One row per head, with two scores and a role."""
    rng = np.random.default_rng(seed)
    group = groups_of(n_layer, n_head).ravel()
    return pd.DataFrame(
        {
            "block": block,
            "layer": np.repeat(np.arange(n_layer), n_head),
            "head": np.tile(np.arange(n_head), n_layer),
            "entropy": group + rng.normal(scale=0.1, size=n_layer * n_head),
            "gain": rng.normal(size=n_layer * n_head),
            "role": np.array(["first token", "previous token", "spread"])[group],
        }
    )


def head_tree(n_layer, n_head):
    """Whole, the three groups, pairs within, single heads."""
    group = groups_of(n_layer, n_head).ravel()
    within = np.zeros_like(group)
    for g in range(3):
        within[group == g] = np.arange((group == g).sum())
    return PartitionTree.from_labels(np.array([group, group * 10_000 + within // 2]))


def head_figures(n_layer, n_head, n_token=24, n_batch=2, seed=0, with_orders=True):
    """The four linked pictures, with everything the panel can show."""
    rng = np.random.default_rng(seed)
    n = n_layer * n_head
    group = groups_of(n_layer, n_head).ravel()
    centres = np.array([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    places = centres[group] + rng.normal(scale=0.15, size=(n, 3))
    distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
    tree = head_tree(n_layer, n_head)
    ranks = np.arange(1, 31)
    orders = [rng.permutation(n_token) for _ in range(n_batch)]
    data = {
        "coordinates": places if n > 1 else np.zeros((1, 0)),  # one head has no coordinates
        "eigenvalues": [0.9, 0.7, 0.4],
        "decay": {"x": ranks, "heads": ranks ** -(1 + rng.random((n, 1))), "null": ranks ** -np.full((n, 1), 0.6)},
        "by_batch": {"entropy": group + rng.normal(scale=0.1, size=(n_batch, n))},
    }
    if with_orders:
        data |= {"query_orders": orders, "key_orders": [order[::-1] for order in orders]}
    names = ["look at <b>first</b>", "look one back", "look all over"]
    of_group = tree.level(min(1, tree.n_levels - 1))
    level = {f"1:{of_group[np.flatnonzero(group == g)[0]]}": names[g] for g in np.unique(group)} if n > 1 else {}
    spec = {"read": "Near points are heads that attend alike.", "caveat": "Nearness is not importance."}
    return [
        FigureSpec(
            id="map",
            title="Map of the heads",
            kind="head_map",
            data=data,
            alt="Heads as points",
            paper="figure 3",
            **spec,
        ),
        FigureSpec(
            id="matrix",
            title="Affinity of the heads",
            kind="head_matrix",
            data={"values": np.exp(-distance), "order": tree.order},
            value_label="affinity",
            **spec,
        ),
        FigureSpec(
            id="tree",
            title="Tree of the heads",
            kind="head_tree",
            data={"labels": tree.labels, "order": tree.order, "names": level},
            **spec,
        ),
        FigureSpec(id="grid", title="Layer by head", kind="head_grid", data={"score": "entropy"}, **spec),
    ]


def other_figures(seed=0):
    """One figure of every other kind."""
    rng = np.random.default_rng(seed)
    x = np.arange(1, 51)
    spec = {"read": "Higher is more.", "caveat": "It proves nothing.", "x_label": "x <i>", "y_label": "y"}
    lines = [
        {"name": "own <b>", "x": x, "y": 1 / x, "low": 0.8 / x, "high": 1.2 / x},
        {"name": "null", "x": x, "y": 1 / np.sqrt(x), "dash": "dash"},
    ]
    halves = [
        {"name": "batch 0", "values": rng.normal(size=200), "side": "left"},
        {"name": "batch 0", "values": rng.normal(1, size=200), "side": "right"},
        {"name": "batch 1", "values": rng.normal(size=200), "side": "left"},
        {"name": "batch 1", "values": rng.normal(1, size=200), "side": "right"},
    ]
    return [
        FigureSpec(
            id="lines",
            title="Lines",
            kind="lines",
            data={"series": lines},
            log_x=True,
            log_y=True,
            paper="figure 4",
            **spec,
        ),
        FigureSpec(
            id="scatter",
            title="Scatter",
            kind="scatter",
            data={"x": rng.random(60), "y": rng.random(60), "names": NASTY * 3 + ["a"] * 6, "group": list("ab") * 30},
            **spec,
        ),
        FigureSpec(
            id="bars",
            title="Bars",
            kind="bars",
            data={"names": ["own", "null"], "values": [2.0, 1.0], "low": [1.8, 0.7], "high": [2.2, np.nan]},
            **spec,
        ),
        FigureSpec(
            id="heatmap",
            title="Heatmap",
            kind="heatmap",
            data={"values": rng.normal(size=(5, 8)), "rows": list("abcde"), "columns": range(8), "centre": 0.0},
            value_label="signed",
            **spec,
        ),
        FigureSpec(id="violins", title="Violins", kind="violins", data={"groups": halves}, paper="figure 5", **spec),
        FigureSpec(
            id="maps",
            title="Maps",
            kind="maps",
            data={
                "panels": [
                    {"name": n, "values": rng.random((12, 12)), "query_tokens": NASTY[:12]} for n in ("one", "two")
                ]
            },
            paper="figure 1",
            **spec,
        ),
        FigureSpec(
            id="table",
            title="Table",
            kind="table",
            data={
                "columns": ["place", "head", "count"],
                "rows": [[1, "<i>(3, 7)</i>", 0.5], [2, NASTY[0], np.float64(1234.5)]],
            },
            paper="table 1",
            **spec,
        ),
    ]


def result_of(n_layer, n_head, n_token=24, n_batch=2, everything=False, **options):
    """The fake study of a run of that size."""
    shown = head_figures(n_layer, n_head, n_token, n_batch, **options) + (other_figures() if everything else [])
    found = [
        Finding("The ten least active heads recur in 9 of 10 batches.", "map", HOLDS, "fake.stable"),
        Finding("Shuffling does not change <b>this</b>.", "grid", FAILS, "fake.shuffled"),
        Finding("Whether training made this cannot be told.", "grid", cannot_tell("one batch; capture at least 3")),
        Finding("Nothing was claimed here.", None),
    ]
    return FakeResult(frame_of(n_layer, n_head), shown, found)


def pixels(png):
    """The greys of a picture in base64."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))))
