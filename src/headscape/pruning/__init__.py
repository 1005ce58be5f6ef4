"""Ranking, removing and exporting heads."""
