"""What a network must beat."""

import math
from collections import Counter

import numpy as np
import pytest

from headscape.hopfield.networks import NetworkConfig
from headscape.studies.train.baselines import linear_accuracy, ngram_losses
from headscape.studies.train.data import image_data, text_data


def witten_bell(train, order, context, token, outputs):
    """One probability, by counting."""
    if order < 0:
        return 1 / outputs
    context = context[len(context) - order :] if order else ()
    below = witten_bell(train, order - 1, context[1:] if order else (), token, outputs)
    follows = Counter(train[i] for i in range(order, len(train)) if tuple(train[i - order : i]) == tuple(context))
    total, kinds = sum(follows.values()), len(follows)
    return (follows[token] + kinds * below) / (total + kinds) if total else below


def test_ngrams_one_by_one(tmp_path):
    rng = np.random.default_rng(1)
    path = tmp_path / "small.txt"
    path.write_text("".join(rng.choice(list("abcde "), 400)) + "xyz" * 30)  # the test part has what training never had
    config = NetworkConfig("gpt", 1, 2, 8, tokens=5)
    data = text_data(path, tokens=5)
    got = ngram_losses(data, config, 2)
    train = data.parts["train"].tolist()
    for order, name in enumerate(("unigram", "bigram", "trigram")):
        losses = []
        for x, y in data.examples("test", 2, config):
            for row, goals in zip(x.tolist(), y.tolist(), strict=True):
                for i, goal in enumerate(goals):
                    known = min(order, i + 1)
                    losses.append(-math.log(witten_bell(train, known, tuple(row[: i + 1]), goal, 256)))
        assert got[name] == pytest.approx(np.mean(losses), rel=1e-9), name


def test_the_linear_classifier_learns_what_is_linear(pictures):
    data = image_data(pictures, NetworkConfig("vit", 1, 2, 8, patch=7))
    assert linear_accuracy(data) > 0.95
