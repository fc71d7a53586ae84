"""Random numbers: those of dropout, and PyTorch's."""
