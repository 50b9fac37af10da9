"""Our end of a fork server: start it, have it fork workers, talk to them, and learn how they ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import msgspec

from attnbench.run.worker import Answer, Job

# Importing torch from a cold disk can take a minute; afterwards the server answers at once.
_START_S = 300.0
_ANSWER_S = 10.0
_MESSAGE_BYTES = 1 << 16
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from attnbench.run.server import main; main(int(sys.argv[2]), sys.argv[3:])"
)


class ServerError(RuntimeError):
    """The fork server could not be started, or ended."""


@dataclass(frozen=True)
class Ending:
    """How a worker ended: exit code (negative: a signal; None: its server died), the most memory it held."""

    exit_code: int | None = None
    peak_bytes: int | None = None

    @property
    def words(self) -> str:
        """The same in words."""
        if self.exit_code is None:
            return "its fork server died"
        if self.exit_code < 0:
            return f"killed by {_signal_name(-self.exit_code)}"
        return f"exited with code {self.exit_code} without an answer"


class WorkerEndedError(RuntimeError):
    """The worker ended without an answer."""

    def __init__(self, ending: Ending) -> None:
        """Keep how it ended."""
        super().__init__(ending.words)
        self.ending = ending


class ForkServer:
    """A fork server with an environment of its own; `fork` starts it, and again after it died."""

    def __init__(self, environment: Mapping[str, str], preload: Sequence[str], log: Path) -> None:
        """Remember how to start it.

        Args:
            environment: all variables of the server and its workers.
            preload: modules that it imports, or `module:function` that it calls, once for all workers.
            log: file that takes the output of the server and of its workers.
        """
        self._environment = dict(environment)
        self._preload = tuple(preload)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._endings: dict[int, Ending] = {}

    @property
    def pid(self) -> int | None:
        """Process id of the running server."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the server unless it runs; its imports go on while we do something else."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # The same modules are found there as here, wherever this process was started from.
        path = json.dumps([entry or str(Path.cwd()) for entry in sys.path])
        with theirs, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, path, str(theirs.fileno()), *self._preload],
                env=self._environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # an interrupt from the terminal reaches our process alone
            )

    def wait_until_ready(self) -> None:
        """Start the server unless it runs, and wait for its imports.

        Raises:
            ServerError: it ended instead.
        """
        self.start()
        if self._ready:
            return
        try:
            self._receive("ready", _START_S)
        except ServerError:
            self.close()
            raise
        self._ready = True

    def fork(self) -> Worker:
        """A fresh worker.

        Raises:
            ServerError: the server doesn't start, or doesn't answer.
        """
        self.wait_until_ready()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._send({"fork": str(self._log)}, theirs.fileno())
                pid = self._receive("forked", _ANSWER_S)["forked"]
            except ServerError:
                ours.close()
                self.close()
                raise
        return Worker(self, pid, Connection(ours.detach()))

    def wait(self, pid: int, channel: Connection | None, timeout_s: float) -> Ending | None:
        """Wait until the channel has something (None) or the worker has ended.

        Raises:
            TimeoutError: neither happened in time.
        """
        until = time.monotonic() + timeout_s
        while (ending := self._endings.pop(pid, None)) is None:
            if self._control is None:
                return Ending()
            sources: list[socket.socket | Connection] = [self._control]
            sources += [] if channel is None else [channel]
            ready = wait(sources, max(0.0, until - time.monotonic()))
            if channel in ready:
                return None
            if not ready:
                raise TimeoutError
            try:
                self._receive("", 0.0)
            except ServerError:
                self.close()
                _kill_group(pid)
                return Ending()
        return ending

    def kill(self, pid: int) -> None:
        """Have a worker and everything it started killed."""
        with contextlib.suppress(ServerError):
            self._send({"kill": pid})

    def close(self) -> None:
        """End the server; its workers are killed."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            if not self._ready:  # it would go on importing before it noticed
                _kill_group(self._process.pid)
            self._ready = False
            try:
                self._process.wait(_ANSWER_S)
            except subprocess.TimeoutExpired:
                _kill_group(self._process.pid)
                self._process.wait()
            self._process = None

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        try:
            if self._control is not None:
                socket.send_fds(self._control, [msgspec.json.encode(message)], descriptors)
        except OSError as error:
            raise ServerError(f"the fork server is gone: {error.strerror}") from None

    def _receive(self, key: str, timeout_s: float) -> dict[str, Any]:
        """The next message that has `key` (the next at all for ""); endings are remembered on the way."""
        until = time.monotonic() + timeout_s
        while True:
            if self._control is None or not wait([self._control], max(0.0, until - time.monotonic())):
                raise ServerError(f"the fork server said nothing for {timeout_s:g} s")
            try:
                received = self._control.recv(_MESSAGE_BYTES)
            except OSError as error:
                raise ServerError(f"the fork server is gone: {error.strerror}") from None
            if not received:
                raise ServerError("the fork server ended")
            message: dict[str, Any] = msgspec.json.decode(received)
            if "ended" in message:
                code = os.waitstatus_to_exitcode(message["status"])
                self._endings[message["ended"]] = Ending(code, message["peak_bytes"])
            if not key or key in message:
                return message


class Worker:
    """One forked worker, seen from here."""

    def __init__(self, server: ForkServer, pid: int, channel: Connection) -> None:
        """Keep its server, process id and channel."""
        self.pid = pid
        self._server = server
        self._channel = channel

    def call(self, job: Job, timeout_s: float) -> Answer:
        """Give the worker a job and wait for what becomes of it.

        Raises:
            TimeoutError: no answer in time; the worker is killed.
            WorkerEndedError: it died of it, or its server did.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: found out below
            self._channel.send_bytes(msgspec.json.encode(job))
        try:
            ending = self._server.wait(self.pid, self._channel, timeout_s)
        except TimeoutError:
            self.kill()
            raise
        if ending is None or self._channel.poll():
            with contextlib.suppress(EOFError, OSError):
                return msgspec.json.decode(self._channel.recv_bytes(), type=Answer)
        self._channel.close()
        raise WorkerEndedError(ending or self._last_words())

    def kill(self) -> None:
        """End the worker and everything it started."""
        self._server.kill(self.pid)
        self.close()

    def close(self) -> None:
        """Let the worker end, and wait for it, so that the next one has the machine for itself."""
        self._channel.close()
        self._last_words()

    def _last_words(self) -> Ending:
        try:
            return self._server.wait(self.pid, None, _ANSWER_S) or Ending()
        except TimeoutError:
            self._server.kill(self.pid)
        with contextlib.suppress(TimeoutError):
            return self._server.wait(self.pid, None, _ANSWER_S) or Ending()
        self._server.close()  # not even a kill ends it: leave it behind, with its server
        return Ending()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
