"""Heads are found by role: in a network whose induction head is made by hand, and in no random one."""

import copy
import gc
import shutil
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import headscape as hs
from headscape.roles import ROLES
from headscape.studies.organize import by_role
from headscape.studies.organize.by_role import heads_by_role
from tiny import Letters
from zoo import make

N_TOKEN, N_POSITION = 12, 24


class Attention(nn.Module):
    """softmax(q k^T) v over a causal mask, heads side by side, in plain torch."""

    def __init__(self, q, k, v, o):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Parameter(torch.tensor(w, dtype=torch.float32)) for w in (q, k, v, o))

    def forward(self, x):
        q, k, v = (torch.einsum("btd,hed->bhte", x, w) for w in (self.q, self.k, self.v))
        n = x.shape[1]
        scores = q @ k.transpose(2, 3) + torch.full((n, n), -1e9).triu(1)
        return torch.einsum("bhte,hde->btd", torch.softmax(scores, dim=-1) @ v, self.o)


class TwoLayers(nn.Module):
    """Attention alone: in layer 0 head 1 looks at the previous token, in layer 1 head 0 completes a repetition."""

    def __init__(self, seed=None):
        super().__init__()
        T, P, D = N_TOKEN, N_POSITION, 2 * N_TOKEN + 2 * N_POSITION
        rng = np.random.default_rng(0 if seed is None else seed)

        def weights(made):
            if seed is None:
                return made
            return {name: rng.normal(size=w.shape) / np.sqrt(D) for name, w in made.items()}

        def layer():
            return {name: np.zeros((2, P, D)) for name in "qkv"} | {"o": np.zeros((2, D, P))}

        # the stream holds: token, position, previous token (written by layer 0), room
        first, second = layer(), layer()
        for p in range(1, P):
            first["q"][1, p - 1, T + p] = 30.0  # a query at p looks for position p - 1
            first["k"][1, p - 1, T + p - 1] = 1.0
        for t in range(T):
            first["v"][1, t, t] = 1.0
            first["o"][1, T + P + t, t] = 1.0  # the token before is written down
            second["q"][0, t, t] = 30.0  # a query looks for keys whose previous token is its own
            second["k"][0, t, T + P + t] = 1.0
            second["v"][0, t, t] = 1.0
            second["o"][0, 2 * T + P + t, t] = 1.0
        self.embed = nn.Embedding(T, D)
        self.place = nn.Embedding(P, D)
        with torch.no_grad():
            self.embed.weight.copy_(torch.eye(T, D))
            self.place.weight.copy_(torch.eye(P, D).roll(T, 1))
        self.layers = nn.ModuleList([Attention(*weights(first).values()), Attention(*weights(second).values())])

    def forward(self, ids):
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = x + layer(x)
        return x


def capture(network):
    """Half of the tokens in random order, shown twice: the classic probe of induction."""
    rng = np.random.default_rng(1)
    halves = [rng.permutation(N_TOKEN) for _ in range(4)]
    inputs = [torch.tensor([[*half, *half]]) for half in halves]
    model = hs.wrap_module(network, attention=["layers.0", "layers.1"], example=inputs[0])
    captured = hs.capture(model, inputs, batches=None, dtype="float32")
    return hs.from_attentions(
        [list(np.moveaxis(captured.tensor(i).values, 2, 0).reshape(2, 2, 24, 24)) for i in range(4)],
        tokens=[[str(t) for t in (*half, *half)] for half in halves],
    )


def test_the_induction_head_made_by_hand_is_found_and_a_random_one_is_not():
    captured = capture(TwoLayers())
    found = hs.find_heads(captured, "induction", top=1).iloc[0]
    assert (found["layer"], found["head"]) == (1, 0)
    assert found["score"] > 0.95 and found["share"] == 1 and found["has_role"] and found["chance"] < 0.1
    previous = hs.find_heads(captured, "previous token").iloc[0]
    assert (previous["layer"], previous["head"]) == (0, 1) and previous["has_role"]
    for seed in range(3):
        random = hs.find_heads(capture(TwoLayers(seed + 1)), "induction", top=None)
        assert not random["has_role"].any() and random["score"].max() < 0.2


def test_all_roles_at_once_are_what_each_is_alone_from_one_reading(tmp_path, monkeypatch):
    place = tmp_path / "run"
    hs.capture(make("llama"), [[1, 2, 3, 1, 2, 3], [4, 5, 4, 5, 6, 7]], out=place)
    alone = {}
    for role in ROLES:
        with suppress(hs.InputError):
            alone[role] = hs.find_heads(place, role, top=None, model=make("llama"))
    asked, read, told = [], [], []
    for name, calls in (("probed", asked), ("batch_roles", read)):
        own = getattr(by_role, name)
        monkeypatch.setattr(by_role, name, lambda *given, own=own, calls=calls: calls.append(given) or own(*given))
    found = heads_by_role(place, ROLES, model=make("llama"), progress=lambda *steps: told.append(steps))
    assert len(asked) == 1 and len(read) == 2 and told == [(0, 1), (1, 1), (0, 2), (1, 2), (2, 2)]
    assert "punctuation" not in found and list(found) == list(alone)
    for role, table in found.items():
        pd.testing.assert_frame_equal(table, alone[role])
    with pytest.raises(hs.InputError, match="'punctuation': it needs"):
        heads_by_role(place, ["punctuation"], model=None)


