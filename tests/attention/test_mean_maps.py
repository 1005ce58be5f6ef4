"""Maps averaged over heads are those of the heads, averaged."""

import numpy as np
import pytest

from headscape.attention.capture import capture
from headscape.attention.mean_maps import mean_maps
from headscape.attention.weights import parts_of, read
from headscape.statistics.maps import row_entropy
from writers import tiny


def test_maps_are_means_over_heads_and_weighted_by_what_they_add():
    model = tiny()
    text = ["Word: Ant. Clue: It is small, and works with many."]
    ids = model.tokenizer(text[0])["input_ids"]
    maps = mean_maps(model, ids, row_entropy)
    cap = capture(model, text, tokens=len(ids), batches=1, keep=("probs", "head_outputs"), dtype="float32")
    np.testing.assert_array_equal(cap.input_ids(0), ids)
    for layer in range(3):
        probs = cap.batch(0).read(f"probs/decoder.{layer}").astype(np.float64)
        outputs = cap.batch(0).read(f"head_outputs/decoder.{layer}")
        np.testing.assert_allclose(maps.mean[layer], probs.mean(axis=0), atol=1e-6)
        part = next(p for p in parts_of(model)[0] if (p.kind, p.layer) == ("o", layer))
        W = read(model, part)
        sizes = np.stack([np.linalg.norm(outputs[h] @ W[:, 8 * h : 8 * h + 8].T, axis=1) for h in range(4)])
        expected = (sizes[:, :, None] * probs).sum(axis=0) / sizes.sum(axis=0)[:, None]
        np.testing.assert_allclose(maps.weighted[layer], expected, atol=1e-5)
        assert maps.measured[layer] == pytest.approx(np.mean([row_entropy(p) for p in probs]), abs=1e-5)
    np.testing.assert_allclose(maps.weighted.sum(axis=2), 1, atol=1e-5)
    assert maps.by_output
