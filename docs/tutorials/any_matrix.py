"""
Organize any matrix or tensor
=============================

Give the questionnaire any array: it groups every axis by the others. What does it find?

Nothing in it is about attention. Here it gets images of handwritten digits; it is not told which pixels are neighbors, nor which digit
an image shows.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

import headscape as hs

# %%
# A matrix: images x pixels
# -------------------------
# A table with one row per image and one column per pixel. The pixels are shuffled first, so that the table holds no trace of the
# picture but its values. ``organize_matrix`` puts similar rows and similar columns next to each other.

rng = np.random.default_rng(0)
images, digits = load_digits(return_X_y=True)
chosen = rng.permutation(len(images))[:400]
shuffle = rng.permutation(64)
X, digits = images[chosen][:, shuffle], digits[chosen]
organized = hs.organize_matrix(X)

fig, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, name, matrix in [(axes[0], "as given", X), (axes[1], "organized", organized.matrix)]:
    ax.imshow(matrix, aspect="auto", cmap="Greys", interpolation="nearest")
    ax.set(title=name, xlabel="pixels", ylabel="images")
plt.show()

# %%
# Did it find the digits?
# -----------------------
# Take the level of the image tree with about ten clusters and compare it with the true digits. The adjusted Rand index is 1 for equal
# partitions and 0 for chance. Beside it: k-means, the usual method, and the same with every column shuffled, where nothing is to be found.

from sklearn.cluster import KMeans


def found(matrix):
    tree = hs.Questionnaire().fit(matrix).trees_[0]
    level = min(range(tree.n_levels), key=lambda i: abs(len(set(tree.level(i))) - 10))
    return adjusted_rand_score(digits, tree.level(level))


k_means = KMeans(10, n_init=4, random_state=0).fit_predict(X)
print(f"questionnaire    {found(X):.2f}")
print(f"k-means          {adjusted_rand_score(digits, k_means):.2f}")
print(f"shuffled columns {found(rng.permuted(X, axis=0)):.2f}")

# %%
# Did it find the picture?
# ------------------------
# Color every pixel by its cluster, at the place it had before the shuffle. Clusters are strokes and patches: which pixels are neighbors
# was learned from the data alone.

tree = hs.Questionnaire().fit(X).trees_[1]
fig, axes = plt.subplots(1, 3, figsize=(8, 2.8), layout="constrained")
for ax, n in zip(axes, (4, 8, 16), strict=True):
    level = min(range(tree.n_levels), key=lambda i: abs(len(set(tree.level(i))) - n))
    picture = np.empty(64)
    picture[shuffle] = tree.level(level)
    ax.imshow(picture.reshape(8, 8), cmap="tab20")
    ax.set(title=f"{len(set(tree.level(level)))} clusters", xticks=[], yticks=[])
plt.show()

# %%
# A tensor: rows x columns x images
# ---------------------------------
# Arrays of any order work. Here rows, columns and images are three axes, and the last one plays the part of the heads. Its affinity
# gives a map of the images, on which some digits have a place of their own.

stack = X[:, np.argsort(shuffle)].reshape(-1, 8, 8).transpose(1, 2, 0)
q = hs.Questionnaire().fit(stack)
places = hs.diffusion_map(q.affinities_.axis2)

fig, ax = plt.subplots(figsize=(5, 4), layout="constrained")
dots = ax.scatter(*places[:, :2].T, c=digits, cmap="tab10", vmin=-0.5, vmax=9.5, s=12)
fig.colorbar(dots, label="digit", ticks=range(10))
ax.set_title("A map of the images")
plt.show()

# %%
# How sure is this?
# -----------------
# These are 400 images and one seed. The shuffled control shows that the agreement comes from the data. The comparison with k-means
# shows that for one flat partition of the images you do not need the questionnaire; what it adds are trees of *both* axes, at all scales.
#
# What next?
# ----------
# With the trees, the array has a Haar basis in which few coefficients describe it: :func:`headscape.haar_transform`,
# :func:`headscape.reconstruct`. Arrays larger than memory: :doc:`/scale`. Terms: :doc:`/glossary`.
