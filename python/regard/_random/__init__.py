"""Random numbers for dropout, and PyTorch's random stream."""
