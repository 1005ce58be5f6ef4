"""The work whose statements the formulas of this room, and the studies gaussian and prompt, put to the test."""

THESIS = (
    'M. V. Wertich, "Exploring the Hidden Structures of Attention Layers in Transformer Models through the Lens of '
    'Gaussian Distributions" (bachelor thesis, Johannes Gutenberg University Mainz, 2024)'
)
