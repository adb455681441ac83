"""The zygote: a process without threads and event loop that holds every model, run once, and forks workers.

What a worker needs is there when it is forked, shared with the zygote page by page: it answers in tens of
milliseconds and costs a few megabytes. A model is first loaded, compiled, run and measured in a probe, a fork
of its own that then answers batches as a worker does: a model that crashes, hangs or eats all memory takes
the probe with it and nothing else.

    control (packets, JSON): {"do": "load", "key", "path"} | {"do": "unload", "key"}   -> {"ok"} | {"error"}
                             {"do": "fork"} | {"do": "probe", "path"}   -> {"pid"} with a socket and a pidfd
    worker (frames):         {"model": key} inputs   -> {"seconds"} outputs | {"error"[, "missing"]}

Every process dies with its parent: none outlives the server, however it ends.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from stratal.base.errors import FormatError, StratalError
from stratal.base.processes import die_with_parent
from stratal.formats.artifact import FrozenModel
from stratal.formats.saved import load
from stratal.runtime.workspace import Workspace
from stratal.serve import frames
from stratal.serve.measuring import sample_input
from stratal.serve.stages import StagedModel, is_staged, load_stages

Model = FrozenModel | StagedModel
Models = dict[str, Model]
PACKET_BYTES: Final = 1 << 16
NICENESS: Final = 5  # the front end goes first: it answers health checks under load, too


def load_model(path: str) -> Model:
    """Return the frozen model of an artefact, or of a folder of stages. Raises: FormatError."""
    if is_staged(Path(path)):
        return load_stages(Path(path))
    model = load(path)
    if not isinstance(model, FrozenModel):
        raise FormatError("serve: not an artefact", got=os.path.basename(path),
                          hint="st.freeze(net, example).save(path) writes one")  # fmt: skip
    return model


def one_line(error: BaseException) -> str:
    """Return an error as text for a client: what was wrong, without lines of our source."""
    if isinstance(error, StratalError):
        return error.summary
    return f"{type(error).__name__}: {error}"[:500]


def run_worker(sock: socket.socket, models: Models) -> None:
    """Answer batches until the front end is gone."""
    receiver = frames.Receiver(sock)
    while (frame := receiver.next()) is not None:
        head, body = frame
        if (model := models.get(head["model"])) is None:  # it waited for a version that was let go meanwhile
            frames.send(sock, {"error": "this version is not loaded any more", "missing": True})
            continue
        try:
            started = time.perf_counter()
            outputs = _outputs(model, body)
            seconds = time.perf_counter() - started
        except Exception as error:
            frames.send(sock, {"error": one_line(error)})
        else:
            frames.send(sock, {"seconds": seconds}, [y.reshape(-1).view(np.uint8).data for y in outputs])


def _outputs(model: Model, body: memoryview) -> list[np.ndarray[Any, Any]]:
    """Return the outputs for the bytes of all inputs, one input after another."""
    specs = model.signature.inputs
    row_bytes = [s.row_bytes for s in specs]
    rows, rest = divmod(len(body), sum(row_bytes)) if sum(row_bytes) else (1, 0)
    if rest or not rows:
        raise FormatError("worker: the inputs are not whole rows", got=f"{len(body)} bytes")
    arrays, at = [], 0
    for spec, nbytes in zip(specs, row_bytes, strict=True):
        flat = np.frombuffer(body[at : at + rows * nbytes], np.uint8)
        at += rows * nbytes
        array = flat.view(spec.dtype.np).reshape((rows, *spec.shape) if spec.batched else spec.shape)
        arrays.append(array if array.flags.aligned else array.copy())
    return [np.ascontiguousarray(y) for y in model.run(arrays)]


def run_probe(sock: socket.socket, path: str) -> None:
    """Load, compile and run a model, say what it is, or what is wrong with it; then run it to be measured."""
    models: Models = {}
    try:
        model = models[path] = load_model(path)
        for size in model.batch_sizes:
            model.run_size(size, [sample_input(s, size) for s in model.signature.inputs])
        assert model.origin is not None
        answer = {
            "name": model.name, "content": model.origin.content, "stratal": model.origin.stratal,
            "signature": model.signature.to_json(), "weight_bytes": model.weight_bytes,
            "sizes": list(model.batch_sizes),
            "training_rows": len(next(iter(model.training.values()), ())),
        }  # fmt: skip
        training = [model.training[s.name].tobytes() for s in model.signature.inputs if model.training]
    except Exception as error:
        answer, training = {"error": one_line(error)}, []
    frames.send(sock, answer, training)
    run_worker(sock, models)


class Zygote:
    """The state of the process: its control socket and the models it holds."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.models: Models = {}
        self.workspace = Workspace()

    def serve(self) -> None:
        """Obey the front end until it is gone."""
        while data := self.control.recv(PACKET_BYTES):
            _reap()
            command = json.loads(data)
            try:
                answer, descriptors = self._obey(command)
            except Exception as error:
                answer, descriptors = {"error": one_line(error)}, []
            socket.send_fds(self.control, [json.dumps(answer).encode()], descriptors)
            for fd in descriptors:
                os.close(fd)

    def _obey(self, command: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        match command["do"]:
            case "load":
                model = load_model(command["path"])
                self._prepare(model)
                self.models[command["key"]] = model
                return {"content": model.origin.content if model.origin else ""}, []
            case "unload":
                self.models.pop(command["key"], None)
                return {"ok": True}, []
            case "fork":
                return self._fork("")
            case "probe":
                return self._fork(command["path"])
        return {"error": f"no command {command['do']}"}, []

    def _prepare(self, model: Model) -> None:
        """Run a model once for each batch size, so that children share the prepared weights.

        They compute in one workspace, which a child gets pages of its own for. The largest size comes first.
        """
        if isinstance(model, FrozenModel):
            model.workspace = self.workspace
        for size in sorted(model.batch_sizes, reverse=True):
            model.run_size(size, [sample_input(s, size) for s in model.signature.inputs])

    def _fork(self, path: str) -> tuple[dict[str, Any], list[int]]:
        parent = os.getpid()
        front, own = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            self._child(parent, front, own, path)
        own.close()
        return {"pid": pid}, [front.detach(), os.pidfd_open(pid)]  # not reaped yet: the pid is still its own

    def _child(self, parent: int, front: socket.socket, own: socket.socket, path: str) -> NoReturn:
        status = 1
        try:
            die_with_parent(parent=parent)
            self.control.close()
            front.close()
            os.nice(NICENESS)
            gc.freeze()  # going through what is shared would copy it, page by page
            if path:
                run_probe(own, path)
            else:
                run_worker(own, self.models)
            status = 0
        except (BrokenPipeError, ConnectionResetError):
            pass  # the front end is gone
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


def _reap() -> None:
    """Collect the exit status of children that ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main() -> None:
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with_parent(parent=parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front end drains, then closes the control socket
    Zygote(socket.socket(fileno=descriptor)).serve()


if __name__ == "__main__":
    main()
