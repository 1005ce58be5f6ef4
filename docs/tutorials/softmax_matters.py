"""
Does softmax matter?
====================

A theorem says that on a well-organized head softmax acts like averages and differences on trees, and hardly at all where the averages
vanish. You want to know whether the heads of a real model are like that.
"""

import numpy as np

import headscape as hs

# %%
# One head on paper
# -----------------
# Row softmax is ``exp`` of the *log-attention*, the logarithm of the probabilities. On the trees of the head's own organization, the
# *paraproduct* approximates ``exp`` by its derivatives at the averages of each scale, times differences to the next.

model = hs.load_model("vit-fmnist")
images, labels = hs.sample_images()


def organized(head):
    """The log-attention of a head and the trees of its rows and columns."""
    log_attention = np.log(np.maximum(head.values, 1e-9))
    return log_attention, *hs.Questionnaire().fit(log_attention).trees_


head = hs.capture(model, images[:1], batches=1, dtype="float32").tensor(0).head(2, 2)
p = hs.paraproduct(*organized(head))
exponent = hs.holder_exponent(*organized(head)).exponent
print(f"relative error {np.linalg.norm(p.residual) / np.linalg.norm(head.values):.2f}")
print(f"Hoelder exponent {exponent:.2f} (the theorem assumes more than 0; white noise has -0.5)")

# %%
# The same heads in the model
# ---------------------------
# An error on paper says little. So put the approximation in place of the maps of a whole layer, clipped at 0 and with rows that sum
# to 1, and measure how the loss changes. Uniform attention is the control: heads that do not mind it have no use for their
# maps, and say nothing about softmax.


inputs = [(images[i : i + 1], labels[i : i + 1]) for i in range(8)]
tensors = [hs.capture(model, image, batches=1, dtype="float32").tensor(0) for image, _ in inputs]


def change(layer, replace):
    """Rise of the loss in nats when the maps of a layer are replaced, with its interval over images."""
    rises = []
    for X, labeled in zip(tensors, inputs, strict=True):
        with hs.patch_maps(model, {(layer, h): replace(X.head(layer, h)) for h in range(6)}):
            replaced = hs.loss(model, labeled).mean
        rises.append(replaced - hs.loss(model, labeled).mean)
    return hs.mean_interval(rises)


def by_paraproduct(head):
    """A map that averages and differences on trees make."""
    rough = np.maximum(hs.paraproduct(*organized(head)).approximation, 0)
    return (rough / rough.sum(axis=1, keepdims=True)).astype("float32")


for layer in (0, 4):
    print(f"layer {layer}: paraproduct {change(layer, by_paraproduct)}")
    print(f"         uniform     {change(layer, lambda head: np.full_like(head.values, 1 / 50))}")
print(f"layer 4, its own maps  {change(4, lambda head: head.values).value:.0e}")

# %%
# How sure is this?
# -----------------
# The last line checks the method: a head's own map must change nothing. Where the interval of the paraproduct includes
# 0, nothing has been shown to change; that is not yet a proof that nothing does. The study decides by a tolerance instead: a
# head passes when the *whole* interval lies within it.
#
# What next?
# ----------
# ``hs.softmax(run)`` asks every head, beside the natural order, shuffled heads and random weights; :doc:`/softmax` has the survey of three
# models. On the command line: ``headscape capture MODEL --keep probs,scores --out RUN``, then ``headscape softmax RUN``.
