"""A transformer over characters, and its training."""
