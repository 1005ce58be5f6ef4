"""Changes to training images."""

import pytest
import torch

from headscape.studies.train.augment import _beta, _box, augmented


def images(n=64):
    torch.manual_seed(0)
    return torch.randn(n, 1, 12, 12), torch.randint(0, 5, (n,))


def changed(kind, seed=1):
    x, labels = images()
    return augmented(x.clone(), labels, kind, 5, torch.Generator().manual_seed(seed))


def test_light_changes_flip_and_shift():
    x, labels = images()
    same, wanted = changed("none")
    assert torch.equal(same, x) and torch.equal(wanted, labels)
    moved, wanted = changed("light")
    assert torch.equal(wanted, labels)
    flipped = 0
    for before, after in zip(x[:, 0], moved[:, 0], strict=True):
        found = [
            flip
            for flip in (False, True)
            for dy in (-1, 0, 1)
            for dx in (-1, 0, 1)
            if torch.equal((before.flip(-1) if flip else before).roll((dy, dx), (0, 1))[1:-1, 1:-1], after[1:-1, 1:-1])
        ]
        assert len(found) == 1
        flipped += found[0]
    assert 20 < flipped < 44


def test_the_papers_changes_mix_images_and_labels():
    labels = images()[1]
    kept = set()
    for seed in range(12):
        x, wanted = changed("paper", seed)
        torch.testing.assert_close(wanted.sum(1), torch.ones(64))
        assert x.shape == (64, 1, 12, 12) and x.isfinite().all()
        share = wanted.gather(1, labels[:, None])[:, 0]
        other = labels != labels.flip(0)
        assert share[other].std() < 1e-6  # one share for the batch
        kept.add(round(float(share[other][0]), 3))
    assert len(kept) > 8 and all(
        torch.equal(a, b) for a, b in zip(changed("paper", 3), changed("paper", 3), strict=True)
    )


def test_draws_and_boxes():
    generator = torch.Generator().manual_seed(0)
    draws = torch.tensor([_beta(0.8, generator) for _ in range(4000)])
    assert draws.mean().item() == pytest.approx(0.5, abs=0.02)
    assert draws.var().item() == pytest.approx(1 / (4 * 2.6), abs=0.01)  # of Beta(0.8, 0.8)
    areas = [_box(torch.Size((50, 50)), 0.25, generator).float().mean().item() for _ in range(50)]
    assert max(areas) == pytest.approx(0.25, abs=0.02)  # those inside; at an edge less
