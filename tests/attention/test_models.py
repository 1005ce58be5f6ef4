"""The bundled models with their trained weights, and loading by folder, GGUF file and hub id."""

import json

import numpy as np
import pytest
import torch
import transformers

import headscape as hs
from headscape.attention import bundled
from headscape.fingerprints import full_hash
from zoo import eager_reference, make

PROSE = """Most of the water that falls as rain on a mountain does not run straight to the sea. Some of it is caught by
the leaves of trees and dries again before it ever reaches the ground. Some of it sinks into the soil, where roots take
it up, and the rest moves slowly downhill between the grains of sand and stone until it comes out as a spring. A spring
may run for weeks after the last rain, because the ground gives back the water it has stored. When people cut down the
forest on a slope, the rain reaches the ground faster and runs off over the surface. It carries the soil with it, and
the stream below becomes brown and rises quickly after every storm. In summer, when there is no rain, the same stream
may be dry, because nothing was stored. This is why many cities protect the forests around the rivers from which they
take their drinking water. It is cheaper to keep the trees than to build a plant that cleans the water. In some places,
farmers higher up in the valley are paid each year to leave a strip of land along the river unplanted. The grass and the
bushes on that strip hold back the earth and the fertilizer that the rain would otherwise wash into the river. The idea
is simple, and it works well as long as everybody along the river takes part in it. If one large farm does not, most of
the effect is lost, and the money that the others receive has been spent for very little.
"""
PROSE = " ".join(PROSE.split())  # ordinary modern prose, one paragraph on one line


def folder_of(tmp_path, name="llama"):
    network = make(name)
    network.save_pretrained(tmp_path / name)
    return network, tmp_path / name


@pytest.mark.parametrize(
    ("name", "layers", "heads", "kv_heads", "causal"),
    [
        ("smollm2-135m", 30, 9, 3, True),
        ("minilm-l6", 6, 12, 12, False),
        ("gemma3-270m", 18, 4, 1, True),
        ("mpnet-base", 12, 12, 12, False),
        ("vit-fmnist", 6, 6, 6, False),
    ],
)
def test_bundled_models_are_what_they_say_and_captured_exactly(load, name, layers, heads, kv_heads, causal):
    model = load(name)
    assert (model.n_layers, model.n_heads, model.n_kv_heads, model.causal) == (layers, heads, kv_heads, causal)
    assert len(model.fingerprint) == 64 and model.licence in ("apache-2.0", "gemma")
    inputs = hs.sample_images()[0] if model.images else [PROSE]
    cap = hs.capture(model, inputs, tokens=48, batches=1, dtype="float32")
    X = cap.tensor(0)
    assert X.shape[2] == layers * heads
    np.testing.assert_allclose(X.values.sum(axis=1), 1, atol=1e-5)
    assert not X.values[~X.present].any()
    stored = (
        {"pixel_values": torch.from_numpy(cap.pixels(0))[None]}
        if model.images
        else {"input_ids": torch.from_numpy(cap.input_ids(0))[None]}
    )
    own, _ = eager_reference(model.module, stored)
    np.testing.assert_allclose(X.values, torch.cat(own[""], dim=1)[0].permute(1, 2, 0).numpy(), atol=1e-6)


def test_smollm2_reads_english_and_random_weights_do_not(load):
    trained = hs.loss(load("smollm2-135m"), [PROSE], tokens=256)
    assert trained.mean < 3.2  # near 3 nats; 10.8 without training
    random = hs.load_model("smollm2-135m", device="cpu", random_init=0)
    assert hs.loss(random, [PROSE], tokens=128, batches=1).mean == pytest.approx(np.log(49152), abs=0.4)
    assert random.fingerprint != load("smollm2-135m").fingerprint


def test_gemma_needs_its_first_token(load):
    model = load("gemma3-270m")
    assert model.prefix == (2,)
    cap = hs.capture(model, [PROSE], tokens=16, batches=2)
    assert all(cap.input_ids(i)[0] == 2 for i in range(2))
    with_bos = hs.loss(model, [PROSE], tokens=128, batches=1).mean
    model.prefix = ()
    try:
        without = hs.loss(model, [PROSE], tokens=128, batches=1).mean
    finally:
        model.prefix = (2,)
    assert with_bos + 1 < without


def embed(model, sentences):
    """Mean-pooled sentence vectors of unit length, as the sentence encoders were trained."""
    batch = model.tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model.module(**batch).last_hidden_state
    weights = batch["attention_mask"][:, :, None]
    return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=1)


@pytest.mark.parametrize("name", ["minilm-l6", "mpnet-base"])
def test_sentence_encoders_put_related_sentences_closer(load, name):
    sentences = [
        "A man is playing the guitar on stage.",
        "Someone performs music in front of an audience.",
        "The bank raised its interest rates again.",
        "Borrowing money will become more expensive.",
    ]
    vectors = embed(load(name), sentences)
    cosine = vectors @ vectors.T
    assert min(cosine[0, 1], cosine[2, 3]) > max(cosine[0, 2], cosine[0, 3], cosine[1, 2], cosine[1, 3]) + 0.1


