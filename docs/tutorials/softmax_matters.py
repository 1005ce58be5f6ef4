"""
Does softmax matter?
====================

A theorem says that organized heads can do without softmax. Can those of a real model?

Fasina et al. (2025) show that on a matrix that is regular on its trees, softmax acts like sums of averages and differences, and hardly
at all where the averages vanish. Here you test this on the heads of a vision transformer, first on paper and then in the model.
"""

import numpy as np

import headscape as hs

# %%
# One head on paper
# -----------------
# The attention map is ``exp`` of the *log-attention*, the logarithm of the probabilities. On the trees of the head's own organization, the
# *paraproduct* approximates it scale by scale: the derivative of ``exp`` at an average, times the differences to the next scale.

model = hs.load_model("vit-fmnist")
images, labels = hs.sample_images()


def organized(head):
    """The log-attention of a head and the trees of its rows and columns."""
    log_attention = np.log(np.maximum(head.values, 1e-9))
    return log_attention, *hs.Questionnaire().fit(log_attention).trees_


head = hs.capture(model, images[:1], batches=1, dtype="float32").tensor(0).head(2, 2)
p = hs.paraproduct(*organized(head))
exponent = hs.holder_exponent(*organized(head)).exponent
error = np.linalg.norm(p.residual) / np.linalg.norm(head.values)
print(f"relative error {error:.2f}")
print(f"Hölder exponent {exponent:.2f} (the theorem needs more than 0; white noise has -0.5)")

# %%
# The same heads in the model
# ---------------------------
# An error on paper says little about the model. So put the approximation in place of the maps of a whole layer, clipped at 0 and with
# rows that sum to 1, and measure how the loss changes. Uniform attention is the control: a layer that works as well with it does not
# need its maps at all, and says nothing about softmax.


inputs = [(images[i : i + 1], labels[i : i + 1]) for i in range(8)]
captures = [hs.capture(model, image, batches=1, dtype="float32") for image, _ in inputs]


def change(layer, replace):
    """Rise of the loss in nats when the maps of a layer are replaced, over images."""
    rises = []
    for captured, labeled in zip(captures, inputs, strict=True):
        X = captured.tensor(0)
        maps = {(layer, h): replace(X.head(layer, h)) for h in range(6)}
        with hs.patch_maps(model, maps):
            replaced = hs.loss(model, labeled).mean
        rises.append(replaced - hs.loss(model, labeled).mean)
    return hs.mean_interval(rises)


def by_paraproduct(head):
    """A map that averages and differences on trees make."""
    rough = np.maximum(hs.paraproduct(*organized(head)).approximation, 0)
    return (rough / rough.sum(axis=1, keepdims=True)).astype("float32")


def uniform(head):
    """A map that attends to all 50 tokens alike."""
    return np.full_like(head.values, 1 / 50)


for layer in (0, 4):
    print(f"layer {layer}: paraproduct {change(layer, by_paraproduct)}")
    print(f"         uniform     {change(layer, uniform)}")
print(f"layer 4, its own maps  {change(4, lambda head: head.values).value:.0e}")

# %%
# Layer 0 needs its maps: uniform attention costs it far more than the paraproduct, whose interval includes 0. So here the theorem is
# not refuted. Layer 4 is not shown to need its maps at all, and says nothing either way.
#
# How sure is this?
# -----------------
# The last line checks the method: a layer's own maps must change nothing. If the interval of the paraproduct includes 0, no change has
# been shown, which does not prove that there is none. The study therefore uses a tolerance: a head passes only if its *whole* interval
# lies within it.
#
# What next?
# ----------
# ``hs.softmax(run)`` asks this of every head, beside the natural order, shuffled heads and random weights; :doc:`/softmax` has the results
# for three models. On the command line: ``headscape capture MODEL --keep probs,scores --out RUN``, then ``headscape softmax RUN``.
# Terms: :doc:`/glossary`.
