"""Whatever a case does to its process, its record says so, and the next case is not touched."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.device.environment import environment
from attnbench.measure.record import Agreement
from attnbench.plan.case import Case
from attnbench.plan.settings import MeasureSettings
from attnbench.run.executor import PRELOAD, ExecutorSettings, InProcessExecutor, Isolation, LocalExecutor
from tests.run import tasks

GIB = 1 << 30
MakeExecutor = Callable[..., LocalExecutor]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeExecutor]:
    """Executors whose tasks are those of `tasks.py`."""
    made: list[LocalExecutor] = []

    def make_one(isolate: Isolation = "case", **changes) -> LocalExecutor:
        made.append(LocalExecutor(settings(tmp_path, **changes), isolate))
        return made[-1]

    yield make_one
    for executor in made:
        executor.close()


@pytest.fixture(scope="module")
def torch_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeExecutor]:
    """One executor whose servers have torch, since that takes seconds; called, it takes other settings."""
    folder = tmp_path_factory.mktemp("torch")
    with LocalExecutor(settings(folder, preload=PRELOAD, route=None)) as executor:

        def with_settings(**changes) -> LocalExecutor:
            executor.settings = replace(executor.settings, **changes)
            return executor

        yield with_settings


def settings(folder: Path, timeout_s: float = 30.0, **changes) -> ExecutorSettings:
    values = {
        "measure": MeasureSettings(case_timeout_s=timeout_s),
        "scratch": folder,
        "log": folder / "worker.log",
        "preload": (),
        "task": "tests.run.tasks:by_option",
        "again": "tests.run.tasks:again",
        "route": "tests.run.tasks:route",
    }
    return ExecutorSettings(**(values | changes))  # type: ignore[arg-type]


def case(do: str = "ok", **changes) -> Case:
    return Case(
        implementation=changes.pop("implementation", "naive"), seqlen_q=8, options={"do": do, **changes}
    )


def test_a_case_gets_a_process_of_its_own(make):
    executor = make()
    first, second = executor.submit(case()), executor.submit(case(number=2))
    assert first.status == second.status == "ok"
    assert first.latency is not None
    assert first.latency.median_ms == 1.0
    assert len({first.provenance.backend, second.provenance.backend, str(os.getpid())}) == 3


def test_each_launch_of_an_implementation_has_a_process_that_its_cases_share(make):
    executor = make("implementation")
    firsts = [executor.submit(case(number=number)) for number in (1, 2)]
    seconds = [executor.time_again(first, 2) for first in reversed(firsts)]
    third = executor.time_again(firsts[0], 3)
    pids = [record.provenance.backend for record in (*firsts, *seconds, third)]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    assert len(set(pids)) == 3


def test_a_later_launch_is_told_which_output_was_right(make):
    executor = make()
    first = executor.submit(case())
    first.agreement = Agreement(out_crc32=7)
    assert executor.time_again(first, 2).reason == "told 7"
    in_process = InProcessExecutor(executor.settings)
    assert in_process.time_again(first, 2).reason == "told 7"


def test_a_later_launch_that_crashes_costs_its_case_alone(make):
    executor = make()
    first = executor.submit(case())
    first.case["options"] = {"do": "segfault"}
    broken, after = executor.time_again(first, 2), executor.submit(case())
    assert broken.status == "crashed"
    assert "SIGSEGV" in (broken.reason or "")
    assert after.status == "ok"


@pytest.mark.parametrize(
    ("do", "status", "said"),
    [
        ("segfault", "crashed", ("SIGSEGV", "about to read address zero", "string_at")),
        ("killed", "crashed", ("SIGKILL",)),
        ("leave", "crashed", ("code 7",)),
        ("raise_error", "error", ("ZeroDivisionError: a block size of 0",)),
        ("exit_quietly", "error", ("SystemExit: no such option",)),
        ("nonsense", "error", ("no record", "excellent")),
        ("kill_server", "crashed", ("fork server died",)),
    ],
)
def test_what_goes_wrong_costs_one_case(make, do, status, said):
    executor = make()
    broken, after = executor.submit(case(do)), executor.submit(case())
    assert broken.status == status
    assert all(words in broken.reason for words in said)
    assert "\n" not in broken.reason
    assert broken.case_id == case(do).case_id
    assert broken.latency is None
    assert (broken.provenance.seed, broken.provenance.threads) == (42, 1), "how it was asked for is known"
    assert "before it could say what ran" in broken.unavailable["provenance"]
    assert after.status == "ok"


def test_an_exception_leaves_its_traceback_in_the_log(make, tmp_path):
    make().submit(case("raise_error"))
    log = (tmp_path / "worker.log").read_text(encoding="utf-8")
    assert "in raise_error" in log
    assert "ZeroDivisionError: a block size of 0" in log


def test_a_hanging_case_is_ended_with_all_it_started(make, tmp_path):
    executor = make(timeout_s=1.0)
    started = time.monotonic()
    record = executor.submit(case("hang"))
    assert 1.0 <= time.monotonic() - started < 15.0
    assert record.status == "timeout"
    assert "after 1 s" in record.reason
    grandchild = int((tmp_path / "grandchild").read_text(encoding="ascii"))
    assert ends_soon(grandchild)
    assert executor.submit(case()).status == "ok"


def ends_soon(pid: int) -> bool:
    """Whether a process that was killed is gone after a moment; on a busy machine it takes one."""
    until = time.monotonic() + 10.0
    while is_running(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_running(pid)


def is_running(pid: int) -> bool:
    """Whether a process still does something; one that nobody has collected doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_out_of_memory_is_a_finding_and_the_next_case_runs(torch_executor):
    """B07: ok, oom, ok."""
    executor = torch_executor(memory_limits={"cpu": GIB})
    statuses = [executor.submit(case(do)) for do in ("ok", "torch_out_of_memory", "need_healthy")]
    assert [record.status for record in statuses] == ["ok", "oom", "ok"]
    assert f"tried to allocate {int(2.5 * GIB)} bytes" in statuses[1].reason

    for do in ("allocate", "allocate_numpy"):
        limited = executor.submit(case(do))
        assert limited.status == "oom", limited.reason
        assert f"tried to allocate {2 * GIB} bytes; the limit is {GIB} bytes" in limited.reason


