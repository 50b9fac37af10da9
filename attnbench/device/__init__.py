"""What hardware this is, what it can do, and what it is doing now. Nothing here initialises CUDA."""
