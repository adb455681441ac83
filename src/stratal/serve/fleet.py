"""The front end's side of its processes: the zygote's control socket, and a handle for every worker."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

from stratal.base.errors import FormatError, StratalError
from stratal.formats.signature import signature_from_json
from stratal.serve import frames
from stratal.serve.measuring import measured_round_trips
from stratal.serve.zygote import PACKET_BYTES

COMMAND_SECONDS: Final = 300.0  # it loads models, maybe beside others that take the machine


class FleetError(StratalError, RuntimeError):
    """A process of the server that ended, hangs, or refuses."""

    advice = "the server's standard error has what the process wrote last"
    status = 400  # HTTP's, where a request asked for what failed


class ZygoteEndedError(FleetError):
    """There is no zygote for now: nothing that was asked for is to blame."""

    status = 503


Frame = tuple[frames.Head, bytes]
Answered = Callable[[Frame | FleetError], None]


class _Frames(asyncio.Protocol):
    """The socket of a process: one frame goes to it, one comes back."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.early: list[Frame] = []  # what came before it was asked for
        self._waiting: Answered | None = None
        self._decoder = frames.Decoder()
        self._lost = False

    def wait(self, answered: Answered) -> None:
        """Let `answered` have the next frame, or the error that there will be none; once, maybe at once."""
        self._waiting = answered
        if self.early:
            self._answer(self.early.pop(0))
        elif self._lost:
            self.connection_lost(None)

    def _answer(self, found: Frame | FleetError) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting(found)
        elif not isinstance(found, FleetError):
            self.early.append(found)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport  # uvloop's is no asyncio.Transport

    def data_received(self, data: bytes) -> None:
        try:
            found = self._decoder.feed(data)
        except StratalError as error:
            self._answer(FleetError("worker: what it sent is no frame", got=error.summary))
            return
        for frame in found:
            self._answer(frame)

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._answer(FleetError("worker: ended before it answered"))


