"""FlashAttention in Triton, for `triton-flash` and `sliding-window`: kernels, launches, tiles, costs."""