def test_with_a_larger_limit_the_same_allocation_succeeds(torch_executor):
    executor = torch_executor(memory_limits={"cpu": 4 * GIB})
    assert executor.submit(case("allocate")).status == "ok"


@pytest.mark.parametrize("isolate", ["case", "implementation"])
def test_a_poisoned_process_is_not_used_again(make, isolate):
    """B07: after an asynchronous device error every later call in that process fails."""
    executor = make(isolate)
    statuses = [executor.submit(case(do)).status for do in ("need_healthy", "poison", "need_healthy")]
    assert statuses == ["ok", "error", "ok"]


def test_an_implementation_can_keep_its_process(make):
    executor = make("implementation")
    workers = [
        executor.submit(case(number=number, implementation=name)).provenance.backend
        for number, name in enumerate(("naive", "naive", "sdpa", "sdpa", "naive"))
    ]
    assert workers[0] == workers[1]
    assert workers[2] == workers[3]
    assert len(set(workers)) == 3


def test_interpreted_cases_run_in_an_interpreting_process(make):
    executor = make(threads=3)
    native, interpreted = executor.submit(case()), executor.submit(case(interpret=True))
    assert native.provenance.execution == "native"
    assert interpreted.provenance.execution == "interpreted"
    assert native.provenance.threads == 3


def test_an_implementation_that_crashes_when_asked_costs_only_the_answer(make):
    executor = make(route="tests.run.tasks:route_crashes")
    assert executor.submit(case(interpret=True)).provenance.execution == "native"


