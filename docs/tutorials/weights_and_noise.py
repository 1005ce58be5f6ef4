"""
Weights against random matrices
===============================

A weight matrix starts as noise. How much of a trained one still looks like noise?

And do the queries and keys of a head know of each other? Both questions can be answered from the weights alone, without any text.
"""

from textwrap import shorten

import headscape as hs

# %%
# Compare
# -------
# The singular values of noise follow the law of Marchenko and Pastur. ``spectra`` compares every matrix of the model with noise of the same
# shape and energy, and each head's query and key maps with randomly rotated ones. The control is the same architecture before training.

model = hs.load_model("minilm-l6")
control = hs.load_model("minilm-l6", random_init=0)
result = hs.spectra(model, control=control, rotations=300)

# %%
# Singular values
# ---------------
# Here are those of the query maps. Noise ends at the edges of the law; what lies beyond the upper one are directions that noise would
# not have: they were learned.

result.show("histogram-q")

# %%
# How few directions?
# -------------------
# *Evenness* is 1 for noise and smaller if fewer directions carry the matrix. Training lowers it, for queries and keys more than for values.

result.show("evenness")

# %%
# Do queries and keys know of each other?
# ---------------------------------------
# ``z`` compares the trace of :math:`W_q^T W_k` with that of randomly rotated matrices, in standard deviations: beyond 3 is no accident.
# ``z_other`` is the control, the same queries with the keys of another head.

columns = ["layer", "head", "z", "z_other", "evenness_q", "evenness_k"]
heads = result.to_frame()[columns]
beyond = heads[["z", "z_other"]].abs().gt(3).mean()
print(f"beyond 3: {beyond.z:.0%} of the heads, {beyond.z_other:.0%} of the controls")
heads.head().round(2)

# %%
# A negative ``z`` means that on average a token's query and its own key point in opposite directions: the head looks away from the token.
#
# How sure is this?
# -----------------
# Intervals are over the six layers of *one* network: they say what holds throughout its depth, not what another network would show. The
# bundled decoders are stored with 4 to 8 bits; there, singular values below the rounding noise are marked as such.

for finding in result.findings():
    text = shorten(finding.text, 60, placeholder=" ...")
    print(f"{finding.verdict or 'description':15} {text}")

# %%
# What next?
# ----------
# :doc:`/spectra` has the tables of three models, beside what the thesis that proposed these measures claimed; :doc:`/theory/matrices`
# explains the law. On the command line: ``headscape spectra minilm-l6``. Terms: :doc:`/glossary`.
