"""What a claim needs that not every model has: the reason why it is not about this one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headscape.papers import Claim

__all__ = ["NEEDS", "not_applicable"]

Facts = Mapping[str, Any]
"""Of the model of a run, as `Model.describe` has them; empty for imported attention. With `networks` and `training`:
how many other networks, and how many training runs, were given with it."""


def _kind(facts: Facts) -> str:
    return f"{facts['source']} is {_KINDS.get(str(facts['task']), 'a network of another kind')}"


_KINDS = {
    "causal-lm": "a causal language model",
    "seq2seq-lm": "an encoder-decoder",
    "masked-lm": "a masked language model",
    "image-classifier": "an image classifier",
    "encoder": "an encoder, which predicts no tokens",
}
_TRAINED = "a claim about networks trained for it, with and without a hidden state; name a run of `headscape train`"
NEEDS: dict[str, Callable[[Facts], str | None]] = {
    "model": lambda facts: None if facts.get("source") else "the run was imported and has no model",
    "text": lambda facts: (
        None if facts["task"] != "image-classifier" else f"a claim about tokens of text; {_kind(facts)}"
    ),
    "next tokens": lambda facts: (
        None if facts["task"] == "causal-lm" else f"a claim about predicting the next token; {_kind(facts)}"
    ),
    "loss": lambda facts: (
        None
        if facts["task"] in ("causal-lm", "seq2seq-lm", "image-classifier")
        else f"a claim about the loss; {_kind(facts)}"
    ),
    "no mask": lambda facts: (
        "causal attention has no bound: a masked key makes it infinite" if facts.get("causal") else None
    ),
    "networks": lambda facts: (
        None
        if facts.get("networks")
        else "a claim about two networks or more; name an organized run of another network as well"
    ),
    "training": lambda facts: None if facts.get("training") else f"{_TRAINED}, beside it",
    "hidden state": lambda facts: f"{_TRAINED.partition(';')[0]}; {facts['source']} was trained without one",
}
"""By the word in claims.toml: why a model does not have it, or None."""


def not_applicable(claim: Claim, facts: Facts) -> str | None:
    """Why a claim is not about this model; None where it is."""
    own = ("training", "networks", "")
    needed = [claim.needs] if claim.needs in own else ["model", claim.needs]
    return next((why for need in needed if need and (why := NEEDS[need](facts))), None)
