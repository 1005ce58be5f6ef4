"""
Read a landscape
================

Hundreds of heads: which of them are alike, what do they do, and can the picture be trusted?

You want one picture in which heads that attend alike are close to each other. This tutorial makes it for MiniLM, a small sentence encoder,
reads it part by part, and ends with what it does and does not show.
"""

from textwrap import shorten

import headscape as hs

# %%
# Organize
# --------
# ``organize`` groups the queries, keys and heads of each input at the same time: two heads are close if they attend alike between
# *groups* of similar queries and keys, at all scales. It joins the inputs, names the heads with a known role, and repeats the whole
# analysis with shuffled rows as a control.

model = hs.load_model("minilm-l6")
captured = hs.capture(model, [hs.sample_text()], tokens=64, batches=8)
result = hs.organize(captured, model=model)

# %%
# Heads by role
# -------------
# One cell per head, colored by what the head does most: look at the previous token, at the first one, within a window, ... Click a
# cell to see its scores. A role is measured on the maps alone and does not enter the organization.

result.show("heads")

# %%
# The map
# -------
# Each dot is a head. The distance between dots is the diffusion distance: heads are close if many short steps between similar heads
# lead from one to the other. The axes have no meaning of their own, and the map may be mirrored from one run to the next.

result.show("head-map")

# %%
# The tree
# --------
# The tree cuts the heads into clusters at every scale, from all heads at the root to single heads at the leaves. Clusters in which a
# role is over-represented carry its name. Roles played no part in building the tree, so these names are a result.

result.show("head-tree")

# %%
# A head before and after
# -----------------------
# Organizing also orders the tokens: queries that attend alike are next to each other, and so are keys that are attended to alike.

result.show("organized-maps")

# %%
# The table
# ---------
# Everything is in a table with one row per head. ``l1_all``, the sum of the absolute Haar coefficients of a head, is small if a few
# averages over clusters describe its map; ``l1_all_null`` is the same after shuffling. Heads that spread their attention evenly come first.

columns = ["layer", "head", "role", "l1_all", "l1_all_null", "uniform", "first"]
result.to_frame()[columns].sort_values("l1_all").head().round(2)

# %%
# How sure is this?
# -----------------
# Every claim comes with a verdict (holds, does not hold, cannot tell). Some of them say no: a ranking of heads can look stable only
# because some heads are always sharper than others, which shuffled rows show as well.

for finding in result.findings():
    text = shorten(finding.text, 60, placeholder=" ...")
    print(f"{finding.verdict or 'description':15} {text}")

# %%
# What next?
# ----------
# ``result`` on a line of its own shows all figures, and ``hs.report(captured, "report.html")`` writes the page with every head over the
# text. :doc:`/organize` lists what was found on four models, and :doc:`/theory/index` explains trees, distances and diffusion maps.
# Terms: :doc:`/glossary`.
