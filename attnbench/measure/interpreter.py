"""Bytes that Triton kernels ask for, counted in the interpreter. In: a traced call. Out: bytes a launch.

Every global access of an interpreted kernel passes through four methods of one builder object; while a trace
is active, attributes of that object stand over them and count the elements whose mask is set. A launch can be
sampled (``contract/sampling.py``): it then runs a few programs under their true ids, and its total still
comes out to the byte. On demand each access is kept with the bytes that it touches. Needs
``TRITON_INTERPRET=1`` before triton is imported.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from attnbench.contract.implementation import Implementation
from attnbench.contract.problem import Problem
from attnbench.contract.sampling import ProgramSample

from .accesses import Access, byte_ranges
from .kernel_trace import KernelTrace, Launch

BACKEND = "triton-interpreter"
_OVERRIDDEN = (
    "create_masked_load",
    "create_masked_store",
    "create_atomic_rmw",
    "create_atomic_cas",
    "create_get_program_id",
    "create_get_num_programs",
)


def sample_kernels(implementation: Implementation, problem: Problem) -> dict[str, ProgramSample]:
    """Return the sample of each kernel that offers one, by kernel name; the others run whole."""
    return {
        spec.name: spec.sample_programs(problem)
        for spec in implementation.kernels_for(problem)
        if spec.sample_programs is not None
    }


@contextmanager
def trace_kernels(
    sample: Mapping[str, ProgramSample] | None = None, *, keep_accesses: bool = False
) -> Iterator[KernelTrace]:
    """Count what interpreted kernels load and store until the block ends.

    Args:
        sample: by kernel name, the programs to run instead of all (``sample_kernels``). Rows that no sampled
            program computes keep what the launcher put there.
        keep_accesses: also keep what each access touches (``Launch.accesses``), some hundred bytes an access.

    Raises:
        RuntimeError: triton is not in interpreter mode, or another trace is active.
    """
    builder, function_type = _interpreter()
    if any(name in vars(builder) for name in _OVERRIDDEN):
        raise RuntimeError("kernels are traced already: traces do not nest")
    trace = KernelTrace()
    run = function_type.run
    try:
        _count_accesses(builder, trace, keep_accesses)
        function_type.run = _recording_run(run, builder, trace, sample or {})
        yield trace
    finally:
        function_type.run = run
        for name in _OVERRIDDEN:
            vars(builder).pop(name, None)


def _interpreter() -> tuple[Any, Any]:
    import triton

    if not triton.knobs.runtime.interpret:
        raise RuntimeError(
            "kernels are traced in Triton's interpreter: set TRITON_INTERPRET=1 before importing triton"
        )
    from triton.runtime import interpreter

    return interpreter.interpreter_builder, interpreter.InterpretedFunction


def _linear(index: tuple[int, ...], grid: tuple[int, ...]) -> int:
    return index[0] + grid[0] * (index[1] + grid[1] * index[2])


def _current_program(builder: Any, launch: Launch) -> int:
    """Linear id of the running program: the grid loop counts the sampled ones, ``chosen`` holds their ids."""
    if launch.chosen:
        return launch.chosen[int(builder.grid_idx[0])]
    return _linear(builder.grid_idx, launch.grid)


def _count_accesses(builder: Any, trace: KernelTrace, keep: bool) -> None:
    """Stand over the builder's memory operations; their other arguments differ between Triton releases."""

    def add(pointers: Any, mask: Any, *, load: bool, store: bool) -> None:
        addresses, element_bytes = pointers.data, max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        elements = addresses.size
        if mask is not None:
            asked = np.broadcast_to(mask.data, addresses.shape)
            elements = int(np.count_nonzero(asked))
            addresses = addresses[asked.astype(np.bool_)] if keep else addresses
        size = elements * element_bytes
        launch = trace.launches[-1]
        program = _current_program(builder, launch)
        if keep:
            made = Access(byte_ranges(addresses, element_bytes), load, store)
            launch.accesses.setdefault(program, []).append(made)
        for counted, bytes_of in ((load, launch.loads), (store, launch.stores)):
            if counted:
                bytes_of[program] = bytes_of.get(program, 0) + size

    masked_load, masked_store = builder.create_masked_load, builder.create_masked_store
    atomic_rmw, atomic_cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def counted_load(pointers: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        add(pointers, mask, load=True, store=False)
        return masked_load(pointers, mask, *args, **kwargs)

    def counted_store(pointers: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        add(pointers, mask, load=False, store=True)
        return masked_store(pointers, value, mask, *args, **kwargs)

    def counted_rmw(operation: Any, pointers: Any, value: Any, mask: Any, *args: Any, **kwargs: Any) -> Any:
        add(pointers, mask, load=True, store=True)
        return atomic_rmw(operation, pointers, value, mask, *args, **kwargs)

    def counted_cas(pointers: Any, *args: Any, **kwargs: Any) -> Any:
        add(pointers, None, load=True, store=True)
        return atomic_cas(pointers, *args, **kwargs)

    builder.create_masked_load, builder.create_masked_store = counted_load, counted_store
    builder.create_atomic_rmw, builder.create_atomic_cas = counted_rmw, counted_cas


def _recording_run(
    run: Callable[..., Any], builder: Any, trace: KernelTrace, samples: Mapping[str, ProgramSample]
) -> Callable[..., Any]:
    """Wrap ``InterpretedFunction.run``: note each launch, shrink the grid of a sampled one."""

    def recording_run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return run(kernel, *args, grid=grid, warmup=warmup, **kwargs)

        def chosen_grid(bound: Any) -> tuple[int, ...]:
            given = tuple(int(size) for size in (grid(bound) if callable(grid) else grid))
            x, y, z = (*given, 1, 1)[:3]
            sample = samples.get(kernel.__name__)
            launch = Launch(kernel.__name__, (x, y, z), sample, sample.programs if sample else ())
            if sample is not None and sample.programs_total != launch.programs_total:
                stands_for, total = sample.programs_total, launch.programs_total
                raise RuntimeError(
                    f"{launch.kernel}: the sample is for {stands_for} programs, the launch has {total}"
                )
            trace.launches.append(launch)
            _show_true_grid(builder, launch)
            return launch.grid if sample is None else (len(launch.chosen),)

        return run(kernel, *args, grid=chosen_grid, warmup=warmup, **kwargs)

    return recording_run


def _show_true_grid(builder: Any, launch: Launch) -> None:
    """Let programs of a sampled launch see their true ids and grid; leave a whole launch alone."""
    for name in ("create_get_program_id", "create_get_num_programs"):
        vars(builder).pop(name, None)
    if launch.sample is None:
        return
    program_id, num_programs = builder.create_get_program_id, builder.create_get_num_programs
    steps = (1, launch.grid[0], launch.grid[0] * launch.grid[1])

    def replaced(handle: Any, value: int) -> Any:
        return type(handle)(np.array([value], dtype=np.int32), handle.dtype)

    def true_program_id(axis: int) -> Any:
        program = _current_program(builder, launch)
        return replaced(program_id(axis), program // steps[axis] % launch.grid[axis])

    def true_num_programs(axis: int) -> Any:
        return replaced(num_programs(axis), launch.grid[axis])

    builder.create_get_program_id = true_program_id
    builder.create_get_num_programs = true_num_programs
