"""Statistics: Gaussians, softmax, bilinear forms, mixtures and spectra, as formulas to compare with a network.

"The thesis" here is Martin Wertich, Exploring the Hidden Structures of Attention Layers in Transformer Models through
the Lens of Gaussian Distributions (Mainz, 2024); where a formula of it is wrong in print, the docstring says so.
"""
