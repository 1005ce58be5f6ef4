"""How far the tree of the heads from pooled tensors agrees with the one from whole maps.

    python benchmarks/pooled_trees.py [--models smollm2-135m ...] [--tokens 512] [--pool 64] [--batches 5]

Every batch is captured whole and pooled from the same pass, and both tensors are organised alike. The cophenetic
distance of two heads in a tree is the share of all heads in the smallest folder that holds both; agreement is Pearson's
correlation of these over the pairs of heads, averaged over batches, with Student's interval over batches. Beside it
stands what whole maps of two different batches agree on (a pooled tree cannot be asked for more), and the agreement of
the two consensus trees. Distances: Spearman's correlation of the head distances themselves.
"""

import argparse
import itertools
import time

import numpy as np
import torch
from scipy.stats import spearmanr

import headscape as hs
from headscape.attention.capture import _run_sample
from headscape.attention.capture_tap import CaptureTap, Memory
from headscape.attention.samples import samples_of
from headscape.attention.tapping import tapped
from headscape.intervals import student_interval
from headscape.tensor import AttentionTensor
from headscape.tree import PartitionTree

BUNDLED = ("vit-fmnist", "minilm-l6", "gemma3-270m", "mpnet-base", "smollm2-135m")


def cophenetic(tree: PartitionTree) -> np.ndarray:
    """Share of the leaves in the smallest folder that holds both, for every pair: (n (n - 1) / 2,)."""
    n = tree.n_leaves
    share = np.ones((n, n))
    for level in range(1, tree.n_levels):  # finer and finer
        labels = tree.level(level)
        sizes = np.bincount(labels)[labels] / n
        same = labels[:, None] == labels[None, :]
        share[same] = np.broadcast_to(sizes[:, None], (n, n))[same]
    return share[np.triu_indices(n, 1)]


def correlation(a: PartitionTree, b: PartitionTree) -> float:
    return float(np.corrcoef(cophenetic(a), cophenetic(b))[0, 1])


def organised(X: AttentionTensor) -> tuple[hs.Questionnaire, float]:
    start = time.process_time()
    return hs.Questionnaire(n_jobs=1).fit(X), time.process_time() - start


def fits_of(name: str, tokens: int, pool: int, batches: int) -> tuple[list[tuple], int, int, int]:
    model = hs.load_model(name, device="cpu")
    inputs = hs.sample_images() if model.images is not None else [hs.sample_text("rank")]
    tokens = min(tokens, model.max_tokens or tokens)
    samples, _ = samples_of(model, inputs, tokens, batches)
    chosen = {site.name: (site, list(range(site.n_heads))) for site in model.sites}
    n = len(next(iter(samples[0].tokens.values()))[0])
    pool = min(pool, n // 4)
    fits = []
    for sample in samples:
        kept = {}
        whole, pooled = (CaptureTap(model.module, chosen, ("probs",), "float16", p) for p in (None, pool))
        pooled.start(Memory())
        with tapped(model.module, pooled):
            _run_sample(model, sample, whole, Memory())
        for which, tap in (("whole", whole), ("pooled", pooled)):
            arrays = tap.sink.arrays
            maps = np.concatenate([arrays[f"probs/{s.block}.{s.layer}"] for s in model.sites])
            kept[which] = AttentionTensor(np.moveaxis(maps, 0, -1), mask=model.sites[0].mask)
        fits.append((*organised(kept.pop("whole")), *organised(kept.pop("pooled"))))
        print(".", end="", flush=True)
    return fits, n, pool, sum(site.n_heads for site in model.sites)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(BUNDLED))
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--pool", type=int, default=64)
    parser.add_argument("--batches", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| model | tokens -> blocks | heads | trees agree | consensus trees | two batches, whole | distances | time |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name in args.models:
        fits, n, pool, n_heads = fits_of(name, args.tokens, args.pool, args.batches)
        whole, pooled = [f[0] for f in fits], [f[2] for f in fits]
        pairs = list(zip(whole, pooled, strict=True))
        upper = np.triu_indices(n_heads, 1)
        agree = student_interval([correlation(a.trees_[2], b.trees_[2]) for a, b in pairs]).within(-1, 1)
        others = [correlation(a.trees_[2], b.trees_[2]) for a, b in itertools.combinations(whole, 2)]
        consensus = correlation(hs.consensus(whole).tree, hs.consensus(pooled).tree)
        distances = [[fit.distances_[2][upper] for fit in pair] for pair in pairs]
        rank = student_interval([spearmanr(*both).statistic for both in distances]).within(-1, 1)
        ratio = np.median([f[3] / f[1] for f in fits])
        print(
            f"\r| {name} | {n} -> {pool} | {n_heads} | {agree} | {consensus:.2f} | {np.mean(others):.2f} | {rank} "
            f"| {ratio:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
