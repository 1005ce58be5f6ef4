"""
Do tokens collapse, with and without the skip?
==============================================

Attention averages tokens. Stacked, averages of averages become alike: *rank collapse*. You want to see whether it happens in a
trained model, and what prevents it.
"""

import headscape as hs

# %%
# Measure
# -------
# The model is run again on captured inputs as it is, without its skip connections, and with a hidden state that carries scores from
# layer to layer (modern Hopfield attention). Copies in double precision make small residuals visible.

model = hs.load_model("vit-fmnist")
captured = hs.capture(model, hs.sample_images(), batches=8)
result = hs.collapse(captured, model=model)
print(result)

# %%
# By layer
# --------
# ``residual`` is the share of the hidden states that is not the same for all tokens. 1 means that tokens have nothing in common, 0 that
# they are identical.

result

# %%
# How sure is this?
# -----------------
# Intervals are over the eight images. The variants show what the parts do in *this* trained model, which was never trained without
# its skip: they say nothing about a network that was. Residuals near 1e-15 are round-off and are called that.
#
# What next?
# ----------
# Train both kinds and compare: :func:`headscape.train`. What the paper claims about hidden states and what was found: :doc:`/collapse`
# and :doc:`/hopfield`.
