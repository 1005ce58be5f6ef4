"""The few-shot study: the prompt and its tokens, what is said of a map, the model's part, and the whole."""

import itertools
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr
from typer.testing import CliRunner

import headscape as hs
from headscape.attention.capture import capture
from headscape.attention.weights import parts_of, read
from headscape.cli import prompt as command
from headscape.cli.shared import app
from headscape.report.drawing import draw
from headscape.report.gather import gather
from headscape.report.pictures import picture
from headscape.runs import Run
from headscape.studies.prompt.maps import (
    MEASURES,
    by_words,
    cosine_test,
    cosines,
    distance_map,
    measure_map,
    row_entropy,
    uniform_map,
)
from headscape.studies.prompt.result import PromptResult
from headscape.studies.prompt.study import prompt
from headscape.studies.prompt.text import (
    Entry,
    Layout,
    chat_text,
    choose_shots,
    find_entry,
    lay_out,
    plain_text,
    read_table,
)
from headscape.studies.prompt.versions import check_model, clue_loss, encode, greedy_clue, look, vectors_of

TABLE = read_table()
ANT = find_entry(TABLE, "Ant")
SHOTS = choose_shots(TABLE, ANT, 3)


# --- table and text --------------------------------------------------------------------------------------------------


def test_the_table_of_the_package():
    assert len(TABLE) >= 60 and len({e.category for e in TABLE}) == 3
    assert len({e.word.casefold() for e in TABLE}) == len(TABLE)
    for word, clue, _ in TABLE:
        assert word.casefold() not in clue.casefold().rstrip(".").split() and "#" not in clue and clue.endswith(".")


