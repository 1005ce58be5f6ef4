"""Functions on trees: Haar coefficients, entropies, regularity, paraproducts."""
