"""headscape maps the attention heads of transformers."""

__version__ = "0.1.0"
