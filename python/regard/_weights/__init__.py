"""Weights of layers in 16 or 8 bits."""
