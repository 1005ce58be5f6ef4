"""Organizes any array: affinities, diffusion coordinates, trees, tree distances, the questionnaire."""
