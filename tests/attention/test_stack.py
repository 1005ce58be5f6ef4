"""The stack of layers: found in every family that has one, and replayed to the last bit."""

import pytest
import torch
from torch import nn

import headscape as hs
from headscape.attention.sites import example_input, run
from headscape.attention.stack import stack_of
from tiny import Letters
from zoo import ZOO, make

TWO_STACKS = ("t5", "bart")


def wrapped(name):
    return hs.wrap_module(make(name), tokenizer=Letters())


def states_of(model):
    """What the model puts out, before its output head."""
    with torch.no_grad():
        return run(model, example_input(model), whole=False).last_hidden_state


@pytest.mark.parametrize("name", sorted(set(ZOO) - set(TWO_STACKS)))
def test_every_family_with_one_stack_has_its_layers_in_order(name):
    model = wrapped(name)
    stack = stack_of(model)
    assert len(stack.layers) == 2 and stack.one_attention_each
    for site in model.sites:
        layer = list(stack.layers)[site.layer]
        assert stack.place[site.name] == site.layer and site.name.startswith(f"{layer}.")
        assert stack.layers[layer] is model.module.get_submodule(layer)


@pytest.mark.parametrize("name", TWO_STACKS)
def test_an_encoder_beside_a_decoder_is_no_stack(name):
    assert stack_of(wrapped(name)) is None


class Layer(nn.Module):
    """A layer with so many attention modules."""

    def __init__(self, n=1):
        super().__init__()
        self.attend = nn.ModuleDict({str(i): nn.MultiheadAttention(8, 2, batch_first=True) for i in range(n)})

    def forward(self, x):
        for attend in self.attend.values():
            x = x + attend(x, x, x)[0]
        return x


class Network(nn.Module):
    """Layers with so many attention modules each, and perhaps one before them."""

    def __init__(self, *n, before=False):
        super().__init__()
        self.before = Layer(before)
        self.layers = nn.ModuleList([Layer(each) for each in n])

    def forward(self, x):
        x = self.before(x)
        for layer in self.layers:
            x = layer(x)
        return x


def own(network):
    return hs.wrap_module(network.eval(), example=torch.randn(1, 5, 8))


def test_attention_outside_of_the_layers_is_no_stack():
    assert stack_of(own(Network(1, 1, before=True))) is None
    assert stack_of(own(Network(1, 1))).one_attention_each


def test_layers_may_hold_two_attention_modules_or_none():
    model = own(Network(2, 0, 1))
    stack = stack_of(model)
    assert list(stack.layers) == ["layers.0", "layers.1", "layers.2"]
    assert stack.place == {"layers.0.attend.0": 0, "layers.0.attend.1": 0, "layers.2.attend.0": 2}
    assert not stack.one_attention_each
    assert stack.first(model.sites) == 0 and stack.first(model.sites[2:]) == 2 and stack.first([]) == 0


def test_lists_within_a_layer_are_part_of_it():
    network = Network(1)
    network.layers.append(nn.Sequential(Layer(), Layer()))
    stack = stack_of(own(network))
    assert stack.place == {"layers.0.attend.0": 0, "layers.1.0.attend.0": 1, "layers.1.1.attend.0": 1}


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "gemma2"])
def test_a_replay_is_exact_and_computes_only_what_is_above(name):
    model = wrapped(name)
    stack = stack_of(model)
    whole = states_of(model)
    with stack.recorded() as outputs:
        states_of(model)
    assert len(outputs) == 2
    reached = []
    for site in model.sites:
        attention = model.module.get_submodule(site.name)
        attention.register_forward_hook(lambda *_, layer=site.layer: reached.append(layer))
    for first in range(3):
        reached.clear()
        with stack.replayed(outputs, first):
            assert torch.equal(states_of(model), whole)
        assert reached == list(range(first, 2))


def test_a_change_above_the_replay_is_seen_and_one_below_is_not():
    model = wrapped("llama")
    stack, whole = stack_of(model), states_of(model)
    with stack.recorded() as outputs:
        states_of(model)
    changes = []
    for site in model.sites:
        with hs.ablate(model, [site.heads[0]]), stack.replayed(outputs, 1):
            changes.append((states_of(model) - whole).abs().max().item())
    assert changes[0] < 1e-4 and changes[1] > 0.01


def test_nothing_stays_behind():
    model = wrapped("gpt2")
    stack, whole = stack_of(model), states_of(model)
    before = [dict(vars(layer)) for layer in stack.layers.values()]
    with stack.recorded() as outputs:
        states_of(model)
    states_of(model)
    assert len(outputs) == 2
    with pytest.raises(RuntimeError, match="inside"), stack.replayed(outputs, 2):
        raise RuntimeError("inside")
    assert [dict(vars(layer)) for layer in stack.layers.values()] == before
    assert torch.equal(states_of(model), whole)
