"""Do tokens become alike along depth? Residuals, similarities and entropies by layer, bounds, and pure attention."""
