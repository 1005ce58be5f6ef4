"""
What changed between two prompts?
=================================

Swap two names in a sentence and the right continuation swaps too. Which heads notice?

"John gave a drink to" asks for Mary, "Mary gave a drink to" for John. Everything else is the same, so a head whose attention changes
has something to do with the names.
"""

import headscape as hs

# %%
# Two prompts, one capture
# ------------------------
# Each prompt becomes one batch and keeps its own length.

model = hs.load_model("smollm2-135m")
prompts = [
    "When Mary and John went to the store, John gave a drink to",
    "When Mary and John went to the store, Mary gave a drink to",
]
captured = hs.capture(model, prompts)

# %%
# Heads that changed most
# -----------------------
# The two texts are aligned token by token. The change of a head is the total variation distance between its rows of attention in the
# two texts, averaged over the aligned queries: 0 if nothing moved, 1 if all attention went elsewhere.

change = hs.compare_prompts(captured)
moved = change.to_frame().nlargest(8, "change")
moved.round(3)

# %%
# Here is the head that changed most, on each prompt. Choose the last token, "to": both times the head looks at the name that was
# mentioned only once, which is the right continuation. This is what *name mover* heads do (Wang et al. 2022).

layer, head = moved.iloc[0][["layer", "head"]]
hs.show(captured, layer, head, batch=0)

# %%
hs.show(captured, layer, head, batch=1)

# %%
# How sure is this?
# -----------------
# One pair of prompts tells you about that pair. Repeat it with other names, and compare it with a change that should not
# matter. Here John gives a snack instead of a drink; the heads above move far less:

control = hs.capture(model, [prompts[0], prompts[0].replace("drink", "snack")])
matters = change.to_frame().set_index(["layer", "head"]).change
baseline = hs.compare_prompts(control).to_frame().set_index(["layer", "head"]).change
both = matters.to_frame("names swapped").assign(**{"drink to snack": baseline})
both["difference"] = both["names swapped"] - both["drink to snack"]
both.nlargest(8, "difference").round(3)

# %%
# What next?
# ----------
# To show that a head *causes* the answer, put its map from one prompt into the other with :func:`headscape.patch_maps`, or
# remove it with :func:`headscape.ablate`. The same comparison on a page:
# ``headscape analyze smollm2-135m --prompt "..." --prompt "..."``. Terms: :doc:`/glossary`.
