"""What a capture will cost: its time as fitted, its storage as written, its memory as counted by hand."""

import pytest

import headscape as hs
from headscape.attention.estimate import Stored, estimate, fit_pace, measure_pace
from zoo import make


def test_the_pace_is_fitted_and_never_negative():
    lengths = [128, 256, 512, 1024]
    truth = (0.1, 2e-3, 3e-6)
    seconds = [truth[0] + truth[1] * n + truth[2] * n * n for n in lengths]
    assert fit_pace(lengths, seconds) == pytest.approx(truth, rel=1e-6)
    assert min(fit_pace(lengths, [4.0, 3.0, 2.0, 1.0])) >= 0


def test_lengths_of_the_calibrating_passes(load):
    seen = []
    pace = measure_pace(load("minilm-l6"), 100, lambda arguments, n: seen.append((arguments["input_ids"].shape[1], n)))
    assert pace.tokens == (16, 25, 50, 100) and [n for n, _ in seen] == [16, 16, 25, 25, 50, 50, 100, 100]
    assert all(a == b for a, b in seen)


def test_storage_is_estimated_as_it_is_written(tmp_path, load):
    model = load("vit-fmnist")
    cap = hs.capture(model, hs.sample_images(), batches=1, pool=10, windows="rows:4", out=tmp_path / "run")
    said = estimate(model, 50, Stored(("probs",), "float16", 36, 10, 4), 1, True).batch_bytes
    arrays = cap.batch(0)
    written = sum(arrays.read(name).nbytes for name in arrays.names if "probs" in name)
    assert said == written == 36 * (10 * 10 + 4 * 50) * 2
    whole, pooled = (estimate(model, 4096, Stored(("probs",), "float16", 36, n), 1, True) for n in (None, 64))
    assert pooled.memory_bytes < whole.memory_bytes


@pytest.mark.parametrize(("on_disk", "stored"), [(True, 4), (False, 3 * 8)])
def test_memory_is_that_of_one_layer_and_of_what_is_kept(on_disk, stored):
    """A Llama of two layers, 4 heads each, width 32: ten copies of a layer's scores, three masks, 36 token streams."""
    n = 100
    found = estimate(hs.wrap_module(make("llama")), n, Stored(("probs",), "float16", 8), 3, on_disk)
    scores, masks, streams = (10 * 4 * n * n * 4, 3 * n * n * 4, 36 * n * 32 * 4)
    assert found.memory_bytes == scores + masks + streams + stored * n * n * 2
    assert found.batch_bytes == 8 * n * n * 2
