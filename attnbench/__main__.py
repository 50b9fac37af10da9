"""`python -m attnbench`: the command line."""

from attnbench.cli import main

if __name__ == "__main__":
    main()
