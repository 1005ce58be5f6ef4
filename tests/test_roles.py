"""Roles of heads that were made for them, and scores as plain sums.

Also tests attention.induction, studies.organize.clusters.
"""

import numpy as np
import pandas as pd
import pytest
from scipy.special import comb

import headscape as hs
from headscape.roles import ROLES, BatchRoles, batch_roles, find_role, role_name, role_scores, role_table
from headscape.roles import assign_roles as assign
from headscape.studies.organize.clusters import name_folders

TOKENS = ["The", " cat", " saw", " the", ".", " The", " cat", ",", " dog", " saw", " it", "."]


def assign_roles(X, probes=None):
    return assign(role_table([batch_roles(X)], probes), len(X.heads))


def head_with(pattern, n=12, causal=True):
    """A map that puts 90 % on the keys of a pattern and the rest evenly on what is present."""
    present = np.tri(n, dtype=bool) if causal else np.ones((n, n), dtype=bool)
    even = present / present.sum(axis=1, keepdims=True)
    target = np.zeros((n, n))
    for i in range(n):
        keys = [j for j in pattern(i) if 0 <= j < n and present[i, j]]
        target[i, keys] = 1 / len(keys) if keys else 0
    mixed = np.where(target.sum(axis=1, keepdims=True) > 0, 0.9 * target + 0.1 * even, even)
    return mixed


def same(i):
    return [j for j in range(12) if TOKENS[j] == TOKENS[i] and j != i]


PATTERNS = {
    "self": lambda i: [i],
    "previous": lambda i: [i - 1],
    "first": lambda i: [0],
    "punctuation": lambda i: [j for j in range(12) if TOKENS[j] in ".,"],
    "uniform": lambda i: range(i + 1),
}


def test_heads_made_for_a_role_get_its_name():
    maps = np.stack([head_with(p) for p in PATTERNS.values()], axis=-1)
    X = hs.AttentionTensor(maps, query_tokens=TOKENS, key_tokens=TOKENS, mask="causal")
    scores = role_scores(X)
    assert assign_roles(X) == list(PATTERNS)
    for i, role in enumerate(PATTERNS):
        assert scores[role].idxmax() == i


def test_next_token_needs_keys_ahead():
    ahead = head_with(lambda i: [i + 1], causal=False)[:, :, None]
    X = hs.AttentionTensor(ahead, query_tokens=TOKENS, key_tokens=TOKENS)
    assert assign_roles(X) == ["next"]
    causal = hs.AttentionTensor(head_with(PATTERNS["self"])[:, :, None], mask="causal")
    assert np.isnan(role_scores(causal)["next"][0])


def test_scores_are_the_plain_sums():
    rng = np.random.default_rng(0)
    weights = rng.random((12, 12, 3)) * np.tri(12)[:, :, None]
    P = weights / weights.sum(axis=1, keepdims=True)
    X = hs.AttentionTensor(P, query_tokens=TOKENS, key_tokens=TOKENS, mask="causal")
    scores = role_scores(X)
    for h in range(3):
        assert scores["self"][h] == pytest.approx(np.mean([P[i, i, h] for i in range(12)]), rel=1e-5)
        assert scores["previous"][h] == pytest.approx(np.mean([P[i, i - 1, h] for i in range(1, 12)]), rel=1e-5)
        assert scores["first"][h] == pytest.approx(np.mean(P[1:, 0, h]), rel=1e-5)
        rows = [i for i in range(12) if any(j < i for j in same(i))]
        assert scores["duplicate"][h] == pytest.approx(np.mean([P[i, same(i), h].sum() for i in rows]), rel=1e-5)
        marks = [4, 7, 11]
        assert scores["punctuation"][h] == pytest.approx(
            np.mean([P[i, [j for j in marks if j <= i], h].sum() for i in range(4, 12)]), rel=1e-5
        )
        entropy = [-(P[i, : i + 1, h] * np.log(P[i, : i + 1, h])).sum() / np.log(i + 1) for i in range(1, 12)]
        assert scores["uniform"][h] == pytest.approx(np.mean(entropy), rel=1e-5)


def test_positional_share_is_one_for_a_function_of_the_offset_and_small_for_noise():
    n = 40
    offset = np.arange(n)[:, None] - np.arange(n)
    rng = np.random.default_rng(1)
    maps = np.stack([np.exp(-np.abs(offset) / 5), rng.random((n, n))], axis=-1)
    share = role_scores(hs.AttentionTensor(maps))["positional"]
    assert share[0] == pytest.approx(1, abs=1e-6)
    assert share[1] == pytest.approx((2 * n - 2) / (n * n - 1), abs=0.03)  # groups - 1 over entries - 1


def test_tokens_without_repeats_have_no_same_and_no_punctuation():
    X = hs.AttentionTensor(np.full((4, 4, 2), 0.25))
    scores = role_scores(X)
    assert scores["duplicate"].isna().all() and scores["punctuation"].isna().all()
    assert assign_roles(X) == ["uniform", "uniform"]