def test_a_role_of_ones_own_is_a_function_of_maps_and_tokens():
    captured = capture(TwoLayers())

    def two_back(maps, tokens):
        assert maps.shape[1] == len(tokens)
        return np.array([np.diagonal(maps[:, :, h], -2).mean() for h in range(maps.shape[2])])

    found = hs.find_heads(captured, two_back, top=None)
    assert list(found.columns) == ["block", "layer", "head", "score", "chance", "share", "has_role"]
    X = captured.tensor(0)
    own = np.mean(
        [[np.diagonal(captured.tensor(i).values[:, :, h], -2).mean() for h in range(4)] for i in range(4)], axis=0
    )
    np.testing.assert_allclose(np.sort(found["score"])[::-1], np.sort(own)[::-1], rtol=1e-6)
    noise = hs.AttentionTensor(np.random.default_rng(0).dirichlet(np.ones(12), (12, 40)).transpose(0, 2, 1))
    assert hs.find_heads(noise, two_back, top=None)["has_role"].mean() < 0.2
    with pytest.raises(hs.InputError, match="a score per head"):
        hs.find_heads(X, lambda maps, tokens: 1.0)


def test_a_run_and_its_organized_result_say_the_same(tmp_path):
    captured = capture(TwoLayers())
    layers = [[np.moveaxis(captured.tensor(i).values, 2, 0)[2 * n : 2 * n + 2] for n in (0, 1)] for i in range(4)]
    tokens = [captured.tensor(i).key_tokens for i in range(4)]
    hs.from_attentions(layers, tokens=tokens, out=tmp_path / "run")
    before = hs.find_heads(tmp_path / "run", "induction", top=None)
    result = hs.organize(tmp_path / "run")
    after = hs.find_heads(tmp_path / "run", "induction", top=None)
    assert before.equals(after) and hs.find_heads(result, "induction", top=None).equals(after)
    assert result.heads["role"].tolist()[2] == "induction"
    batches = tmp_path / "run" / "attention"
    shutil.copy(batches / "batch-0000.safetensors", batches / "batch-0001.safetensors")
    with pytest.raises(hs.InputError, match="made from batch 1, which has changed"):
        hs.find_heads(tmp_path / "run", "induction")


@pytest.fixture(scope="module")
def network():
    return make("llama")


def test_a_capture_in_memory_asks_the_model_it_was_made_from(network, tmp_path):
    captured = hs.capture(network, [[1, 2, 3, 4, 5]])  # no token comes again, and there is no tokenizer
    found = hs.find_heads(captured, "induction", top=None)
    assert {"copying", "share"} < set(found) and found["chance"].iloc[0] < 0.05
    hs.capture(hs.wrap_module(network, tokenizer=Letters()), "abcde", out=tmp_path / "run")
    for given in (network, hs.wrap_module(network)):
        assert hs.find_heads(tmp_path / "run", "induction", top=None, model=given)["score"].equals(found["score"])
        assert hs.find_heads(captured.tensor(0), "induction", top=None, model=given).equals(found)
    result = hs.organize(captured)
    assert hs.find_heads(result, "induction", top=None)["score"].tolist() == found["score"].tolist()
    with pytest.raises(hs.InputError, match="nothing here can show the role 'induction'"):
        hs.find_heads(captured, "induction", model=None)
    with pytest.raises(hs.InputError, match="no head decoder.2.0: it is not the one that was captured"):
        hs.find_heads(
            hs.AttentionTensor(np.full((3, 3, 12), 1 / 3), [hs.HeadId("decoder", n, 0) for n in range(12)]),
            model=network,
        )


def test_a_model_that_was_trained_on_or_is_gone_is_not_asked(network):
    own = copy.deepcopy(network)
    captured = hs.capture(own, [[1, 2, 3, 1, 2, 3]])
    assert captured.model.module is own
    before = hs.find_heads(captured, "duplicate", model=None, top=None)
    with torch.no_grad():
        own.model.embed_tokens.weight.mul_(1.5)
    with pytest.warns(UserWarning, match="has different weights by now"):
        assert hs.find_heads(captured, "duplicate", top=None).equals(before)
    again = hs.capture(own, [[1, 2, 3, 1, 2, 3]])
    del own
    gc.collect()
    with pytest.warns(UserWarning, match="is gone: nothing refers to it"):
        assert again.model is None
    assert hs.from_attentions([np.eye(3)[None]]).model is None


def test_what_cannot_be_found_is_said():
    X = hs.AttentionTensor(np.full((3, 3, 2), 1 / 3))
    with pytest.raises(hs.InputError, match="nothing here can show the role 'induction'"):
        hs.find_heads(X, "induction")
    with pytest.raises(hs.InputError, match="'punctuation': it needs punctuation or separators among the tokens"):
        hs.find_heads(X, "separator")
    with pytest.raises(hs.InputError, match="top must be at least 1"):
        hs.find_heads(X, "self", top=0)
    with pytest.raises(hs.InputError, match="no role is called"):
        hs.find_heads(X, "wisdom")
