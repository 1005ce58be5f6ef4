"""
Weights against random matrices
===============================

A weight matrix starts as noise. You want to know how much of a trained one still looks like noise, and whether the queries and keys
of a head know of each other.
"""

import headscape as hs

# %%
# Compare
# -------
# Singular values of noise follow the law of Marchenko and Pastur. ``spectra`` compares every matrix with noise of the same shape
# and energy, and each head's query and key maps with randomly rotated ones. No text is needed.

model = hs.load_model("minilm-l6")
control = hs.load_model("minilm-l6", random_init=0)
result = hs.spectra(model, control=control, rotations=300)
print(result)

# %%
# Per head
# --------
# ``base_alignment`` compares the query and key maps of a head; its ``z`` says by how many standard deviations it differs from random
# rotations. Beyond 3 is no accident.

result.to_frame().head()

# %%
# Pictures
# --------

result

# %%
# How sure is this?
# -----------------
# The intervals are over layers of *one* network: they say what holds across its depth, not what another network would show. Bundled
# models are stored with few bits, and singular values below the rounding noise are marked as such.
#
# What next?
# ----------
# :doc:`/spectra` has the tables of three models, and what the thesis that proposed these measures claimed. From the command line:
# ``headscape spectra minilm-l6``.
