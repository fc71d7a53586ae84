"""Weights in 8 bits."""
