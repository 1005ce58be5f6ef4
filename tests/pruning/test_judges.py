import numpy as np
import pytest
from scipy.stats import spearmanr

import headscape as hs
from headscape.attention.inputs import sample_text
from headscape.attention.loss import Loss
from headscape.attention.samples import samples_of
from headscape.pruning.ablation import Ablations
from headscape.pruning.judges import LossJudge, SimilarityJudge, cost, cost_unit, judge_of, sentence_pairs, slopes
from tiny import Letters
from zoo import make


def test_pairs_are_seeded_different_and_half_neighbours():
    text = sample_text("judge")
    pairs = sentence_pairs([text], 40, seed=1)
    assert len(pairs) == 40 and pairs == sentence_pairs([text], 40, seed=1) != sentence_pairs([text], 40, seed=2)
    assert all(a != b for a, b in pairs)
    joined = " ".join(text.split())
    assert sum(f"{a} {b}" in joined for a, b in pairs) >= 10
    with pytest.raises(hs.InputError, match="1 sentences of 6 to 30 words"):
        sentence_pairs(["There is only one sentence in this text. Short."])


def test_similarity_is_one_minus_the_rank_correlation(load):
    model = load("minilm-l6")
    pairs = sentence_pairs([sample_text("judge")], 30)
    judge = SimilarityJudge(model, pairs)
    ablations = Ablations(judge)
    assert ablations.intact.mean == 0
    heads = [site.heads[h] for site in model.sites[:3] for h in range(8)]
    found = ablations.loss(heads)

    def cosines():
        def embed(sentence):
            state = model.module(**model.tokenizer(sentence, return_tensors="pt")).last_hidden_state[0]
            mean = state.mean(0).detach().double().numpy()
            return mean / np.linalg.norm(mean)

        return np.array([embed(a) @ embed(b) for a, b in pairs])

    intact = cosines()
    with hs.ablate(model, heads):
        rho = spearmanr(intact, cosines()).statistic
    assert rho < 0.999
    assert found.mean == pytest.approx(1 - rho, abs=1e-9)
    np.testing.assert_array_equal(cost(ablations.intact, found), found.values)


def test_an_encoder_is_judged_by_sentences_and_has_slopes(load):
    model = load("minilm-l6")
    with pytest.raises(hs.InputError, match="judged by similarities of sentences: give a text"):
        judge_of(model, [])
    samples, _ = samples_of(model, [sample_text("rank")], 32, 2)
    found = list(slopes(model, samples, 0))
    assert len(found) == 2 and all(slope.requires_grad for slope in found)


def test_costs_by_kind():
    before, after = np.array([2.0, 4.0]), np.array([2.3, 4.3])
    np.testing.assert_allclose(cost(Loss(before, "causal-lm"), Loss(after, "causal-lm")), [0.1, 0.1])
    right, now = np.array([True, True, False]), np.array([True, False, True])
    losses = np.zeros(3)
    classifier = Loss(losses, "image-classifier", right)
    assert cost(classifier, Loss(losses, "image-classifier", now)).tolist() == [0, 1, -1]
    assert cost_unit(classifier) == "drop of accuracy" and cost_unit(Loss(before, "causal-lm")) == "rise of the loss"


def test_a_window_is_judged_alike_whatever_stands_beside_it():
    model = hs.wrap_module(make("llama"), tokenizer=Letters())
    samples, _ = samples_of(model, ["the quick brown fox jumps over the lazy dog and then it sleeps"], 12)
    whole, part = LossJudge(model, samples), LossJudge(model, samples[1:3])
    assert len({key for key, _ in whole.pieces}) == len(samples) == 5
    assert [key for key, _ in part.pieces] == [key for key, _ in whole.pieces[1:3]]
    heads = [hs.HeadId("decoder", 1, 2)]
    one, other = Ablations(whole), Ablations(part)
    np.testing.assert_array_equal(one.loss(heads).values[1:3], other.loss(heads).values)
    first = whole.pieces[0][0]
    found = one.losses(heads, known={first})
    assert list(found) == [key for key, _ in whole.pieces[1:]]


def test_masks_belong_to_the_window():
    class Masked(Letters):
        mask_token_id = 5

        def get_special_tokens_mask(self, ids, already):
            return [0] * len(ids)

    model = hs.wrap_module(make("bert"), tokenizer=Masked())
    samples, _ = samples_of(model, ["the quick brown fox jumps over the lazy dog and then it sleeps"], 12)
    masks = [task.wanted[0] != -100 for task in LossJudge(model, samples).tasks]
    again = [task.wanted[0] != -100 for task in LossJudge(model, samples[::-1]).tasks][::-1]
    assert all((a == b).all() for a, b in zip(masks, again, strict=True))
    assert any((a != masks[0]).any() for a in masks[1:])
    assert any(
        (a != b.wanted[0].ne(-100)).any() for a, b in zip(masks, LossJudge(model, samples, 1).tasks, strict=True)
    )
