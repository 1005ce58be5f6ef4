"""Where attention comes from: the only room that knows torch models."""
