"""
Find induction heads in your own GPT
====================================

Which heads of your model continue a pattern they have seen, and does the model need them?

After ``A B ... A`` an *induction head* attends to the token that followed the first ``A``, and so predicts ``B``. Much of what a model
learns from its context rests on such heads. Here you find them, see one at work, and check that the model depends on them.
"""

import numpy as np

import headscape as hs

# %%
# Load and capture
# ----------------
# ``load_model`` takes the name of a bundled model, a folder saved by transformers, a GGUF file or a hub id. ``capture`` runs the
# model and keeps the attention of every head; it first checks that the logits under capture equal the model's own. Ordinary text
# repeats itself too rarely, so the model reads lists of 20 random words, each four times over.

model = hs.load_model("smollm2-135m")
words = sorted(set(hs.sample_text().split()))
drawn = [np.random.default_rng(seed).choice(words, 20, replace=False) for seed in range(6)]
lists = [" ".join([*words] * 4) for words in drawn]
captured = hs.capture(model, lists[:3])
captured

# %%
# Which heads?
# ------------
# ``score`` is the share of attention that goes where an induction head looks, averaged over the lists; ``chance`` is the score of
# attention that is spread at random, and ``share`` is the share of lists on which the head holds the role. ``model=None`` keeps to
# what was captured. Without it, headscape shows the model repeated random tokens of its own, so that any text will do.

heads = hs.find_heads(captured, "induction", top=6, model=None)
heads.round(3)

# %%
# Look at one
# -----------
# Choose a token to see where the head looks from there: at what followed the same token in the list before. In the map these are the
# lines beside the diagonal, one list apart.

layer, head = heads.iloc[0][["layer", "head"]]
hs.show(captured, layer, head)

# %%
# Does the model depend on them?
# ------------------------------
# A score describes where a head looks, not what this is used for. To test that, remove the heads and measure the loss on three other
# lists: only a model that copies can predict the repetitions. As a control, remove as many other heads of the same layers.

chosen = list(zip(heads["layer"], heads["head"], strict=True))
others = [(layer, (head + 4) % 9) for layer, head in chosen]
cases = {"intact": [], "without induction heads": chosen, "without others": others}
for name, removed in cases.items():
    with hs.ablate(model, removed):
        print(f"{name:24} {hs.loss(model, lists[3:]).mean:.2f} nats")

# %%
# Without the induction heads the loss rises far more than without the others: the model does use them to copy.
#
# How sure is this?
# -----------------
# Three lists found the heads and three others judged them; more lists would narrow both. Zeroing a head also removes its
# average output, so part of the rise is damage rather than lost copying; ``hs.ablate(..., how="mean")`` keeps the average. And other
# heads can take over when these are gone, so the rise is a lower bound on what the circuit contributes.
#
# What next?
# ----------
# ``hs.find_heads(captured, "previous token")`` finds the heads that induction heads build on. On the command line:
# ``headscape analyze smollm2-135m --text book.txt``, then ``headscape heads RUN --role induction``. Other roles: :doc:`/glossary`.
