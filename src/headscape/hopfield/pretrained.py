"""A trained language model as one of the networks to train: fine-tuned as it is, or with a hidden state that is raised from 0."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor, nn

from headscape.attention.models import load_model
from headscape.errors import InputError
from headscape.hopfield.convert import to_hopfield
from headscape.hopfield.networks import Attention, NetworkConfig, Output, Transformer

__all__ = ["Pretrained", "check_further", "config_of", "network_of"]


class Pretrained(nn.Module):
    """The model `config.source` with the interface of `Transformer`.

    `share` is a' now: 0 is the model as it was trained, and training raises it to `attention.alpha_hidden`.
    """

    def __init__(self, config: NetworkConfig, attention: Attention) -> None:
        super().__init__()
        check_further(attention)
        self.config, self.attention = config, attention
        self.model = load_model(config.source, device="cpu")
        self.network = self.model.module
        self.share = attention.alpha_hidden

    def forward(self, inputs: Tensor, memory: None = None) -> Output:
        """Run ids (batch, token)."""
        hopfield = to_hopfield(self.model, alpha_hidden=lambda _: self.share, init=self.attention.init, skip="residual")
        with hopfield if self.attention.alpha_hidden else nullcontext():
            out = self.network(inputs, use_cache=False, output_hidden_states=not self.training)
        return Output(out.logits, list(out.hidden_states or []), [])


def check_further(attention: Attention) -> None:
    """Raise for a kind of attention that a trained model cannot be given."""
    if attention.skip == "scaled" or attention.learned or attention.scheme != "forward-backward":
        raise InputError("a trained model is trained further in the arms standard, hidden and longer only")


def config_of(source: str, tokens: int) -> NetworkConfig:
    """The sizes of a causal language model, by its bundled name or folder."""
    model = load_model(source, device="cpu")
    if model.task != "causal-lm":
        raise InputError(f"{source} is not a causal language model; only these can be trained further here")
    text = model.config.get_text_config()
    width, vocabulary = int(text.hidden_size), int(text.vocab_size)
    return NetworkConfig("model", model.n_layers, model.n_heads, width, vocabulary, tokens, source=source)


def network_of(config: NetworkConfig, attention: Attention) -> Transformer | Pretrained:
    """The network of a configuration: drawn at random, or a trained model."""
    return Pretrained(config, attention) if config.kind == "model" else Transformer(config, attention)
