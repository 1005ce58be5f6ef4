"""One file a question: composes the rooms into a result."""
