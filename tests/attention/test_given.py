"""Whatever a researcher holds goes in: sentences, prompts, ids, dictionaries of a processor, wrapped models.

Also tests attention.samples.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers as T

import headscape as hs
from headscape.attention.capture import recapture
from tiny import Letters
from zoo import IDS, SMALL, make


@pytest.fixture(scope="module")
def network():
    return make("llama")


@pytest.fixture(scope="module")
def model(network):
    return hs.wrap_module(network, tokenizer=Letters())


def test_a_sentence_is_one_batch_at_its_own_length(model):
    cap = hs.capture(model, "a cat and/or a dog")
    assert [X.shape[:2] for X in cap] == [(18, 18)]
    assert len(cap.tensor(0).query_tokens) == 18


def test_prompts_of_unequal_lengths_are_kept_whole_and_in_order(model):
    prompts = ["abcdef", "abc", "abcdefgh"]
    cap = hs.capture(model, prompts, dtype="float32")
    assert [X.shape[0] for X in cap] == [6, 3, 8]
    alone = hs.capture(model, prompts[1], dtype="float32").tensor(0)
    np.testing.assert_array_equal(cap.tensor(1).values, alone.values)


def test_longer_texts_in_a_list_are_cut_into_windows_as_before(model):
    cap = hs.capture(model, ["abcdefghijkl", "abc"], tokens=4, batches=3)
    assert [X.shape[0] for X in cap] == [4, 4, 4]


@pytest.mark.parametrize(
    ("inputs", "options", "said"),
    [
        ("./nowhere", {}, "no file or folder './nowhere'"),
        ("nowhere.txt", {}, "no file or folder 'nowhere.txt'"),
        ("a/b", {}, "no file or folder 'a/b'"),
        ("  ", {}, "the text is empty"),
        (["a", " "], {}, "prompt 2 is empty"),
        ("abcdef", {"tokens": 4}, "prompt 1 has 6 tokens, more than 4"),
        (["a", "b", "c"], {"batches": 2}, "3 prompts given, 2 batches were requested; raise batches to 3"),
        ([3, 200], {}, "token ids from 3 to 200; LlamaForCausalLM knows 0 to 99"),
        ([[1, 2], []], {}, "no token ids given"),
        ({}, {}, "the dictionary is empty"),
        ({"input_ids": 7}, {}, "input_ids is a single number"),
        ({"input_ids": [[1, 2], [3]]}, {}, "input_ids cannot be a tensor"),
        ({"input_ids": [[1, 2], [3, 4]], "more": [1, 2, 3]}, {}, "give a list with one dictionary per input"),
        ({"input_ids": [1, 2], "attention_mask": [0, 0]}, {}, "hides every token"),
    ],
)
def test_what_cannot_go_in_is_one_line(model, inputs, options, said):
    with pytest.raises(hs.InputError, match=said):
        hs.capture(model, inputs, **options)


ROWS = [[5, 6, 7, 8], [9, 10, 11]]


def test_ids_need_no_tokenizer_whatever_they_come_in(network):
    expected = [hs.capture(network, torch.tensor(row)).tensor(0) for row in ROWS]
    assert expected[0].query_tokens == ["5", "6", "7", "8"]
    padded = {"input_ids": [[5, 6, 7, 8], [9, 10, 11, 0]], "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]]}
    tensors = {name: torch.tensor(value) for name, value in padded.items()}
    forms = [
        ROWS,
        [np.array(row) for row in ROWS],
        [torch.tensor(row) for row in ROWS],
        [{"input_ids": row} for row in ROWS],
        padded,
        tensors,
        T.BatchEncoding(tensors),
        {name: value.flip(1) if name == "attention_mask" else value.roll(1, 1) for name, value in tensors.items()},
    ]
    for form in forms[:-1]:
        found = list(hs.capture(network, form))
        assert [X.shape for X in found] == [X.shape for X in expected]
        for X, Y in zip(found, expected, strict=True):
            np.testing.assert_array_equal(X.values, Y.values)
    assert hs.capture(network, np.array(ROWS[0])).tensor(0).shape == expected[0].shape
    assert [X.shape[0] for X in hs.capture(network, forms[-1])] == [4, 3]  # padding on the left goes too


def test_a_tokenizer_given_to_capture_names_the_tokens_of_ids(network):
    assert hs.capture(network, [1, 2], tokenizer=Letters()).tensor(0).key_tokens == ["b", "c"]
    with pytest.raises(hs.InputError, match=r"capture\(\.\.\., tokenizer=\.\.\.\), or give token ids"):
        hs.capture(network, "a sentence")


def whisper():
    torch.manual_seed(0)
    sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in SIZES.items()}
    config = T.WhisperConfig(
        d_model=32, vocab_size=100, num_mel_bins=8, max_source_positions=20, max_target_positions=16, **sizes,
        decoder_start_token_id=1, **IDS,
    )  # fmt: skip
    return T.WhisperForConditionalGeneration(config).eval()


SIZES = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}


def test_whisper_takes_what_its_processor_made():
    network = whisper()
    features = torch.randn(1, 8, 40, generator=torch.Generator().manual_seed(0))
    cap = hs.capture(network, {"input_features": features, "labels": torch.tensor([[5, 6, 7]])}, dtype="float32")
    assert {block: cap.tensor(0, block).shape for block in cap.blocks} == {
        "encoder": (20, 20, 8),
        "decoder": (3, 3, 8),
        "decoder.cross": (3, 20, 8),
    }
    assert cap.tensor(0, "decoder").query_tokens == ["1", "5", "6"]
    network.set_attn_implementation("eager")
    with torch.no_grad():
        own = network(features, decoder_input_ids=torch.tensor([[1, 5, 6]]), output_attentions=True)
    for block, maps in (("encoder", own.encoder_attentions), ("decoder.cross", own.cross_attentions)):
        expected = torch.cat(list(maps), dim=1)[0].permute(1, 2, 0).numpy()
        np.testing.assert_allclose(cap.tensor(0, block).values, expected, atol=1e-6)
    again = recapture(hs.wrap_module(network), cap, dtype="float32")  # what was shown can be shown again
    np.testing.assert_array_equal(again.tensor(0, "encoder").values, cap.tensor(0, "encoder").values)
    assert hs.capture(network, {"input_features": features}).tensor(0, "decoder.cross").shape == (1, 20, 8)


def test_a_vision_language_model_takes_what_its_processor_made():
    torch.manual_seed(0)
    sizes = {k: SMALL[k] for k in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")}
    vision = T.CLIPVisionConfig(**sizes, image_size=8, patch_size=4)
    text = T.LlamaConfig(**SMALL)
    config = T.LlavaConfig(vision_config=vision, text_config=text, image_token_index=99, vision_feature_layer=-1)
    network = T.LlavaForConditionalGeneration(config).eval()
    ids = torch.tensor([[1, 99, 99, 99, 99, 7, 8]])
    cap = hs.capture(network, {"input_ids": ids, "pixel_values": torch.randn(1, 3, 8, 8)})
    assert {block: cap.tensor(0, block).shape for block in cap.blocks} == {"vision": (5, 5, 8), "text": (7, 7, 8)}
    assert cap.tensor(0, "text").query_tokens[0] == "1"


class Wrapped:
    """What nnsight's LanguageModel looks like from outside: no module, the network inside."""

    def __init__(self, network, place):
        self.tokenizer = Letters()
        setattr(self, place, network)


