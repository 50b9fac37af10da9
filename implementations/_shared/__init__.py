"""What several implementations share: operators of kernels, buffers, batch runs, the search for tiles."""
