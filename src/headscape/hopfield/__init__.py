"""Modern Hopfield Attention: scores that remember the layers before, as equations, a layer, and a conversion."""
