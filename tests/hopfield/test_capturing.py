"""Networks of `headscape train` as models to capture: a Transformer-XL attends to its memory too."""

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.errors import InputError
from headscape.hopfield.capturing import Bytes
from headscape.studies.organize import organize
from headscape.studies.train import train
from headscape.studies.work.models import Loader

TOKENS, MEMORY = 8, 10
TEXT = "the cat sat on the mat. a dog ran to the cat. "


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("xl")
    (place / "text.txt").write_text(TEXT * 40)
    sizes = {"layers": 2, "heads": 2, "dim": 8, "tokens": TOKENS, "memory": MEMORY}
    options = {"arms": ["standard"], "seeds": 1, "rates": [1e-2], "steps": 2, "batch": 2, "evaluations": 1}
    train("xl", place / "run", text=place / "text.txt", sizes=sizes, **options)
    return place / "run"


def slow_map(network, ids, head):
    """The first layer by the formula of Transformer-XL, entry by entry: queries are the last tokens, keys all."""
    block = network.blocks[0]
    layer, x = block.attention, block.norm1(network.embedding(ids))
    dk, n = layer.head_dim, len(ids)
    part = slice(head * dk, (head + 1) * dk)
    probs = np.zeros((TOKENS, n))
    for i in range(TOKENS):
        at = n - TOKENS + i
        query = layer.q_proj(x[at])[part]
        scores = []
        for j in range(at + 1):
            angle = (at - j) * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
            r = layer.r_proj(torch.cat([angle.sin(), angle.cos()]))[part]
            key = layer.k_proj(x[j])[part]
            scores.append(((query + layer.u[head, 0]) @ key + (query + layer.v[head, 0]) @ r) / dk**0.5)
        probs[i, : at + 1] = torch.softmax(torch.stack(scores), 0).numpy()
    return probs


def test_maps_have_more_keys_than_queries_and_are_those_of_the_formula(trained, tmp_path):
    model = Loader(device="cpu").load(str(trained))
    with torch.no_grad():  # as training would leave them
        for parameter in model.module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    found = hs.capture(model, [TEXT * 3], tokens=TOKENS + MEMORY, batches=2, dtype="float32")
    X = found.tensor(0)
    assert X.shape == (TOKENS, TOKENS + MEMORY, 4) and X.mask == "causal"
    assert X.query_tokens == X.key_tokens[MEMORY:] and "".join(X.key_tokens) in TEXT * 3
    ids = torch.from_numpy(found.input_ids(0))
    with torch.no_grad():
        for head in (0, 1):
            np.testing.assert_allclose(X.values[:, :, head], slow_map(model.module.network, ids, head), atol=1e-5)
    short = hs.capture(model, [TEXT * 3], tokens=5, batches=1).tensor(0)
    assert short.shape[:2] == (5, 5)  # no memory yet
    with pytest.raises(InputError, match=f"takes at most {TOKENS + MEMORY}"):
        hs.capture(model, [TEXT * 3], tokens=TOKENS + MEMORY + 1, batches=1)


def test_a_run_of_it_is_organized_beside_random_weights(trained, tmp_path):
    model = Loader(device="cpu").load(str(trained))
    run = tmp_path / "run"
    hs.capture(model, [TEXT * 9], tokens=TOKENS + MEMORY, batches=3, out=run)
    result = organize(run, control=True, threads=1, loader=Loader(device="cpu"))
    assert len(result.heads) == 4 and result.control_energy is not None
    assert result.query_trees[0].n_leaves == TOKENS and result.key_trees[0].n_leaves == TOKENS + MEMORY
    other = Loader(device="cpu").load(str(trained), random_init=5)
    assert other.fingerprint != model.fingerprint
    assert not torch.equal(other.module.network.embedding.weight, model.module.network.embedding.weight)


def test_bytes_are_named_by_their_characters():
    assert Bytes().encode("a\u00e9") == [97, 195, 169]
    assert Bytes().decode([97]) == "a" and Bytes().convert_ids_to_tokens([195]) == ["<c3>"]
