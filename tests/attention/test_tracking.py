"""The tracker looks on: training goes the same way, captures are runs of a series."""

import copy
import warnings

import numpy as np
import pytest
import torch

import headscape as hs
from headscape.attention.tracking import Tracker, repeated_tokens
from zoo import make


def train(network, steps, tracker=None):
    """Plain gradient steps with dropout on; returns the losses."""
    torch.manual_seed(3)
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        ids = torch.randint(100, (2, 8))
        loss = network(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if tracker is not None:
            tracker.step(network)
    return losses


def test_training_goes_on_as_if_nobody_had_looked(tmp_path):
    network = make("gpt2")
    network.transformer.drop.p = 0.5
    other = copy.deepcopy(network)
    tracker = Tracker(every=2, out=tmp_path / "series", tokens=16, batches=2)
    assert train(network, 5) == train(other, 5, tracker)
    assert other.training and all(part.training for part in other.modules())
    assert sorted(p.name for p in (tmp_path / "series").iterdir()) == ["step-00000002", "step-00000004"]
    assert 0 < tracker.share < 1


def test_what_it_writes_is_a_series(tmp_path):
    tracker = Tracker(every=1, out=tmp_path / "series", tokens=16, batches=2)
    network = make("gpt2")
    train(network, 2, tracker)
    first, last = (hs.open_capture(tmp_path / "series" / f"step-0000000{i}") for i in (1, 2))
    assert first.tensor(0).query_tokens == last.tensor(0).query_tokens
    assert not np.array_equal(first.tensor(0).values, last.tensor(0).values)
    result = hs.series(tmp_path / "series")
    assert list(result.steps) == [1, 2] and "induction" in result.role_names


def test_probe_tokens_come_again_at_a_distance_of_their_own():
    model = hs.wrap_module(make("gpt2"))
    rows = [batch["input_ids"][0].numpy() for batch in repeated_tokens(model, 32, 3)]
    periods = [next(p for p in range(1, 32) if (row[p:] == row[:-p]).all()) for row in rows]
    assert len(set(periods)) == 3 and max(periods) <= 16


def test_the_first_failure_is_said_and_a_later_one_does_not_end_the_training(tmp_path):
    with pytest.raises(hs.InputError):
        Tracker(every=1, inputs=[], out=tmp_path / "empty").step(make("gpt2"))
    with pytest.raises(hs.InputError, match="every"):
        Tracker(every=0)
    tracker = Tracker(every=1, out=tmp_path / "series", tokens=8, batches=1)
    network = make("gpt2")
    tracker.step(network)
    (tmp_path / "series" / "step-00000002").write_text("in the way")
    with pytest.warns(UserWarning, match="step 2 was not captured"):
        tracker.step(network)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tracker.step(network)


@pytest.fixture
def group(tmp_path):
    """A training of one process that could be of many."""
    where = f"file://{tmp_path}/meeting"
    torch.distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Compiled(torch.nn.Module):
    """What torch.compile returns, without the seconds that its compiler takes to be imported."""

    def __init__(self, network):
        super().__init__()
        self._orig_mod = network

    def forward(self, *_, **__):
        raise AssertionError("compiled, to be looked at")


def test_wrapped_networks_are_the_network_inside(group, tmp_path, monkeypatch):
    def maps(name, network):
        assert Tracker(every=1, out=tmp_path / name, tokens=16, batches=1).step(network)
        return hs.open_capture(tmp_path / name / "step-00000001").tensor(0).values

    network, parallel = make("gpt2"), torch.nn.parallel.DistributedDataParallel
    plain, in_place = maps("plain", network), make("gpt2")
    in_place._compiled_call_impl = Compiled(network).forward  # as in_place.compile() does
    wrapped = [parallel(network), torch.nn.DataParallel(network), Compiled(parallel(network)), in_place]
    for i, one in enumerate(wrapped):
        assert np.array_equal(maps(f"{i}", one), plain)
    assert in_place._compiled_call_impl is not None
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    assert not Tracker(every=1, out=tmp_path / "second").step(parallel(network))
    assert not (tmp_path / "second").exists()


class Own(torch.nn.Module):
    """Attention that is no MultiheadAttention, in a submodule of its own."""

    def __init__(self):
        super().__init__()
        self.attend, self.out = torch.nn.Softmax(dim=-1), torch.nn.Linear(4, 4)

    def forward(self, x):
        heads = x.view(1, -1, 2, 2).transpose(1, 2)
        return self.out((self.attend(heads @ heads.mT) @ heads).transpose(1, 2).flatten(2))


def test_a_wrapped_model_keeps_what_is_known_of_it(tmp_path):
    inputs, network = [torch.randn(1, 5, 4)], Own()
    named = hs.wrap_module(network, [""], example=inputs[0])
    network.train()
    assert Tracker(every=1, inputs=inputs, out=tmp_path / "own", batches=1).step(named) and network.training
    weights = inputs[0].view(5, 2, 2).transpose(0, 1)
    found = hs.open_capture(tmp_path / "own" / "step-00000001").tensor(0).values
    np.testing.assert_allclose(found.transpose(2, 0, 1), (weights @ weights.mT).softmax(-1), atol=1e-3)

    make("gpt2").save_pretrained(tmp_path / "saved")
    loaded, fingerprints = hs.load_model(tmp_path / "saved", device="cpu"), set()
    tracker = Tracker(every=1, out=tmp_path / "loaded", tokens=8, batches=1)
    for step in ("step-00000001", "step-00000002"):
        assert tracker.step(loaded)
        about = hs.open_capture(tmp_path / "loaded" / step).run.meta["model"]
        fingerprints.add(about["fingerprint"])
        assert about["location"] is None and about["source"] == "GPT2LMHeadModel"
        torch.nn.init.zeros_(loaded.module.lm_head.weight)
    assert len(fingerprints) == 2  # of what is in memory, not of the files


def test_a_divided_network_is_refused_in_every_process(group, monkeypatch, tmp_path):
    monkeypatch.setattr("headscape.attention.tracking.SHARDED", {"GPT2Block"})
    for rank in (0, 1):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        with pytest.raises(hs.InputError, match="save checkpoints"):
            Tracker(every=1, out=tmp_path).step(make("gpt2"))


def test_a_module_that_does_not_know_its_tokens_needs_inputs(tmp_path):
    with pytest.raises(hs.InputError, match="give the tracker inputs"):
        Tracker(every=1, out=tmp_path).step(torch.nn.MultiheadAttention(8, 2))


def test_the_trainer_of_transformers_calls_it(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments

    plain = Tokenizer(models.WordLevel({f"w{i}": i for i in range(20)}, unk_token="w0"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    reader = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="w0")
    rows = [{"input_ids": list(range(i, i + 8)), "labels": list(range(i, i + 8))} for i in range(8)]
    tracker = Tracker(every=2, inputs=["w3 w1 w4 w1 w5 w9"], out=tmp_path / "series", tokens=8, batches=1)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"), max_steps=4, per_device_train_batch_size=2, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    options = {"train_dataset": rows, "processing_class": reader, "callbacks": [tracker.callback()]}
    Trainer(make("gpt2"), arguments, **options).train()
    last = hs.open_capture(tmp_path / "series" / "step-00000004").tensor(0)
    assert last.key_tokens == ["w3", "w1", "w4", "w1", "w5", "w9"]  # read by the Trainer's own tokenizer
    assert sorted(p.name for p in (tmp_path / "series").iterdir()) == [f"step-0000000{i}" for i in (0, 2, 4)]
