"""Attention in a band of keys by PyTorch operators, and its cost. For `sliding-window` on CPUs."""