def test_in_this_process_nothing_of_a_failed_case_is_kept(tmp_path, monkeypatch):
    """B07: the tensors of the failed case are gone, although its exception was seen."""
    import torch

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    tasks.KEPT.clear()
    with InProcessExecutor(settings(tmp_path)) as executor:
        statuses = [executor.submit(case(do)).status for do in ("ok", "torch_out_of_memory", "ok")]
    assert statuses == ["ok", "oom", "ok"]
    assert len(tasks.KEPT) == 1
    assert torch.UntypedStorage._expired(tasks.KEPT[0])
    assert executor.settings.task == "tests.run.tasks:by_option"


def test_a_kernel_that_does_not_fit_the_gpu_is_unsupported_and_the_run_goes_on(make):
    """E07: what only the compiler knew is no mistake of the case, and costs no other one."""
    executor = make("implementation")
    record, after = executor.submit(case("too_large_a_kernel")), executor.submit(case())
    assert record.status == "unsupported"
    assert record.latency is None
    assert record.reason.startswith("a kernel does not fit this GPU: out of resource: shared memory")
    assert "163840" in record.reason
    assert "101376" in record.reason
    assert after.status == "ok"


def test_in_process_interpreted_cases_still_leave_a_native_process(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with InProcessExecutor(settings(tmp_path)) as executor:
        here, there = executor.submit(case()), executor.submit(case(interpret=True))
    assert here.provenance.backend == str(os.getpid())
    assert there.provenance.backend != str(os.getpid())
    assert there.provenance.execution == "interpreted"


def test_the_fork_server_has_one_thread_and_has_touched_no_device(torch_executor):
    """E11: what forks the workers never initialised CUDA, and neither did we."""
    record = torch_executor().submit(case("look_at_server"))
    assert record.status == "ok", record.reason
    facts = {"threads": 1, "cuda_initialised": False, "bad_fork": False, "not_loaded": []}
    assert record.provenance.autotune == facts
    import torch

    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(("said", "value"), [(None, "1"), ("0", "0")])
def test_triton_is_told_whether_to_fuse_before_it_is_imported(make, monkeypatch, said, value):
    """Its default changes with its version; what a run records is what workers were started with."""
    monkeypatch.delenv(tasks.FUSION, raising=False)
    if said is not None:
        monkeypatch.setenv(tasks.FUSION, said)
    facts = make().submit(case("look_at_triton")).provenance.autotune
    assert facts == {"fused": value == "1", "here": value, "server": [f"{tasks.FUSION}={value}"]}
    assert environment()["variables"][tasks.FUSION] == value


def test_triton_in_this_process_is_told_the_same_for_as_long_as_a_case_takes(tmp_path, monkeypatch):
    monkeypatch.delenv(tasks.FUSION, raising=False)
    with InProcessExecutor(settings(tmp_path)) as executor:
        record = executor.submit(case("look_at_triton"))
    assert record.provenance.autotune["here"] == "1"
    assert tasks.FUSION not in os.environ


PARENT = """
import sys
from dataclasses import replace
from pathlib import Path
from attnbench.plan.case import Case
from attnbench.run.executor import ExecutorSettings, LocalExecutor
settings = ExecutorSettings(preload=(), task="tests.run.tasks:ok", route="tests.run.tasks:route")
with LocalExecutor(settings) as executor:
    assert executor.submit(Case(implementation="naive", seqlen_q=8)).status == "ok"
print(sorted({"torch", "triton", "pandas", "numpy"} & set(sys.modules)))
"""


@pytest.mark.parametrize(("server", "code", "said"), [("os.getppid()", 0, "alive\n"), ("os.getpid()", 1, "")])
def test_a_worker_whose_server_is_gone_already_ends(server, code, said):
    program = f"import os\nfrom attnbench.run.server import _die_with_server\n_die_with_server({server})\n"
    done = subprocess.run(
        [sys.executable, "-c", program + "print('alive')"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, said)


def test_our_own_process_loads_no_torch():
    """E11: a parent that has not even imported torch can't have initialised a device."""
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout
    assert "triton" not in done.stdout


def test_closing_ends_servers_and_workers(make, tmp_path):
    executor = make("implementation")
    worker = int(executor.submit(case()).provenance.backend)
    assert is_running(worker)
    executor.close()
    assert not is_running(worker)