def test_mpnet_says_that_its_language_head_has_no_weights(load):
    model = load("mpnet-base")
    assert model.task == "encoder" and "loaded the backbone alone" in model.notes[0]


def test_random_weights_are_of_the_network_that_is_loaded(tmp_path):
    """A folder that names a language head and has no weights for it is its backbone, trained and random."""
    network, whole = folder_of(tmp_path, "bert")
    network.bert.save_pretrained(tmp_path / "bare")
    config = tmp_path / "bare" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["BertForMaskedLM"]}))
    for folder, kind in ((whole, "BertForMaskedLM"), (tmp_path / "bare", "BertModel")):
        pair = [hs.load_model(folder, device="cpu", random_init=draw) for draw in (None, 0)]
        assert [type(one.module).__name__ for one in pair] == [kind] * 2
        assert [site.name for site in pair[0].sites] == [site.name for site in pair[1].sites]


def test_vit_is_as_accurate_as_its_log_says(load):
    log = json.loads((bundled.weights_folder(bundled.BUNDLED["vit-fmnist"]) / "train_log.json").read_text())
    assert log["test_accuracy"] >= 0.85
    result = hs.loss(load("vit-fmnist"), hs.sample_images())
    # 256 of the 10,000 test images: four standard errors
    error = 4 * np.sqrt(log["test_accuracy"] * (1 - log["test_accuracy"]) / 256)
    assert result.accuracy == pytest.approx(log["test_accuracy"], abs=error)


def test_a_local_folder_gives_the_saved_network(tmp_path):
    network, folder = folder_of(tmp_path)
    model = hs.load_model(folder, device="cpu")
    ids = torch.arange(10, 20)[None]
    with torch.no_grad():
        assert torch.equal(model.module(ids).logits, network(ids).logits)
    assert model.fingerprint == full_hash(folder / "model.safetensors")
    assert model.family == "llama" and model.task == "causal-lm" and model.tokenizer is None
    with pytest.raises(hs.InputError, match="has no tokenizer"):
        hs.capture(model, ["text"])


def test_weights_can_be_loaded_in_half_precision_and_still_agree(tmp_path):
    from headscape.attention.capture import check_parity

    _, folder = folder_of(tmp_path)
    model = hs.load_model(folder, device="cpu", dtype="bfloat16")
    assert next(model.module.parameters()).dtype == torch.bfloat16
    assert check_parity(model).ok


def test_a_hub_id_is_looked_up_in_the_local_cache_only(tmp_path, monkeypatch):
    network, folder = folder_of(tmp_path)
    snapshot = tmp_path / "hub" / "models--someone--tiny" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    folder.rename(snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    model = hs.load_model("someone/tiny", device="cpu")
    assert model.n_parameters == sum(p.numel() for p in network.parameters())
    with pytest.raises(hs.InputError, match="not in the local hub cache; allow the download with --online"):
        hs.load_model("someone/other", device="cpu")


def test_a_gguf_file_by_its_path(load):
    folder = bundled.weights_folder(bundled.BUNDLED["smollm2-135m"])
    load("smollm2-135m")
    file = next(folder.glob("*.gguf"))
    model = hs.load_model(file, device="cpu")
    assert model.fingerprint == load("smollm2-135m").fingerprint and model.location == str(file)
    own, ours = load("smollm2-135m").module.state_dict(), model.module.state_dict()
    assert all(torch.equal(own[k], ours[k]) for k in own)


def test_folders_that_cannot_be_loaded(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(hs.InputError, match="holds no weights"):
        hs.load_model(tmp_path / "empty")
    network, folder = folder_of(tmp_path)
    torch.save(network.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(hs.InputError, match="pickled checkpoint.*can run code"):
        hs.load_model(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(hs.InputError, match="holds no weights"):
        hs.load_model(folder)
    with pytest.raises(hs.InputError, match="no file"):
        hs.load_model(tmp_path / "missing.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF is not this")
    with pytest.raises(hs.InputError, match=r"broken\.gguf cannot be read"):
        hs.load_model(tmp_path / "broken.gguf")


def test_weights_with_holes_are_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    _, folder = folder_of(tmp_path)
    state = load_file(folder / "model.safetensors")
    state.pop("model.layers.1.self_attn.q_proj.weight")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(hs.InputError, match="weights lack"):
        hs.load_model(folder, device="cpu")


def test_wrong_devices_and_dtypes(tmp_path):
    _, folder = folder_of(tmp_path)
    with pytest.raises(hs.InputError, match="device is auto, cpu, cuda"):
        hs.load_model(folder, device="tpu")
    with pytest.raises(hs.InputError, match="dtype is one of"):
        hs.load_model(folder, dtype="int4")
    if not torch.cuda.is_available():
        with pytest.raises(hs.InputError, match="no cuda device"):
            hs.load_model(folder, device="cuda")


def test_transformers_is_recent_enough():
    assert int(transformers.__version__.split(".")[0]) >= 5