class Process:
    """A forked worker or probe: frames to and from it, and word of its end (by pidfd)."""

    def __init__(self, pid: int, pidfd: int, connection: _Frames, zygote: subprocess.Popen[bytes]) -> None:
        self.pid = pid
        self.ended = asyncio.get_running_loop().create_future()
        self.free_at = 0.0  # when the batch it runs should be done
        self.busy = False
        self.retiring = False
        self._zygote = zygote
        self._pidfd = pidfd
        self._connection = connection
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        self.close()
        self.ended.set_result(None)

    def send(self, head: frames.Head, parts: Iterable[frames.Bytes], answered: Answered) -> None:
        """Send a frame; `answered` is called with what comes back, or with the error that nothing does."""
        if self._connection.transport is not None and not self._connection.transport.is_closing():
            self._connection.transport.writelines(frames.encode(head, parts))
        self._connection.wait(answered)

    async def call(self, head: frames.Head, parts: Iterable[frames.Bytes] = ()) -> Frame:
        """Send a frame and return the answer. Raises: FleetError where the process ends before it answers."""
        return await self._awaited(functools.partial(self.send, head, parts))

    async def answer(self) -> Frame:
        """Return the next frame from the process. Raises: FleetError."""
        return await self._awaited(self._connection.wait)

    async def _awaited(self, begin: Callable[[Answered], None]) -> Frame:
        waiting: asyncio.Future[Frame | FleetError] = asyncio.get_running_loop().create_future()
        begin(lambda found: None if waiting.done() else waiting.set_result(found))
        found = await waiting
        if isinstance(found, FleetError):
            raise FleetError(found.rule, got=f"process {self.pid}")
        return found

    async def zygote_ended(self) -> bool:
        """Return whether its zygote ended, and with it all its workers, which may be gone a moment before."""
        for _ in range(20):
            if self._zygote.poll() is not None:
                return True
            await asyncio.sleep(0.01)
        return False

    def kill(self) -> None:
        """End the process at once; of one that ended, nothing happens, whoever has its number now."""
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Let a worker end by itself: it does when its socket is closed."""
        if self._connection.transport is not None:
            self._connection.transport.close()


class Fleet:
    """The zygote: commands to it, one at a time."""

    module: ClassVar[str] = "stratal.serve.zygote"  # benchmarks have one with another system's models

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def alive(self) -> bool:
        """Whether the zygote runs; where it ended, its workers end by that alone."""
        return self._control is not None and self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start a zygote, in a session of its own: Ctrl-C is for the front end, which drains."""
        front, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        front.setblocking(False)
        with own:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, str(own.fileno()), str(os.getpid())],
                pass_fds=[own.fileno()], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True,
                env={**os.environ, "STRATAL_THREADS": "1"},
            )  # fmt: skip
        self._control = front

    async def restart(self) -> None:
        """Start a zygote in the place of one that ended."""
        async with self._lock:  # a command to the old one is told of its end first
            self._forget()
            self.start()

    async def command(self, **command: Any) -> tuple[dict[str, Any], list[int]]:
        """Send a command; return the answer and its file descriptors. Raises: FleetError."""
        async with self._lock:
            control = self._control
            if control is None:
                raise ZygoteEndedError("zygote: is not running")
            try:
                await asyncio.get_running_loop().sock_sendall(control, json.dumps(command).encode())
                data, fds = await _receive(control)
            except ConnectionError:
                data, fds = b"", []
        if not data:
            if self._control is control:
                self._forget()
            raise ZygoteEndedError("zygote: ended before it answered", got=command["do"])
        answer = json.loads(data)
        if "error" in answer:
            raise FleetError("zygote: refused", got=answer["error"])
        return answer, fds

    async def fork(self, path: str = "") -> Process:
        """Return a new worker; with the path of an artefact, a probe of it. Raises: FleetError."""
        command = {"do": "probe", "path": path} if path else {"do": "fork"}
        answer, (sock, pidfd) = await self.command(**command)
        zygote = self._process  # the one that answered: nothing else has run since
        assert zygote is not None
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Frames, sock=socket.socket(fileno=sock))
        return Process(answer["pid"], pidfd, connection, zygote)

    async def probe(self, path: str, seconds: float) -> dict[str, Any]:
        """Return what a probe says of an artefact, and how long its batches take there and back.

        Raises: FleetError where it ends, hangs or refuses it.
        """
        process = await self.fork(path)
        try:
            async with asyncio.timeout(seconds):
                answer, training = await process.answer()
                if "error" not in answer:
                    answer |= await _measured(process, path, answer)
        except TimeoutError:
            raise FleetError("load: the model does not load and run in time", got=f"{seconds:g} s") from None
        except FleetError as error:
            raise FleetError(
                "load: the model brought down the process that tried it", got=error.got
            ) from None
        finally:
            process.kill()
        if "error" in answer:
            raise FleetError("load: the model is refused", got=answer["error"])
        return answer | {"training": training}

    def _forget(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    async def close(self, seconds: float = 5.0) -> None:
        """End the zygote and with it every worker."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            waiting = asyncio.get_running_loop().run_in_executor(None, self._process.wait)
            try:
                await asyncio.wait_for(asyncio.shield(waiting), seconds)
            except TimeoutError:
                self._process.kill()
                await waiting
            self._process = None


async def _measured(process: Process, path: str, said: dict[str, Any]) -> dict[str, Any]:
    """Return the latencies of a model that a probe has. Raises: FleetError."""

    async def run(parts: list[bytes]) -> float:
        waiting: asyncio.Future[tuple[Frame | FleetError, float]] = loop.create_future()
        started = time.monotonic()
        process.send({"model": path}, parts, lambda found: waiting.set_result((found, time.monotonic())))
        found, ended = await waiting
        if isinstance(found, FleetError):
            raise FleetError(found.rule, got=f"process {process.pid}")
        if "error" in found[0]:
            raise FleetError("load: the model is refused", got=found[0]["error"])
        return ended - started

    loop = asyncio.get_running_loop()
    try:
        signature = signature_from_json(said["signature"])
    except FormatError as error:
        raise FleetError("load: the model is refused", got=error.summary) from error
    found = await measured_round_trips(signature, said["sizes"], run)
    return {"seconds": found.high.seconds, "typical": found.typical.seconds}


async def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next packet and its descriptors."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(control, ready.set)
    try:
        await asyncio.wait_for(ready.wait(), COMMAND_SECONDS)
    except TimeoutError:
        return b"", []  # it hangs: the same as if it had ended
    finally:
        loop.remove_reader(control)
    data, fds, _, _ = socket.recv_fds(control, PACKET_BYTES, 2)
    return data, list(fds)
