"""Bytes that crossed the pins of a GPU's memory, by whichever backend works. Probes load no torch."""
