"""One file per quantity; each takes a workload and returns one section of a record."""
