"""What a network must beat before its attention can be said to matter: n-grams of a text, a linear classifier of images."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headscape.hopfield.networks import NetworkConfig
from headscape.storage import write_json
from headscape.studies.train.data import Data, ImageData, TextData, stored_data

__all__ = ["NGRAMS", "linear_accuracy", "ngram_losses", "run_baselines"]

NGRAMS = ("unigram", "bigram", "trigram")
Ids = npt.NDArray[np.int64]


def run_baselines(path: Path, data: Data | Path, network: NetworkConfig, test_batches: int) -> None:
    """Write the loss of each n-gram (nats per token), or the accuracy of a linear classifier, on the test part."""
    data = stored_data(data, network)
    if isinstance(data, ImageData):
        found = {"linear": linear_accuracy(data)}
    else:
        found = ngram_losses(data, network, test_batches)
    write_json(path, found)


def ngram_losses(data: TextData, network: NetworkConfig, test_batches: int) -> dict[str, float]:
    """Mean loss of interpolated n-grams with Witten-Bell smoothing, on exactly the windows that networks are tested on.

        p_n(w | context) = (count(context w) + kinds(context) p_n-1(w | shorter context)) / (count(context) + kinds(context))

    with kinds the number of different tokens seen after a context, and p_0 uniform. Nothing before a window is known,
    as for a network.
    """
    windows = [(x.numpy(), y.numpy()) for x, y in data.examples("test", test_batches, network)]
    given, wanted = (np.concatenate([pair[k] for pair in windows]) for k in (0, 1))
    seen = data.parts["train"].astype(np.int64)
    p = np.full(wanted.shape, 1 / data.outputs)
    losses = {}
    for order, name in enumerate(NGRAMS):
        there = slice(max(order - 1, 0), None)  # a window's first tokens have a shorter context
        context = _contexts(seen, order, data.outputs)
        asked = _contexts_in(given, order, data.outputs)
        p = np.concatenate(
            [p[:, : there.start], _smoothed(context, seen[order:], asked, wanted[:, there], p[:, there], data.outputs)],
            axis=1,
        )
        losses[name] = float(-np.log(p).mean())
    return losses


def _contexts(tokens: Ids, order: int, n: int) -> Ids:
    """The `order` tokens before each token of a stream, as one number; for tokens from `order` on."""
    code = np.zeros(len(tokens) - order, dtype=np.int64)
    for k in range(order):
        code = code * n + tokens[k : len(tokens) - order + k]
    return code


def _contexts_in(given: Ids, order: int, n: int) -> Ids:
    """The same for windows (n_window, n_token) of known tokens: the last `order` of what is known at each place."""
    if order == 0:
        return np.zeros(given.shape, dtype=np.int64)
    code = np.zeros((len(given), given.shape[1] - order + 1), dtype=np.int64)
    for k in range(order):
        code = code * n + given[:, k : given.shape[1] - order + 1 + k]
    return code


def _smoothed(context: Ids, follows: Ids, asked: Ids, wanted: Ids, below: npt.NDArray[Any], n: int) -> Any:
    """Witten-Bell: counts of contexts and what follows them, interpolated with the order below."""
    pairs, counts = np.unique(context * n + follows, return_counts=True)
    contexts, first = np.unique(pairs // n, return_index=True)
    totals, kinds = np.add.reduceat(counts, first), np.diff([*first, len(pairs)])

    def looked_up(keys: Ids, values: npt.NDArray[Any], where: Ids) -> npt.NDArray[Any]:
        place = np.minimum(np.searchsorted(keys, where), len(keys) - 1)
        return np.where(keys[place] == where, values[place], 0)

    total, kind = looked_up(contexts, totals, asked), looked_up(contexts, kinds, asked)
    count = looked_up(pairs, counts, asked * n + wanted)
    return np.where(total > 0, (count + kind * below) / np.maximum(total + kind, 1), below)


def linear_accuracy(data: ImageData) -> float:
    """Share of test images that multinomial logistic regression on the pixels of all training images gets right."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    pixels = {part: data.images[part].reshape(len(data.images[part]), -1) for part in ("train", "test")}
    scaled = {part: (x.astype(np.float32) - data.mean) / data.deviation for part, x in pixels.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # its accuracy settles long before its weights
        model = LogisticRegression(C=0.01, max_iter=100, tol=1e-3).fit(scaled["train"], data.labels["train"])
    return float((model.predict(scaled["test"]) == data.labels["test"]).mean())
