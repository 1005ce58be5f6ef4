"""What networks are trained on."""

import numpy as np
import pytest
import torch

from headscape.errors import InputError
from headscape.hopfield.networks import NetworkConfig
from headscape.records import load_record, save_record
from headscape.studies.train.data import ImageData, TextData, check_source, image_data, text_data

CONFIG = NetworkConfig("gpt", 1, 2, 8, tokens=16)


def test_parts_of_a_text_are_consecutive_and_share_nothing(text):
    data = text_data(text, tokens=16)
    raw = text.read_bytes()
    joined = np.concatenate([data.parts[part] for part in ("train", "valid", "test")])
    assert bytes(joined.astype(np.uint8)) == raw
    assert len(data.parts["train"]) == round(0.8 * len(raw)) and data.outputs == 256 and data.bytes_a_token == 1.0


def test_windows_and_batches_predict_the_next_token(text):
    data = text_data(text, tokens=16)
    x, y = data.batch(torch.Generator().manual_seed(0), 8, CONFIG)
    assert torch.equal(x[:, 1:], y[:, :-1])
    seen = [(x, y) for x, y in data.examples("test", 1000, CONFIG, size=2)]
    rows = torch.cat([x for x, _ in seen], dim=1)
    stream = torch.from_numpy(data.parts["test"].astype(np.int64))
    assert torch.equal(rows[0], stream[: rows.shape[1]])  # consecutive windows of each stream, none twice
    assert torch.equal(rows[1], stream[rows.shape[1] : 2 * rows.shape[1]])
    x0, y0 = data.segment(0, 4, CONFIG)
    x1, _ = data.segment(1, 4, CONFIG)
    assert torch.equal(y0[:, -1], x1[:, 0])  # a memory sees the text in order


def test_streams_need_a_window_each(text):
    data = text_data(text, tokens=16)
    with pytest.raises(InputError, match="the test part has .* too few for 100 streams of 16"):
        data.examples("test", 1, CONFIG, size=100)


def test_a_tokenizer_counts_bytes_a_token(text):
    class Words:
        def __len__(self):
            return 7

        def encode(self, text, add_special_tokens=True):
            return [len(word) % 7 for word in text.split()]

    data = text_data(text, Words(), tokens=16, tokenizer_name="words")
    whole = text.read_text()
    assert data.outputs == 7 and data.bytes_a_token == pytest.approx(len(whole) / len(whole.split()))


def test_images_are_split_and_scaled(pictures):
    data = image_data(pictures, NetworkConfig("vit", 1, 2, 8, patch=7))
    assert [len(data.labels[part]) for part in ("train", "valid", "test")] == [324, 36, 40]
    whole = torch.cat([x for x, _ in data.examples("train", 1000, NetworkConfig("vit", 1, 2, 8, patch=7))])
    assert whole.shape == (324, 1, 28, 28)
    assert whole.mean().abs() < 1e-4 and whole.std() == pytest.approx(1, abs=1e-3)
    x, y = data.batch(torch.Generator().manual_seed(0), 16, NetworkConfig("vit", 1, 2, 8, patch=8, image=32))
    assert x.shape == (16, 1, 32, 32) and y.shape == (16,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: image_data(p / "none", NetworkConfig("vit", 1, 2, 8)), "no images at"),
        (lambda p: image_data(p, NetworkConfig("vit", 1, 2, 8)), "holds no train-images"),
        (lambda p: text_data(p / "short.txt", tokens=64), "fewer than two windows of 64"),
        (lambda p: image_data(p / "short.txt", NetworkConfig("vit", 1, 2, 8)), "is not an .npz file"),
        (lambda p: image_data(p / "bare.npz", NetworkConfig("vit", 1, 2, 8)), "has no array 'images', only x"),
        (lambda p: image_data(p / "rgb.npz", NetworkConfig("vit", 1, 2, 8)), "3 channels, this network takes 1"),
    ],
)
def test_data_that_does_not_fit(tmp_path, call, message):
    (tmp_path / "short.txt").write_text("too short a text")
    np.savez(tmp_path / "bare.npz", x=np.zeros(3))
    np.savez(tmp_path / "rgb.npz", images=np.zeros((50, 8, 8, 3), np.uint8), labels=np.zeros(50, int))
    with pytest.raises(InputError, match=message):
        call(tmp_path)


def test_a_vit_without_images_is_refused_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("headscape.studies.train.data.FASHION", tmp_path / "none")
    with pytest.raises(
        InputError, match="a ViT needs labelled images: install Debian's dataset-fashion-mnist, or give --images"
    ):
        check_source(NetworkConfig("vit", 1, 2, 8), None, None)
    check_source(CONFIG, None, None)
    check_source(NetworkConfig("vit", 1, 2, 8), None, tmp_path)


@pytest.mark.parametrize("kind", ["text", "images"])
def test_data_come_back_from_their_record(text, pictures, tmp_path, kind):
    config = CONFIG if kind == "text" else NetworkConfig("vit", 1, 2, 8, patch=7)
    data = text_data(text, tokens=16) if kind == "text" else image_data(pictures, config)
    save_record(data, tmp_path)
    again = load_record(TextData if kind == "text" else ImageData, tmp_path)
    assert again.about == data.about and again.outputs == data.outputs
    for a, b in zip(
        data.batch(torch.Generator().manual_seed(1), 4, config),
        again.batch(torch.Generator().manual_seed(1), 4, config),
        strict=True,
    ):
        assert torch.equal(a, b)
