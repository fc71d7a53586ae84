"""Forward passes of real models in plain NumPy, with regard for the attention."""
