"""
Read a landscape
================

A model has hundreds of heads. You want one picture in which heads that do similar things are close to each other, and you want to
know how far to trust it.
"""

import headscape as hs

# %%
# Organize
# --------
# ``organize`` groups queries, keys and heads of each batch at the same time: two heads are close if they attend alike on *groups*
# of similar queries and keys, at all scales. It joins the batches, names the known roles, and runs the same analysis on
# shuffled rows as a control.

model = hs.load_model("minilm-l6")
captured = hs.capture(model, [hs.sample_text()], tokens=64, batches=8)
result = hs.organize(captured, model=model)
result

# %%
# How to read it
# --------------
# * **The map.** Each dot is a head and distance is diffusion distance: heads are close if many short steps between similar heads lead
#   from one to the other. The axes have no meaning of their own, and the map may be mirrored from run to run.
# * **The tree.** It cuts the heads into clusters at every scale, from all heads at the root to single heads.
# * **Entropies.** ``l1_all`` is the sum of the absolute Haar coefficients of a head: small means that few averages over clusters describe
#   it. ``l1_top`` takes only the coarsest coefficients.
# * **Roles** are measured on the maps and do not enter the organization, so when a cluster has one color, that is a result.
#
# The table behind the page has one row per head:

result.to_frame().sort_values("l1_all").head()

# %%
# How sure is this?
# -----------------
# Every claim comes with a verdict (holds, does not hold, cannot tell), and with the rule that decided it:

for finding in result.findings():
    print(finding.verdict or "description", "|", finding.text[:150])

# %%
# What next?
# ----------
# ``hs.report(captured, "report.html")`` writes the whole page, with every head over the text. :doc:`/organize` lists what was found
# on three models, and :doc:`/theory/index` explains trees, distances and diffusion maps.