def test_a_sink_on_a_special_first_token_is_a_sink_and_a_head_on_the_separator_is_not():
    tokens = ["[CLS]", "the", "cat", "sat", "the", "mat", "[SEP]"]
    first, last = (np.tile(np.eye(7)[k], (7, 1)) for k in (0, 6))
    X = hs.AttentionTensor(np.stack([first, last], axis=-1), query_tokens=tokens, key_tokens=tokens)
    assert assign_roles(X) == ["first", "punctuation"]
    np.testing.assert_allclose(role_scores(X)["punctuation"], [0, 1])


def test_induction_comes_before_other_names():
    X = hs.AttentionTensor(head_with(PATTERNS["first"])[:, :, None], mask="causal")
    probe = BatchRoles({"induction": np.array([0.7])}, {"induction": 0.02})
    X = hs.AttentionTensor(X.values, query_tokens=TOKENS, key_tokens=TOKENS, mask="causal")
    assert assign_roles(X, {"induction": probe}) == ["induction"]
    weak = BatchRoles({"induction": np.array([0.3])}, {"induction": 0.02})
    assert assign_roles(X, {"induction": weak}) == ["first"]


def followers(i):
    return [j + 1 for j in range(i) if TOKENS[j] == TOKENS[i] and j + 1 < i]


def test_induction_on_text_is_attention_to_what_followed_the_same_token():
    rng = np.random.default_rng(3)
    weights = rng.random((12, 12, 2)) * np.tri(12)[:, :, None]
    P = weights / weights.sum(axis=1, keepdims=True)
    X = hs.AttentionTensor(P, query_tokens=TOKENS, key_tokens=TOKENS, mask="causal")
    rows = [i for i in range(12) if followers(i)]
    expected = np.mean([P[i, followers(i)].sum(axis=0) for i in rows], axis=0)
    np.testing.assert_allclose(role_scores(X)["induction"], expected, rtol=1e-5)
    assert batch_roles(X).chance["induction"] == pytest.approx(np.mean([len(followers(i)) / (i + 1) for i in rows]))
    X = hs.AttentionTensor(head_with(followers)[:, :, None], query_tokens=TOKENS, key_tokens=TOKENS, mask="causal")
    assert assign_roles(X) == ["induction"]


def test_chance_is_what_shuffled_rows_score_on_average():
    from headscape.studies.organize.units import shuffled_rows

    X = hs.AttentionTensor(
        head_with(PATTERNS["previous"])[:, :, None], query_tokens=TOKENS, key_tokens=TOKENS, mask="causal"
    )
    scores = pd.concat([role_scores(shuffled_rows(X, seed)) for seed in range(300)]).mean(numeric_only=True)
    chances = {role: chance for role, chance in batch_roles(X).chance.items() if not np.isnan(chance)}
    assert chances.keys() >= {"previous", "self", "first", "duplicate", "induction", "local"}
    assert scores[list(chances)].to_dict() == pytest.approx(chances, abs=0.03)


def test_a_window_that_covers_everything_is_not_called_local():
    even = hs.AttentionTensor(head_with(lambda i: range(max(0, i - 5), i))[:6, :6, None], mask="causal")
    assert assign_roles(even) != ["local"]
    n = 60
    near = np.abs(np.arange(n)[:, None] - np.arange(n) - 3.5) < 4
    maps = near * np.tri(n)
    maps[maps.sum(axis=1) == 0, 0] = 1
    assert assign_roles(hs.AttentionTensor((maps / maps.sum(axis=1, keepdims=True))[:, :, None], mask="causal")) == [
        "local"
    ]


def test_names_researchers_use():
    assert [find_role(name) for name in ("Sink", "previous_token", "duplicate token")] == [
        "first",
        "previous",
        "duplicate",
    ]
    with pytest.raises(hs.InputError, match="no role is called 'inductoin'"):
        find_role("inductoin")


def test_folders_are_named_by_the_hypergeometric_tail():
    labels = [[0] * 8, [0, 0, 0, 0, 1, 1, 1, 1], list(range(8))]
    tree = hs.PartitionTree.from_labels(labels)
    roles = ["first"] * 4 + ["self", "mixed", "mixed", "mixed"]
    named = name_folders(tree, roles, alpha=0.05)
    assert [(f.role, f.size, f.count) for f in named] == [("first", 4, 4)]
    assert named[0].p == pytest.approx(1 / comb(8, 4))
    assert name_folders(tree, ["mixed"] * 8) == []


@pytest.mark.parametrize("name", ["smollm2-135m"])
def test_trained_decoders_have_induction_heads_and_random_ones_do_not(load, name):
    from headscape.attention.induction import repeated_sequence_scores

    trained = repeated_sequence_scores(load(name), length=32, n_sequences=2)
    random = repeated_sequence_scores(hs.load_model(name, device="cpu", random_init=0), length=32, n_sequences=2)
    assert max(trained["induction"].values()) > 0.5
    assert max(random["induction"].values()) < 0.1
    assert len(trained["induction"]) == 270
    with pytest.raises(hs.InputError, match="needs a decoder that reads text"):
        repeated_sequence_scores(load("minilm-l6"))


def test_every_role_has_the_name_researchers_know():
    shown = [role_name(role) for role in ROLES]
    assert shown == [
        *("induction", "previous token", "duplicate token", "first token (sink)", "self", "next token"),
        *("punctuation or separator", "local window", "uniform"),
    ]
    assert [find_role(name) for name in shown] == list(ROLES)
