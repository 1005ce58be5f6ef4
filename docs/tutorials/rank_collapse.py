"""
Do tokens collapse, with and without the skip?
==============================================

Attention averages tokens. Do stacked averages make all tokens alike, and what prevents it?

If they did, the network could no longer tell its tokens apart: this is *rank collapse*. Dong et al. (2021) prove it for attention alone.
Here you measure it in a trained vision transformer, and take away the parts that might prevent it, one by one.
"""

from textwrap import shorten

import headscape as hs

# %%
# Measure
# -------
# ``collapse`` runs the model again on eight images: as it is, without its skip connections, and with a *hidden state*, in which each
# layer's scores are averaged with those of the layers before (modern Hopfield attention). It computes in double precision, so that
# very small differences between tokens can still be seen.

model = hs.load_model("vit-fmnist")
captured = hs.capture(model, hs.sample_images(), batches=8)
result = hs.collapse(captured, model=model)

# %%
# With the skip
# -------------
# The *relative residual* is the part of the tokens that is left when their mean is taken away, as a share of the whole: 0 if all
# tokens are equal. In the model as it is, it stays near its start. So does the control, the same images with shuffled patches.

result.show("residual")

# %%
# Without the skip
# ----------------
# The same measure in four variants, on a logarithmic scale. Without the skip the residual falls layer by layer to the precision of the
# arithmetic, the dotted line: all tokens are equal. A hidden state alone slows this down and does not stop it.

result.show("residual-cells")

# %%
# In numbers
# ----------

for finding in result.findings():
    text = shorten(finding.text, 60, placeholder=" ...")
    print(f"{finding.verdict or 'description':15} {text}")

# %%
# How sure is this?
# -----------------
# Bands and brackets are 95 % intervals over the eight images. The variants show what the parts do in *this* network, which was trained
# with its skip; they say nothing about a network that was trained without. Residuals near 1e-15 are round-off, and are called that.
#
# What next?
# ----------
# To train networks with and without a hidden state and compare them: :func:`headscape.train`. What the papers claim and what was found
# on three models: :doc:`/collapse` and :doc:`/hopfield`. The mathematics: :doc:`/theory/collapse`. Terms: :doc:`/glossary`.
