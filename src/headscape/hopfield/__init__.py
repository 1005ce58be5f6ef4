"""Modern Hopfield Attention: scores that are carried from layer to layer; as equations, a torch layer, and a conversion."""
