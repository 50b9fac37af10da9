"""Writes `baseline.json` anew: `make kernels-baseline`."""

import sys

from attnbench.device.kernels import Compilers, in_order
from tests.kernels_aot.matrix import faults, whole_matrix, write_baseline


def main() -> None:
    with Compilers() as compilers:
        tasks = whole_matrix(compilers)
        found = {}
        for task, rows in compilers.inspect(tasks):
            found[task] = rows
            print(f"\r{len(found)} of {len(tasks)}", end="", file=sys.stderr, flush=True)
    rows = in_order(tasks, found)
    write_baseline(rows)
    print(f"\r{len(rows)} kernels", file=sys.stderr)
    for row in rows:
        for fault in faults(row):
            print(row["implementation"], row["kernel"], row["mode"], row["target"], row["head_dim"], fault)


if __name__ == "__main__":
    main()
