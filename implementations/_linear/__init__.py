"""Linear attention in chunks: PyTorch operators for CPUs, Triton kernels for CUDA, tiles, costs."""
