"""Random numbers of dropout and of PyTorch."""
