"""Real models as plain NumPy forwards, with regard for the attention. See ../generate.py."""
