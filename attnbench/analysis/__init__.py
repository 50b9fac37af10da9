"""Records become findings. Runs nothing, loads no torch: everything here follows from the records alone."""
