"""
Does softmax matter?
====================

A theorem says that a well-organized head hardly changes when softmax is replaced by averages and differences on trees. You want to
know whether the heads of a real model are like that.
"""

import numpy as np

import headscape as hs

# %%
# One head first
# --------------
# Row softmax is ``exp`` of the log-attention. On the trees of the head's own organization, a *paraproduct* approximates ``exp`` by its
# averages at each scale times differences at the next.

model = hs.load_model("minilm-l6")
captured = hs.capture(model, [hs.sample_text()], tokens=48, batches=8, keep=("probs", "scores"))
head = captured.tensor(0).head(2, 5)
log_attention = np.log(np.maximum(head.values, 1e-6))
rows, columns = hs.Questionnaire().fit(log_attention).trees_
p = hs.paraproduct(log_attention, rows, columns, function="exp")
error = np.linalg.norm(p.residual) / np.linalg.norm(head.values)
print(f"relative error of the paraproduct: {error:.2f}")
exponent = hs.holder_exponent(log_attention, rows, columns).exponent
print(f"Hoelder exponent of the head: {exponent:.2f} (the theorem assumes more than 0; white noise has -0.5)")

# %%
# All heads of a layer, in the model
# ----------------------------------
# A small error on paper says little. The study puts the approximation into the forward pass and measures what changes. A head passes
# when the change stays within the tolerance, but only counts if it needs its map at all: uniform attention in its place must fail.

heads = [f"encoder.{layer}.{head}" for layer, head in [(0, 3), (2, 5), (4, 7)]]
result = hs.softmax(captured, heads=heads, model=model)
print(result)

# %%
result.to_frame().T

# %%
# How sure is this?
# -----------------
# Eight inputs are the fewest for which anything is decided. Three heads are no survey: leave out ``heads`` to test all, which takes
# minutes.
#
# What next?
# ----------
# :doc:`/softmax` has the survey of three models. On the command line: ``headscape capture MODEL --keep probs,scores --out RUN``, then
# ``headscape softmax RUN``.
