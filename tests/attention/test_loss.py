import numpy as np
import pytest
import torch

import headscape as hs
from tiny import Letters
from zoo import make

TEXT = ["the quick brown fox jumps over the lazy dog"]


def test_causal_loss_is_the_models_own():
    network = make("llama")
    model = hs.wrap_module(network, tokenizer=Letters())
    ours = hs.loss(model, TEXT, tokens=12)
    ids = torch.tensor(Letters().encode(TEXT[0]))[:36].view(3, 12)
    with torch.no_grad():
        own = [network(input_ids=row[None], labels=row[None]).loss.item() for row in ids]
    np.testing.assert_allclose(ours.values, own, rtol=1e-5)
    assert ours.mean == pytest.approx(np.mean(own), rel=1e-5) and ours.accuracy is None


def test_seq2seq_loss_is_the_models_own():
    network = make("t5")
    ours = hs.loss(hs.wrap_module(network, tokenizer=Letters()), TEXT, tokens=12)
    ids = torch.tensor(Letters().encode(TEXT[0]))[:36].view(3, 12)
    with torch.no_grad():
        own = [network(input_ids=row[None], labels=row[None]).loss.item() for row in ids]
    np.testing.assert_allclose(ours.values, own, rtol=1e-4)


def test_classifier_loss_and_accuracy_are_the_models_own():
    network = make("vit")
    model = hs.wrap_module(network)
    rng = np.random.default_rng(0)
    images, labels = rng.random((5, 28, 28), dtype=np.float32), np.array([0, 1, 0, 1, 1])
    ours = hs.loss(model, (images, labels))
    with torch.no_grad():
        logits = network(pixel_values=torch.from_numpy((images[:, None] - 0.5) / 0.5)).logits
    expected = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels), reduction="none")
    np.testing.assert_allclose(ours.values, expected.numpy(), rtol=1e-4)
    assert ours.accuracy == pytest.approx((logits.argmax(1).numpy() == labels).mean())
    with pytest.raises(hs.InputError, match="needs labels"):
        hs.loss(model, images)


class Masking(Letters):
    mask_token_id = 5

    def get_special_tokens_mask(self, ids, already_has_special_tokens):
        return [0] * len(ids)


def test_masked_loss_is_seeded_and_only_of_hidden_tokens():
    network = make("bert")
    model = hs.wrap_module(network, tokenizer=Masking())
    one, same, other = (hs.loss(model, TEXT, tokens=12, random_state=s).values for s in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    seen = {}

    def watch(module, args, kwargs):
        seen.setdefault("ids", []).append(kwargs["input_ids"].clone())

    handle = network.register_forward_pre_hook(watch, with_kwargs=True)
    hs.loss(model, TEXT, tokens=12)
    handle.remove()
    ids = torch.tensor(Letters().encode(TEXT[0]))[:36].view(3, 12)
    shown = torch.cat(seen["ids"])
    hidden = shown == 5
    assert hidden.any(dim=1).all() and torch.equal(shown[~hidden], ids[~hidden])
    labels = ids.masked_fill(~hidden, -100)
    with torch.no_grad():
        own = [network(input_ids=shown[i : i + 1], labels=labels[i : i + 1]).loss.item() for i in range(3)]
    np.testing.assert_allclose(one, own, rtol=1e-5)


def test_an_encoder_has_no_loss():
    with pytest.raises(hs.InputError, match="no language-model"):
        hs.loss(hs.wrap_module(make("deberta"), tokenizer=Letters()), TEXT)
