"""The fork server: a process that has imported the heavy libraries, touched no device, and forks workers.

A worker starts in some 20 ms with everything imported, and can still use CUDA, because its parent never did.
In: requests over a socket, `{"fork": log path}` with the worker's channel attached, and `{"kill": pid}`.
Out: `{"ready": modules that could not be imported}`, `{"forked": pid}`, and for each worker that ended
`{"ended": pid, "status": wait status, "peak_bytes": n}`. When the socket closes, workers and server end.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import traceback
from collections.abc import Sequence
from multiprocessing.connection import wait

import msgspec

_MESSAGE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1


def main(descriptor: int, preload: Sequence[str]) -> None:
    """Import `preload`, then serve requests from the socket `descriptor` until it closes."""
    control = socket.socket(fileno=descriptor)
    gc.disable()  # a third of the time that the imports take
    missing = [name for name in preload if not _import(name)]
    gc.enable()
    # Objects made so far stay out of every collection, so that workers don't copy their pages.
    gc.collect()
    gc.freeze()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_write)
    _send(control, {"ready": missing})
    workers: set[int] = set()
    while True:
        readable = wait([control, wake_read])
        if wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, _MESSAGE_BYTES)
            _report_ended(control, workers)
        if control in readable:
            message, descriptors, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 1)
            if not message:
                break
            request = msgspec.json.decode(message)
            if "fork" in request:
                pid = _fork(descriptors[0], request["fork"], (control.fileno(), wake_read, wake_write))
                workers.add(pid)
                _send(control, {"forked": pid})
            elif request.get("kill") in workers:
                _kill_group(request["kill"])
    for pid in workers:
        _kill_group(pid)
        os.waitpid(pid, 0)
    os._exit(0)  # without the libraries' own farewells


def _import(name: str) -> bool:
    """Import a module, or call `module:function`; what can't be had is the worker's to complain about."""
    module, _, function = name.partition(":")
    try:
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    except Exception:
        return False
    return True


def _send(control: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the other end is gone: the next read ends the server
        control.send(msgspec.json.encode(message))


def _report_ended(control: socket.socket, workers: set[int]) -> None:
    for pid in sorted(workers):
        # The group is ended while its leader's process id is still taken, so that no stranger can have it.
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            continue
        _kill_group(pid)
        _, status, usage = os.wait4(pid, 0)
        workers.discard(pid)
        _send(control, {"ended": pid, "status": status, "peak_bytes": usage.ru_maxrss * 1024})


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _die_with_server(server: int) -> None:
    """Have the kernel end this worker when its server dies: nobody else would end one that hangs."""
    with contextlib.suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:  # it died before
            os._exit(1)


def _fork(channel: int, log: str, inherited: Sequence[int]) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        os.close(channel)
        return pid
    code = 1
    try:
        os.setsid()
        _die_with_server(server)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in inherited:
            os.close(descriptor)
        from attnbench.run.worker import serve

        code = serve(channel, log)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # never back into the server's loop
