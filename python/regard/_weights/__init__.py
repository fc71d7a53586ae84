"""Layer weights in 16 or 8 bits."""
