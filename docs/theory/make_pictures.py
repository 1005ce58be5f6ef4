"""Draw the pictures of the theory pages: python docs/theory/make_pictures.py [NAME ..].

Every number comes from headscape's own functions, every colour from its palette; each picture is written twice, for
light and for dark pages, into docs/images/theory. The same code gives the same bytes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from scipy.special import logsumexp
from scipy.stats import norm

import headscape as hs
from headscape.collapse.attention_only import AttentionNetwork, AttentionOnly, four_variants
from headscape.collapse.residual import relative_residual
from headscape.geometry.diffusion import markov_spectrum
from headscape.hopfield import dynamics
from headscape.report.drawing import DIVERGING, SEQUENTIAL, style
from headscape.report.palette import DARK, LIGHT, PAPER_MARKERS
from headscape.statistics import bilinear
from headscape.statistics.spectra import MarchenkoPastur, singular_values

IMAGES = Path(__file__).parents[1] / "images" / "theory"
WIDTH = 7.2
INK = {"light": "#1a1a1a", "dark": "#d8d8d8"}
Picture = Callable[[tuple[str, ...], str], Figure]


def planted() -> Any:
    """The tensor of most pictures: four coarse and eight fine clusters of heads, shuffled."""
    return hs.planted("blocks", (32, 32, 24), noise=0.5)


def image(ax: Any, values: np.ndarray, title: str, **looks: Any) -> Any:
    """A matrix as colours, without ticks."""
    ax.set(xticks=[], yticks=[], title=title)
    ax.spines[:].set_visible(False)
    return ax.imshow(values, interpolation="nearest", aspect="auto", **{"cmap": SEQUENTIAL, **looks})


def trees(colours: tuple[str, ...], ink: str) -> Figure:
    """A partition tree, and the distances that two of them give the third axis."""
    P = planted()
    q = hs.Questionnaire().fit(P.values)
    tree, order = q.trees_[2], q.orders_[2]
    figure = Figure(figsize=(WIDTH, 2.7))
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    folders = tree.folders()
    x, y = (folders.start + folders.stop - 1) / 2, -folders.level.astype(float)
    lines = [[(x[i], y[folders.parent[i]]), (x[i], y[i])] for i in range(1, len(x))]
    for i in range(len(x)):
        kids = tree.children(i)
        if len(kids):
            lines.append([(x[kids].min(), y[i]), (x[kids].max(), y[i])])
    left.add_collection(LineCollection(lines, colors=ink, linewidths=0.7))
    leaves = np.flatnonzero(tree.sizes == 1)
    cluster = P.labels["head"]["coarse"][order[folders.start[leaves]]]
    for c in range(4):
        here = leaves[cluster == c]
        left.scatter(
            x[here],
            y[here],
            color=colours[c],
            marker=PAPER_MARKERS[c],
            s=16,
            zorder=3,
            label=f"planted cluster {c + 1}",
        )
    left.set(
        title="Tree of 24 heads: each level is a partition", xlabel="head, in tree order", ylabel="level", xticks=[]
    )
    levels = range(0, tree.n_levels, 2)
    left.set_yticks([-level for level in levels], [str(level) for level in levels])
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
    drawn = image(right, q.distances_[2][np.ix_(order, order)], "Tree distance of the heads")
    right.set(xlabel="head, in tree order")
    figure.colorbar(drawn, ax=right, shrink=0.9)
    return figure


def haar(colours: tuple[str, ...], ink: str) -> Figure:
    """Basis functions of a small tree, and how few coefficients a tensor needs on its trees."""
    tree = hs.PartitionTree.from_labels([[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 2, 2, 3]])
    basis = hs.inverse_haar_transform(np.eye(8), (tree, None))
    figure = Figure(figsize=(WIDTH, 2.6))
    left, right = figure.subplots(1, 2)
    reach = np.abs(basis).max()
    drawn = image(left, basis.T, "Haar functions of a tree on 8 leaves", cmap=DIVERGING, vmin=-reach, vmax=reach)
    left.set(xlabel="leaf", ylabel="function, the constant on top")
    figure.colorbar(drawn, ax=left, shrink=0.9)
    P = planted()
    found = hs.Questionnaire().fit(P.values).trees_
    natural = [hs.PartitionTree.dyadic(n) for n in P.values.shape]
    for (name, trees_), colour, dash in zip(
        (("organized", found), ("as given", natural)), colours, ("-", "--"), strict=False
    ):
        energy = np.sort(hs.haar_transform(P.values - P.values.mean(), trees_).ravel() ** 2)[::-1]
        share = 1 - np.cumsum(energy) / energy.sum()
        at = np.unique(np.geomspace(1, share.size, 60).astype(int))
        right.plot(at / share.size, share[at - 1], dash, color=colour, label=name)
    right.set(xscale="log", ylim=(0, 1), xlabel="share of coefficients kept", ylabel="share of energy lost")
    right.set_title("Organizing concentrates the energy")
    right.legend()
    return figure


def questionnaire(colours: tuple[str, ...], ink: str) -> Figure:
    """One slice before and after, and what the iterations change."""
    P = planted()
    q = hs.Questionnaire(n_iter=5).fit(P.values)
    head = int(q.orders_[2][0])
    figure = Figure(figsize=(WIDTH, 2.4))
    before, after, history = figure.subplots(1, 3, width_ratios=(1, 1, 1.3))
    reach = np.abs(P.values[:, :, head]).max()
    looks = {"cmap": DIVERGING, "vmin": -reach, "vmax": reach}
    image(before, P.values[:, :, head], "One head, shuffled", **looks)
    image(after, P.values[np.ix_(*q.orders_)][:, :, 0], "The same, organized", **looks)
    for ax in (before, after):
        ax.set(xlabel="key", ylabel="query")
    rounds = np.arange(1, len(q.history_) + 1)
    for axis, name in enumerate(("query", "key", "head")):
        change = [step.change[axis] for step in q.history_]
        history.plot(rounds, change, color=colours[axis], marker=PAPER_MARKERS[axis], markersize=3, label=name)
    history.set(xlabel="iteration", ylabel="change of the distances", title="Iterations settle", xticks=rounds)
    history.legend()
    return figure


def diffusion(colours: tuple[str, ...], ink: str) -> Figure:
    """The leading coordinates against the smallest ones, and the spectrum."""
    P = planted()
    affinity = hs.Questionnaire().fit(P.values).affinities_[2]
    spectrum = markov_spectrum(affinity, 23)
    figure = Figure(figsize=(WIDTH, 2.5))
    first, last, values = figure.subplots(1, 3)
    for ax, xy, title in (
        (first, hs.diffusion_map(affinity, n_components=2), "Largest eigenvalues"),
        (last, spectrum.vectors[:, -2:], "Smallest eigenvalues"),
    ):
        for c in range(4):
            here = P.labels["head"]["coarse"] == c
            ax.scatter(*xy[here].T, color=colours[c], marker=PAPER_MARKERS[c], s=16, label=f"cluster {c + 1}")
        ax.set(title=title, xlabel="coordinate 1", ylabel="coordinate 2")
    last.legend(fontsize=6)
    values.bar(np.arange(1, len(spectrum.values) + 1), spectrum.values, color=colours[0])
    values.set(title="The chain's eigenvalues", xlabel="number, the constant left out", ylabel="eigenvalue")
    return figure


def vision_head() -> tuple[np.ndarray, Any]:
    """Log-attention of the ViT's head with the median spread of scores on one image, and its own organization."""
    model = hs.load_model("vit-fmnist")
    captured = hs.capture(model, hs.sample_images()[0][:1], batches=1, keep=("probs", "scores"), dtype="float32")
    scores = captured.tensor(0, kind="scores").values
    spread = scores.std(axis=1).mean(axis=0)
    head = int(np.argsort(spread)[len(spread) // 2])
    g = scores[:, :, head].astype(np.float64)
    g -= logsumexp(g, axis=1, keepdims=True)
    return g, hs.Questionnaire().fit(g)


def regularity(colours: tuple[str, ...], ink: str) -> Figure:
    """Softmax of a head, its paraproduct, and the residual, in the order of its trees."""
    g, q = vision_head()
    p = hs.paraproduct(g, *q.trees_)
    figure = Figure(figsize=(WIDTH, 2.5))
    axes = figure.subplots(1, 3)
    place = np.ix_(*q.orders_)
    looks = {"vmin": 0.0, "vmax": float(np.exp(g / 2).max())}
    image(axes[0], np.exp(g / 2)[place], "softmax = exp(g)", **looks)
    drawn = image(axes[1], np.sqrt(np.maximum(p.approximation, 0))[place], "paraproduct of g", **looks)
    figure.colorbar(drawn, ax=axes[:2], shrink=0.9, label="square root of attention")
    reach = float(np.abs(p.residual).max())
    left = image(axes[2], p.residual[place], "residual", cmap=DIVERGING, vmin=-reach, vmax=reach)
    figure.colorbar(left, ax=axes[2], shrink=0.9)
    for ax in axes:
        ax.set(xlabel="key, in tree order")
    axes[0].set_ylabel("query, in tree order")
    return figure


def gaussian(colours: tuple[str, ...], ink: str) -> Figure:
    """Scores of random tokens under a spread and a low-rank C, beside the normal law that the moments give."""
    rng, d = np.random.default_rng(0), 64
    figure = Figure(figsize=(WIDTH, 2.5))
    U, V = (np.linalg.qr(rng.standard_normal((d, d)))[0] for _ in range(2))
    for ax, rank, title in zip(
        figure.subplots(1, 2), (d, 2), ("C spread over 64 directions", "C of rank 2"), strict=True
    ):
        s = np.where(np.arange(d) < rank, 1.0, 0.0) / np.sqrt(rank)
        C = (U * s) @ V.T
        moments = bilinear.form_moments(C, np.zeros(d), np.zeros(d), np.eye(d), np.eye(d))
        x, y = rng.standard_normal((2, 200_000, d))
        scores = ((x @ C) * y).sum(axis=1)
        bins = np.linspace(-6, 6, 61)
        ax.hist(scores, bins, density=True, color=colours[0], alpha=0.55, label="measured")
        t = np.linspace(-6, 6, 200)
        ax.plot(
            t, norm.pdf(t, moments.mean, moments.variance**0.5), "--", color=colours[1], label="normal, same variance"
        )
        ax.set(
            title=f"{title}: excess kurtosis {moments.kurtosis:.2f}",
            xlabel="score x^T C y",
            yscale="log",
            ylim=(1e-5, 2),
        )
        ax.legend()
    return figure


def matrices(colours: tuple[str, ...], ink: str) -> Figure:
    """Squared singular values of noise and of a trained matrix, with the law of Marchenko and Pastur."""
    rng = np.random.default_rng(0)
    W = dict(hs.load_model("vit-fmnist").module.named_parameters())
    names = [name for name, w in W.items() if w.ndim == 2 and w.shape[0] > w.shape[1] and ".3." in name]
    name = names[0]
    trained = W[name].detach().numpy().astype(float)
    noise = rng.normal(0, trained.std(), trained.shape)
    figure = Figure(figsize=(WIDTH, 2.5))
    for ax, M, title in zip(
        figure.subplots(1, 2), (noise, trained), ("Noise", "A trained matrix (ViT, layer 3)"), strict=True
    ):
        values = singular_values(M) ** 2
        law = MarchenkoPastur(*M.shape, float((M**2).mean()))
        edges = np.geomspace(values.min() * 0.9, max(float(values.max()), law.edges[1]) * 1.1, 31)
        counts = np.histogram(values, edges)[0] / len(values)
        ax.stairs(counts, edges, fill=True, color=colours[0], alpha=0.55, label="measured")
        expected = np.diff([float(law.cdf(edge)) for edge in edges])
        ax.stairs(expected, edges, color=colours[1], linewidth=1.2, label="Marchenko-Pastur")
        for edge in law.edges:
            ax.axvline(edge, color=ink, linewidth=0.7, linestyle=":")
        ax.set(title=title, xlabel="squared singular value", ylabel="share", xscale="log")
        ax.legend()
    return figure


def collapse(colours: tuple[str, ...], ink: str) -> Figure:
    """Residual by depth of networks of attention alone, in four variants."""
    tokens = torch.as_tensor(np.random.default_rng(0).standard_normal((1, 64, 96)))
    figure = Figure(figsize=(WIDTH, 2.8))
    ax = figure.subplots()
    for i, (name, config) in enumerate(four_variants(AttentionOnly(depth=12, width=96)).items()):
        with torch.no_grad():
            states = [layer.states[0].numpy() for layer in AttentionNetwork(config, seed=0).layers(tokens)]
        found = [relative_residual(tokens[0].numpy()), *(relative_residual(X) for X in states)]
        dash = "--" if "0.5" in name else "-"
        ax.plot(found, dash, color=colours[i], marker=PAPER_MARKERS[i], markersize=3, label=name)
    for floor, name in ((1.2e-7, "float32"), (2.2e-16, "float64")):
        ax.axhline(floor, color=ink, linewidth=0.6, linestyle=":")
        ax.text(0, floor * 1.6, f"precision of {name}", fontsize=6, color=ink)
    ax.set(yscale="log", xlabel="layer", ylabel="relative residual", title="Tokens of attention alone become equal")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def hopfield(colours: tuple[str, ...], ink: str) -> Figure:
    """What a hidden state remembers, and which discretizations stay near the equations."""
    figure = Figure(figsize=(WIDTH, 2.5))
    left, right = figure.subplots(1, 2)
    layers, n = np.arange(1, 9), 8
    for i, a in enumerate((0.3, 0.5, 0.7)):
        left.plot(
            layers,
            (1 - a) * a ** (n - layers),
            color=colours[i],
            marker=PAPER_MARKERS[i],
            markersize=3,
            label=f"a' = {a}",
        )
    left.set(title="Weight of each layer's scores in layer 8", xlabel="layer", ylabel="weight")
    left.legend()
    rng, tokens, dim = np.random.default_rng(0), 6, 8
    field = dynamics.Field.of(*(rng.standard_normal((dim, dim)) / 4 for _ in range(3)))
    start = dynamics.State(rng.standard_normal((tokens, dim)), np.zeros((tokens, tokens)))
    rho, steps = 0.25, 32
    fine = dynamics.trajectory(start, field, steps * 50, rho / 50, rho / 50, "forward", "forward")
    truth = [state.x for state in fine[::50]]
    for i, (kind, name) in enumerate(
        (
            (("forward", "backward"), "forward, backward (MHA)"),
            (("forward", "forward"), "forward, forward"),
            (("central", "central"), "central"),
        )
    ):
        found = dynamics.trajectory(start, field, steps, rho, rho, *kind)
        error = [np.abs(state.x - x).max() for state, x in zip(found, truth, strict=True)]
        right.plot(error[1:], color=colours[i], linestyle=("-", "--", ":")[i], label=name)
    right.set(
        yscale="log", title="Distance from the continuous equations", xlabel="layer (step 0.25)", ylabel="largest error"
    )
    right.legend()
    return figure


PICTURES: dict[str, Picture] = {
    **{"trees": trees, "haar": haar, "questionnaire": questionnaire, "diffusion": diffusion, "regularity": regularity},
    **{"gaussian": gaussian, "matrices": matrices, "collapse": collapse, "hopfield": hopfield},
}


def main(names: list[str]) -> None:
    """Write each picture for light and for dark pages."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name in names or list(PICTURES):
        for theme, colours in (("light", LIGHT), ("dark", DARK)):
            ink = INK[theme]
            parts = ("text", "axes.label", "axes.edge", "axes.title", "xtick", "ytick")
            inks = {f"{part}.color" if part in ("text", "xtick", "ytick") else f"{part}color": ink for part in parts}
            with style(), mpl.rc_context({**inks, "savefig.transparent": True, "figure.facecolor": "none"}):
                figure = PICTURES[name](colours, ink)
                figure.savefig(IMAGES / f"{name}-{theme}.svg", metadata={"Date": None})
        print(name)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1:])