def test_any_csv_with_the_columns_is_read(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text('\ufeffCategory, Clue ,note,word\nsea,"Salty, and wide.",x,Ocean\n', encoding="utf-8")
    assert read_table(file) == [Entry("Ocean", "Salty, and wide.", "sea")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("word,category\nOcean,sea\n", r"no column 'clue' \(it has word, category\); the first line must name word"),
        ("", "no column 'word'"),
        ("word,clue,category\n", "no line of words below"),
        ("word,clue,category\nOcean,,sea\n", "line 2 .* has no clue"),
        ("word,clue,category\nA,b,c\n,b,c\n", "line 3 .* has no word"),
        (b"word,clue,category\n\xff,b,c\n", "not a CSV file in UTF-8"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path, content, message):
    file = tmp_path / "bad.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(hs.InputError, match=message):
        read_table(file)
    with pytest.raises(hs.InputError, match="no table"):
        read_table(tmp_path / "nothing.csv")


def test_words_and_their_shots():
    assert find_entry(TABLE, " aNT") == ANT
    with pytest.raises(hs.InputError, match="'Antt' is not in the table of .* nearest are Ant"):
        find_entry(TABLE, "Antt")
    n = sum(e.category == ANT.category for e in TABLE) - 1
    every = choose_shots(TABLE, ANT, n)
    assert ANT not in every and len(set(every)) == n and {e.category for e in every} == {"animals"}
    assert SHOTS == choose_shots(TABLE, ANT, 3) != choose_shots(TABLE, ANT, 3, seed=1)
    with pytest.raises(hs.InputError, match=rf"{n + 1} shots asked; the table has {n} words in 'animals' beside 'Ant'"):
        choose_shots(TABLE, ANT, n + 1)
    with pytest.raises(hs.InputError, match="at least 0"):
        choose_shots(TABLE, ANT, -1)


def test_the_prompt_and_its_spans():
    text = plain_text(ANT, SHOTS).with_answer(" Small.")
    assert text.text.endswith("\n\nWord: Ant\nClue: Small.")
    assert [a for a, _, _, _ in text.spans[1:]] == [b for _, b, _, _ in text.spans[:-1]]
    assert (text.spans[0][0], text.spans[-1][1]) == (0, len(text.text))
    said = {(s, n): text.text[a:b].strip() for a, b, s, n in text.spans if s != "separator"}
    for i, shot in enumerate(SHOTS):
        assert said["word", i] == shot.word and said["clue", i] == shot.clue
    assert said["target", 3] == "Ant" and said["answer", 3] == "Small."
    assert ANT.clue not in text.text
    bare = plain_text(ANT, [])
    assert {segment for _, _, segment, _ in bare.spans} == {"context", "separator", "target"}


class Chat:
    """A template like Mistral's."""

    chat_template = "yes"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return "".join(f"[INST] {m['content']} [/INST]" if m["role"] == "user" else m["content"] for m in messages)


def test_the_prompt_as_a_conversation():
    text = chat_text(Chat(), ANT, SHOTS)
    assert text.text.endswith("[INST] Word: Ant [/INST]") and "#[INST]" in text.text
    assert [text.text[a:b] for a, b, s, _ in text.spans if s in ("word", "target")] == [*(e.word for e in SHOTS), "Ant"]
    assert [text.text[a:b] for a, b, s, _ in text.spans if s == "clue"] == [e.clue for e in SHOTS]
    Chat.chat_template = None
    with pytest.raises(hs.InputError, match="no chat template"):
        chat_text(Chat(), ANT, SHOTS)
    Chat.chat_template = "yes"

    class Loud(Chat):
        def apply_chat_template(self, *args, **options):
            return super().apply_chat_template(*args, **options).upper()

    with pytest.raises(hs.InputError, match="changes"):
        chat_text(Loud(), ANT, SHOTS)


@given(seed=st.integers(0, 2**16))
@settings(max_examples=30, deadline=None)
def test_tokens_are_told_where_they_belong(seed):
    """Cut anywhere: tokens lie in the span with most of their letters, words do not cross spans or blanks."""
    text = plain_text(ANT, SHOTS)
    rng = np.random.default_rng(seed)
    cuts = [0, *np.sort(rng.choice(np.arange(1, len(text.text)), 90, replace=False)).tolist(), len(text.text)]
    offsets = [(0, 0), *itertools.pairwise(cuts)]
    layout = lay_out(text, offsets, ["<s>"])
    assert layout.tokens[0] == "<s>" and layout.segments[0] == "start"
    owner = np.full(len(text.text), -1)
    for k, (a, b, _, _) in enumerate(text.spans):
        owner[a:b] = k
    for (a, b), segment, shot in list(zip(offsets, layout.segments, layout.shots, strict=True))[1:]:
        inner = text.text[a:b].strip()
        a += text.text[a:b].find(inner) if inner else 0
        counts = np.bincount(owner[a : a + len(inner or text.text[a:b])], minlength=len(text.spans))
        best = text.spans[int(counts.argmax())]
        assert (segment, shot) == best[2:] or counts[
            [s[2:] == (segment, shot) for s in text.spans]
        ].max() == counts.max()
    assert (np.diff(layout.words) >= 0).all() and (np.diff(layout.words) <= 1).all()
    for w in range(layout.n_words):
        inside = np.flatnonzero(layout.words == w)
        assert len({(layout.segments[i], int(layout.shots[i])) for i in inside}) == 1
        assert all(not layout.tokens[i][:1].isspace() for i in inside[1:])


def test_words_are_put_together_from_tokens():
    text = plain_text(Entry("Hippopotamus", "x.", "animals"), [Entry("Ant", "It is small, you know.", "animals")])
    start = text.text.index(" Ant")
    pieces = [" An", "t", "\n", "Clue", ":", " It", " is", " sma", "ll", ",", " you", " know", ".#"]
    offsets, at = [], start
    for piece in pieces:
        assert text.text[at : at + len(piece)] == piece
        offsets.append((at, at + len(piece)))
        at += len(piece)
    layout = lay_out(text, offsets)
    assert layout.word_strings() == ["Ant", r"\n", "Clue", ":", "It", "is", "small", ",", "you", "know", ".#"]
    kept = [word for word, keep in zip(layout.word_strings(), layout.content_words(), strict=True) if keep]
    assert kept == ["Ant", "It", "is", "small", "you", "know"]


# --- maps ------------------------------------------------------------------------------------------------------------


def a_map(n, seed=0, heads=None):
    scores = 2 * np.random.default_rng(seed).normal(size=(*([heads] if heads else []), n, n))
    weights = np.exp(scores) * np.tri(n)
    return weights / weights.sum(axis=-1, keepdims=True)


def a_layout(n=24, seed=0):
    """Start, context, two shots and a target, with separators between; some words of several tokens."""
    kinds = ["start", "context", "context", "separator", "word", "separator", "clue", "clue", "clue", "separator"]
    kinds += ["word", "separator", "clue", "clue", "clue", "clue", "separator", "target", "separator", "answer"]
    shots = [-1, -1, -1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]
    words = np.repeat(np.arange(14), [1, 1, 1, 1, 2, 1, 3, 1, 1, 1, 2, 2, 1, 2])
    return Layout([f"t{i}" for i in range(20)], kinds, np.array(shots), words)


@given(n=st.integers(2, 30), seed=st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_word_aggregation_keeps_the_total_mass(n, seed):
    A = a_map(n, seed, heads=2).astype(np.float32)
    words = np.cumsum(np.random.default_rng(seed).integers(2, size=n)) if n > 1 else np.zeros(n, int)
    words -= words[0]
    total = by_words(A, words)
    np.testing.assert_allclose(total.sum(axis=(1, 2)), A.sum(axis=(1, 2), dtype=np.float64), atol=1e-6)
    mean = by_words(A, words, "mean")
    np.testing.assert_allclose(mean.sum(axis=2), 1, atol=1e-6)
    for a in range(words[-1] + 1):
        for b in range(words[-1] + 1):
            block = A[1][np.ix_(words == a, words == b)].astype(np.float64)
            assert total[1, a, b] == pytest.approx(block.sum())
            assert mean[1, a, b] == pytest.approx(block.sum(axis=1).mean())


def test_word_aggregation_of_bad_input():
    with pytest.raises(hs.InputError, match="3 tokens have words, the map has shape"):
        by_words(np.eye(4), [0, 1, 1])
    with pytest.raises(hs.InputError, match="sum or mean"):
        by_words(np.eye(2), [0, 1], "max")


def test_measures_of_a_map_one_by_one():
    layout, A = a_layout(), a_map(20)
    found = measure_map(A, layout, 0.25)
    assert tuple(found) == MEASURES
    content = [s in ("word", "clue", "target", "answer") for s in layout.segments]
    within = cross = first = rest = own = dropped = 0.0
    queries = [i for i in range(20) if content[i]]
    for i in queries:
        for j in range(i + 1):
            part = A[i, j] / len(queries)
            dropped += 0 if content[j] else part
            if j == i:
                own += part
            elif j == 0:
                first += part
            elif content[j] and layout.shots[i] == layout.shots[j]:
                within += part
            elif content[j]:
                cross += part
            else:
                rest += part
    assert [found[k] for k in ("within", "cross", "first", "rest")] == pytest.approx([within, cross, first, rest])
    assert own + within + cross + first + rest == pytest.approx(1)
    assert found["dropped"] == pytest.approx(dropped) == pytest.approx(first + rest)
    assert found["self"] == pytest.approx(np.mean([A[i, i] for i in range(1, 20)]))
    entropies = [-(A[i, : i + 1] * np.log(A[i, : i + 1])).sum() / np.log(i + 1) for i in range(1, 20)]
    assert found["entropy"] == pytest.approx(np.mean(entropies)) and found["head_entropy"] == 0.25
    lower = [(A[i, j], 0.1 / (i + 1)) for i in range(20) for j in range(1, i + 1)]
    assert found["sparsity"] == pytest.approx(np.mean([a < t for a, t in lower]))
    assert found["largest"] == max(a for a, _ in lower)


def test_closed_cases():
    layout = a_layout()
    even = measure_map(uniform_map(20), layout)
    assert even["entropy"] == pytest.approx(1) and even["sparsity"] == 0
    assert even["self"] == pytest.approx(np.mean(1 / np.arange(2, 21)))
    diagonal = measure_map(np.eye(20), layout)
    assert diagonal["self"] == 1 and diagonal["entropy"] == 0 and diagonal["within"] == diagonal["dropped"] == 0
    with pytest.raises(hs.InputError, match="one token"):
        row_entropy([[1.0]])


def test_the_map_of_distances():
    """Maps of its form are found again, even attention too; others keep each distance's mass and lose content."""
    n = 12
    offsets = np.arange(n)[:, None] - np.arange(n)
    A = np.where(offsets >= 0, 0.7 ** np.abs(offsets), 0.0)
    A[:, 0] = 0
    A = A / np.maximum(A.sum(axis=1, keepdims=True), 1e-9) * 0.6
    A[:, 0] = 0.4
    A[0] = np.eye(n)[0]
    for known in (A, uniform_map(n)):
        np.testing.assert_allclose(distance_map(known), known, atol=1e-6)
    other = a_map(n, 3)
    smooth = distance_map(other)
    np.testing.assert_allclose(smooth.sum(axis=1), 1)
    np.testing.assert_array_equal(smooth[:, 0], other[:, 0])
    for d in range(n - 1):
        assert np.diagonal(smooth, -d)[1:].sum() == pytest.approx(np.diagonal(other, -d)[1:].sum(), rel=1e-3)
    np.testing.assert_allclose(smooth[11, 3:12] / smooth[11, 11], smooth[9, 1:10] / smooth[9, 9])  # one profile
    np.testing.assert_allclose(distance_map(np.eye(5)), np.eye(5), atol=1e-12)


def test_rank_correlations_against_scipy():
    n = 14
    A, V = np.stack([a_map(n, 1), a_map(n, 2)]), np.random.default_rng(0).normal(size=(n, 5))
    C = cosines(V)
    np.testing.assert_allclose(C[3, 5], V[3] @ V[5] / np.linalg.norm(V[3]) / np.linalg.norm(V[5]))
    for start in (0, 1):
        found = cosine_test(A, C, 20, skip_first=bool(start))
        pairs = [(i, j) for i in range(start, n) for j in range(start, i)]
        c, d = (np.array([f(i, j) for i, j in pairs]) for f in (lambda i, j: C[i, j], lambda i, j: i - j))
        for k in range(2):
            a = np.array([A[k, i, j] for i, j in pairs])
            assert found.rho[k] == pytest.approx(spearmanr(a, c)[0])
            residuals = []
            for x in (a, c):
                line = np.polyfit(rankdata(d), rankdata(x), 1)
                residuals.append(rankdata(x) - np.polyval(line, rankdata(d)))
            assert found.partial[k] == pytest.approx(np.corrcoef(*residuals)[0, 1])
    with pytest.raises(hs.InputError, match="4 tokens"):
        cosine_test(A[0, :3, :3], C[:3, :3])


def test_permutations_tell_a_planted_relation_from_none():
    n = 24
    C = cosines(np.random.default_rng(0).normal(size=(n, 6)))
    planted = np.exp(4 * C) * np.tri(n)
    planted /= planted.sum(axis=1, keepdims=True)
    found = cosine_test(planted, C, 199)
    assert found.p[0] == 1 / 200 and found.partial[0] > 0.5
    nothing = cosine_test(np.stack([a_map(n, seed) for seed in range(100, 160)]), C, 99)
    assert 0.01 <= (nothing.p <= 0.1).mean() <= 0.25  # 0.1 expected of 60
    near = uniform_map(n) * 0.5 ** np.abs(np.arange(n)[:, None] - np.arange(n))
    recent = np.exp(-0.3 * np.abs(np.arange(n)[:, None] - np.arange(n)))
    only_distance = cosine_test(near, recent, 9)  # both follow distance: nothing is left when it is held fixed
    assert only_distance.rho[0] > 0.5 > abs(only_distance.partial[0])


# --- the model's part ------------------------------------------------------------------------------------------------


def byte_tokenizer():
    """One token a byte, blanks joined to the letter behind them: fast, with offsets."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {letter: i + 3 for i, letter in enumerate(sorted(letters))} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    merges = [("Ġ", letter) for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    vocabulary |= {a + b: len(vocabulary) + i for i, (a, b) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", bos_token="<s>")


def tiny(kind="llama", positions=1024, seed=0):
    import transformers as T

    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    shape |= {"num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": positions}
    shape |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if kind == "qwen3":
        network = T.Qwen3ForCausalLM(T.Qwen3Config(**shape, head_dim=16))
    else:
        network = T.LlamaForCausalLM(T.LlamaConfig(**shape))
    network.eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6.0)
    return hs.wrap_module(network, tokenizer=byte_tokenizer(), name=f"tiny-{kind}")


def test_models_that_cannot_write():
    from zoo import make

    with pytest.raises(hs.InputError, match=r"\(masked-lm\) is not a causal language model and cannot write a clue"):
        check_model(hs.wrap_module(make("bert")))
    with pytest.raises(hs.InputError, match="no fast tokenizer"):
        check_model(hs.wrap_module(make("llama")))
    model = tiny(positions=200)
    with pytest.raises(hs.InputError, match=r"the prompt has \d+ tokens and 24 more .* takes 200; ask for fewer shots"):
        prompt(model, shots=3)
    with pytest.raises(hs.InputError, match="200 more"):
        encode(model, plain_text(ANT, []), 200)


def test_the_prefix_of_a_model_stands_before_the_text():
    model = tiny()
    model.prefix = (1,)
    ids, layout = encode(model, plain_text(ANT, SHOTS))
    assert ids[0] == 1 and layout.tokens[0] == "<s>" and layout.segments[0] == "start"
    assert model.tokenizer.decode(ids[1:]) == plain_text(ANT, SHOTS).text == "".join(layout.tokens[1:])


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_greedy_clue_is_the_argmax_again_and_again(kind):
    model = tiny(kind)
    ids, _ = encode(model, plain_text(ANT, SHOTS[:1]))
    whole = list(ids)
    with torch.no_grad():
        for _ in range(6):
            whole.append(int(model.module(input_ids=torch.tensor([whole])).logits[0, -1].argmax()))
    text = model.tokenizer.decode(whole[len(ids) :])
    assert greedy_clue(model, ids, 6) == text.lstrip("\n").split("#")[0].split("\n")[0]


@pytest.mark.parametrize(("answer", "expected"), [("small.#\nWord", "small."), ("\nso\nit", "so"), ("abc</s>d", "abc")])
def test_a_clue_ends_at_its_sign_a_line_or_the_end(answer, expected, monkeypatch):
    model = tiny()
    wanted = model.tokenizer(answer)["input_ids"]
    step = iter(range(99))

    def forward(**_):
        logits = torch.zeros(1, 1, 320)
        logits[0, 0, wanted[next(step)]] = 1
        return type("Result", (), {"logits": logits, "past_key_values": None})

    monkeypatch.setattr(model.module, "forward", forward)
    assert greedy_clue(model, [3, 4], len(wanted)) == expected


def test_maps_are_means_over_heads_and_weighted_by_what_they_add():
    model = tiny()
    ids, _ = encode(model, plain_text(ANT, []))
    maps = look(model, ids)
    text = [plain_text(ANT, []).text]
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
        assert maps.entropies[layer] == pytest.approx(np.mean([row_entropy(p) for p in probs]), abs=1e-5)
    np.testing.assert_allclose(maps.weighted.sum(axis=2), 1, atol=1e-5)
    assert maps.by_output
    np.testing.assert_array_equal(
        vectors_of(model, ids)[5], model.module.get_input_embeddings().weight[ids[5]].detach()
    )


def test_the_loss_is_over_clues_alone():
    model = tiny()
    text = plain_text(ANT, SHOTS[:1]).with_answer(" Small.")
    ids, layout = encode(model, text)
    with torch.no_grad():
        logs = torch.log_softmax(model.module(input_ids=torch.tensor([ids])).logits[0].double(), -1)
    wanted = [i for i, s in enumerate(layout.segments) if s in ("clue", "answer")]
    assert "".join(layout.tokens[i] for i in wanted) == f" {SHOTS[0].clue} Small."
    expected = -np.mean([float(logs[i - 1, ids[i]]) for i in wanted])
    assert clue_loss(model, ids, layout) == pytest.approx(expected, rel=1e-5)


# --- the whole -------------------------------------------------------------------------------------------------------


OPTIONS = {"shots": 2, "prompts": 2, "alphas": (0.5, 2.0), "permutations": 19, "threads": 1}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    model = tiny()
    run = Run.create(tmp_path_factory.mktemp("prompt") / "run", config={"kind": "prompt"}, model={}, inputs={})
    return model, run, prompt(model, run, control=tiny(seed=1), **OPTIONS)


def test_a_result_says_and_keeps_what_was_found(done):
    model, run, result = done
    assert result.versions == [
        *("trained", "random weights", "alpha 0.5", "alpha 2", "truncated", "flattened", "random bases"),
    ]
    assert result.targets[0] == "Ant" and len(result.targets) == 2
    assert result.measures.shape == (7, 2, 3, len(MEASURES)) and np.isfinite(result.measures).all()
    assert result.cosine.shape == (2, 2, 3, 6)
    assert result.word_maps["trained"].shape == (3, len(result.words), len(result.words))
    assert result.words[:1] == [choose_shots(TABLE, ANT, 2)[0].word]
    again = PromptResult.load(run.path / "prompt")
    for name in PromptResult._ARRAYS:
        np.testing.assert_array_equal(getattr(again, name), getattr(result, name))
    assert again.findings() == result.findings() and again.clues == dict(result.clues)
    frame = result.to_frame()
    assert len(frame) == 7 * 3 and frame["cosine_partial"].isna().sum() == 5 * 3
    assert (result.summary()["loss"] > 0).all()
    verdicts = {f.figure: f.holds for f in result.findings()}
    assert verdicts["shots"] in (True, False) and result.findings()[-1].holds is True  # scores scale on a Llama
    assert result.law_error < 1e-5


def test_changes_change_and_leave_no_trace(done):
    model, _, result = done
    base = result.measures[0]
    for v, name in enumerate(result.versions[1:], start=1):
        assert np.abs(result.measures[v] - base).max() > 1e-3, name
    np.testing.assert_array_equal(result.measures, prompt(model, None, control=tiny(seed=1), **OPTIONS).measures)


def test_scaled_spectra_are_scaled_scores_in_the_first_layer(done):
    """In layer 0 the input is fixed: alpha = 2 is the same as scores times 4."""
    model, _, result = done
    ids, layout = encode(model, plain_text(ANT, choose_shots(TABLE, ANT, 2)).with_answer(result.clues["trained"][0]))
    with hs.scale_scores(model, [(0, h) for h in range(4)], 4.0):
        expected = measure_map(look(model, ids).mean[0], layout)
    found = result.measures[result.versions.index("alpha 2"), 0, 0]
    for name in ("self", "within", "entropy", "largest"):
        assert found[MEASURES.index(name)] == pytest.approx(expected[name], rel=1e-4)


def test_a_study_goes_on_where_it_stopped(done, tmp_path):
    model, run, result = done
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    units = sorted((copy / "prompt").glob("*-000?.safetensors"))
    assert len(units) == 14
    kept = {path.name: path.stat().st_mtime_ns for path in units[2:]}
    for path in units[:2]:
        path.unlink()
    again = prompt(model, copy, control=tiny(seed=1), **OPTIONS)
    np.testing.assert_array_equal(again.measures, result.measures)
    assert {n: (copy / "prompt" / n).stat().st_mtime_ns for n in kept} == kept
    said = []
    prompt(model, copy, control=tiny(seed=1), **OPTIONS | {"shots": 1}, say=said.append)
    assert "other settings" in said[0]


def test_every_figure_can_be_drawn(done):
    _, _, result = done
    section = gather([result]).sections[0]
    assert not section.problems and section.rows is None
    for spec in section.figures:
        if spec.kind != "table":
            assert draw(spec, section) is not None and picture(spec, section)
    ids = [spec.id for spec in section.figures]
    assert {f.figure for f in section.findings if f.figure} <= set(ids) and len(set(ids)) == len(ids)
    words = next(spec for spec in section.figures if spec.id == "word-maps")
    panel = words.data["panels"][0]
    assert np.isnan(panel["values"][0, 1]) and panel["key_tokens"] == result.words


def test_qk_norm_is_said_and_scores_are_scaled_instead():
    result = prompt(tiny("qwen3"), None, **OPTIONS | {"prompts": 1, "alphas": (2.0,)})
    assert result.law_exception.startswith("QK-norm (q_norm, k_norm)")
    texts = [finding.text for finding in result.findings()]
    assert any("Scores were multiplied by alpha^2 instead" in text for text in texts)
    assert any(text.startswith("With scores times 4") for text in texts)
    assert result.change("alpha 2", "entropy").value < -0.01
    assert "random weights" not in result.versions  # no control was given


def test_no_shots_at_all():
    result = prompt(tiny(), None, **OPTIONS | {"shots": 0, "prompts": 1, "alphas": ()})
    assert not any(spec.id == "shots" for spec in result.figures())
    assert len(result.findings()) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word": "Elefant"}, "nearest are"),
        ({"shots": 99}, "99 shots asked"),
        ({"alphas": (1.0,)}, "other than 1"),
        ({"alphas": (-2.0,)}, "above 0"),
        ({"prompts": 0}, "at least 1"),
        ({"chat": True}, "no chat template"),
    ],
)
def test_what_cannot_be_asked(options, message):
    with pytest.raises(hs.InputError, match=message):
        prompt(tiny(), **OPTIONS | options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--word", "Antt"], "nearest are Ant"),
        (["--shots", "50"], "50 shots asked"),
        (["--table", "nothing.csv"], "no table"),
        (["--alphas", "a,b"], "not a list of numbers"),
    ],
)
def test_the_command_says_what_is_wrong_before_a_model_is_loaded(arguments, message):
    assert command.prompt  # registered by its import
    result = CliRunner().invoke(app, ["prompt", "no-such-model", *arguments])
    assert isinstance(result.exception, hs.InputError)
    assert message in str(result.exception) and result.exception.exit_code == 2


@pytest.mark.models
def test_the_command_refuses_an_encoder():
    result = CliRunner().invoke(app, ["prompt", "minilm-l6"])
    assert isinstance(result.exception, hs.InputError) and "not a causal language model" in str(result.exception)
