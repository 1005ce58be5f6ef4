"""Statistics: Gaussians, softmax, bilinear forms, mixtures and spectra, as formulas to hold against a network."""
