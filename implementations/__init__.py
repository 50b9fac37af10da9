"""One module per attention implementation; always imported as `attnbench.implementations`."""

if __name__ != "attnbench.implementations":
    raise ImportError("import attnbench.implementations, not implementations")
