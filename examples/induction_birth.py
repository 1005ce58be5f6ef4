"""Watch induction heads form: train a small GPT on sequences that repeat, and follow its heads.

Two layers of four heads learn to copy within a few minutes on one core. `python examples/induction_birth.py` writes the series
to runs/induction; `headscape series runs/induction --open` makes its page and shows it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import transformers

import headscape as hs

VOCABULARY, LENGTH = 64, 64


def small_gpt(n_layer: int = 2, n_head: int = 4, width: int = 64) -> transformers.GPT2LMHeadModel:
    """A GPT-2 of two layers."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_layer=n_layer, n_head=n_head, n_embd=width,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def repeating(n: int) -> torch.Tensor:
    """Sequences of random tokens, each with a period of its own: only the tokens say where to look, no fixed distance."""
    periods = torch.randint(LENGTH // 4, LENGTH // 2 + 1, (n,)).tolist()
    return torch.stack([torch.randint(VOCABULARY, (p,)).repeat(LENGTH // p + 1)[:LENGTH] for p in periods])


def train(out: Path, steps: int, every: int, seed: int = 0) -> hs.Tracker:
    """Train on sequences that repeat: what comes again can be predicted by copying, the rest not at all."""
    torch.manual_seed(seed)
    model = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    tracker = hs.Tracker(every=every, out=out, tokens=LENGTH, batches=8)
    tracker.step(model, 0)
    model.train()
    for step in range(1, steps + 1):
        ids = repeating(32)
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tracker.step(model, step)
        if step % (10 * every) == 0:
            print(f"step {step}: loss {loss.item():.3f} nats", flush=True)
    return tracker


def main() -> None:
    """Train, follow, and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/induction"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100)
    options = parser.parse_args()
    tracker = train(options.out, options.steps, options.every)
    print(f"the tracker took {tracker.share:.1%} of the time")
    for finding in hs.series(options.out).findings():
        print(f"- {finding}")


if __name__ == "__main__":
    main()