class Hooked(torch.nn.Module):
    """What a HookedTransformer looks like from outside: cfg, blocks.N.attn, its own softmax, tokens in, logits out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cfg, self.tokenizer = SimpleNamespace(n_heads=2, d_vocab=100, n_ctx=40), Letters()
        self.embed = torch.nn.Embedding(100, 8)
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleDict({"attn": OwnAttention()}) for _ in range(2))
        for block in self.blocks:
            block.attn = block["attn"]

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block.attn(x)
        return x


class OwnAttention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qk = torch.nn.Linear(8, 16)

    def forward(self, x):
        q, k = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qk(x).chunk(2, -1))
        scores = (q @ k.transpose(-1, -2)).masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -1e9)
        self.pattern = torch.softmax(scores, -1)
        return (self.pattern @ x.unflatten(-1, (2, 4)).transpose(1, 2)).transpose(1, 2).flatten(2)


def test_a_wrapped_model_is_captured_by_the_module_inside(network, model):
    expected = hs.capture(model, "abcdef").tensor(0).values
    for place in ("_module", "_model"):  # nnsight 0.8, and before
        np.testing.assert_array_equal(hs.capture(Wrapped(network, place), "abcdef").tensor(0).values, expected)
    with pytest.raises(hs.InputError, match="a model is a torch module or wraps one, not a dict"):
        hs.capture({}, "abcdef")


def test_a_hooked_transformer_reads_text_and_ids():
    hooked = Hooked()
    cap = hs.capture(hooked, "abcdef", dtype="float32")
    X = cap.tensor(0)
    assert (X.shape, X.mask, X.query_tokens) == (
        (6, 6, 4),
        "causal",
        [Letters().decode([i]) for i in Letters().encode("abcdef")],
    )
    expected = torch.cat([block.attn.pattern for block in hooked.blocks], 1)[0].permute(1, 2, 0).detach().numpy()
    np.testing.assert_allclose(X.values, expected, atol=1e-6)
    ids = torch.tensor([Letters().encode("abcdef")])
    for given in (ids, ids.tolist(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}):
        again = hs.capture(hooked, given, dtype="float32").tensor(0)
        np.testing.assert_array_equal(again.values, X.values)
        assert again.query_tokens == X.query_tokens
    found = hs.find_heads(cap, "induction")  # no letter comes again: the network is shown random tokens twice
    assert len(found) == 4 and found["chance"].iloc[0] == pytest.approx((1 / np.arange(21, 41)).mean())
    with pytest.raises(hs.InputError, match="Hooked reads token ids alone: give input_ids without labels"):
        hs.capture(hooked, {"input_ids": ids, "labels": ids})
    hooked.tokenizer = None
    with pytest.raises(hs.InputError, match="has no tokenizer; it cannot read text"):
        hs.capture(hooked, "abcdef")
    hooked.original_model = None  # TransformerLens' bridge, which changes the network it wraps
    with pytest.raises(hs.InputError, match=r"a Hooked replaces the attention of its network; give hs.from_attentions"):
        hs.capture(hooked, ids)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_network_in_training_is_captured_without_dropout_and_trains_on(wrapped):
    network = make("gpt2").train()
    network.transformer.h[0].eval()  # a part that someone froze
    modes = [part.training for part in network.modules()]
    given = hs.wrap_module(network) if wrapped else network
    network.train()
    network.transformer.h[0].eval()
    X = hs.capture(given, [5, 6, 7, 5]).tensor(0)
    assert [part.training for part in network.modules()] == modes
    np.testing.assert_array_equal(X.values, hs.capture(network.eval(), [5, 6, 7, 5]).tensor(0).values)
