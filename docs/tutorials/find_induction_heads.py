"""
Find induction heads in your own GPT
====================================

An *induction head* continues a pattern: after ``A B ... A`` it attends to the token that followed the first ``A``, and so predicts ``B``.
You want to know which heads of your model do this, to see one at work, and to check that the model depends on them.
"""

import numpy as np

import headscape as hs

# %%
# Load and capture
# ----------------
# ``load_model`` takes the name of a bundled model, a folder saved by transformers, a GGUF file or a hub id. ``capture`` runs the
# model and keeps the attention of every head; it first checks that the logits under capture equal the model's own. Ordinary text
# repeats itself too rarely to tell, so the model reads lists of random words, each list four times over.

model = hs.load_model("smollm2-135m")
words = sorted(set(hs.sample_text().split()))
lists = [" ".join(list(np.random.default_rng(seed).choice(words, 20, replace=False)) * 4) for seed in range(6)]
captured = hs.capture(model, lists[:3])
captured

# %%
# Which heads?
# ------------
# ``score`` is the share of attention that goes where an induction head looks, averaged over batches; ``chance`` is what attention
# spread at random would score there, and ``share`` is the share of batches in which the head holds the role. ``model=None`` keeps to
# what was captured; without it the model is shown random tokens twice, so that any sentence will do.

heads = hs.find_heads(captured, "induction", top=6, model=None)
heads.round(3)

# %%
# Look at one
# -----------
# Choose a token of the second list to see where the head looks from there: at what followed the same word in the first.

layer, head = heads.iloc[0][["layer", "head"]]
hs.show(captured, layer, head)

# %%
# Does the model depend on them?
# ------------------------------
# A score describes attention, not what it is used for. To test that, remove the heads and measure the loss on lists that played no
# part in finding them: only a model that copies can predict the repetitions. As a control, remove as many other heads of the
# same layers.

chosen = list(zip(heads["layer"], heads["head"], strict=True))
others = [(layer, (head + 4) % 9) for layer, head in chosen]
for name, removed in [("intact", []), ("without induction heads", chosen), ("without others", others)]:
    with hs.ablate(model, removed):
        print(f"{name:24} {hs.loss(model, lists[3:]).mean:.2f} nats")

# %%
# How sure is this?
# -----------------
# Three lists found the heads and three others judged them; more lists narrow both. Zeroing a head also removes its
# average output, so part of the rise is damage rather than lost copying; ``hs.ablate(..., how="mean")`` keeps the average. And
# heads with other names can take over when these are gone, so the rise is a lower bound on what the circuit contributes.
#
# What next?
# ----------
# ``hs.find_heads(captured, "previous token")`` finds the heads that induction heads build on. On the command line:
# ``headscape analyze smollm2-135m --text book.txt``, then ``headscape heads RUN --role induction``.
