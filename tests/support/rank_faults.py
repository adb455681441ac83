"""Run on every rank: rank 1 does what its argument says, the others go on to an all-reduce."""

from __future__ import annotations

import os
import signal
import sys
import time

from stratal import distributed as dist
from stratal.base import errors as base_errors
from stratal.distributed import own_call

FAULT = sys.argv[1]
dist.barrier()
if FAULT == "is stopped in MPI's call":
    dist.all_reduce([1.0, 2.0, 3.0], algorithm="mpi")
    if dist.rank() == 1:  # behind its line in the ledger, before MPI's call
        own_call.OwnCall.run = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)  # type: ignore[method-assign]
    dist.all_reduce([1.0, 2.0, 3.0], algorithm="mpi")
if dist.rank() == 1:
    if FAULT == "raises":
        raise ValueError("broken rank")
    if FAULT == "exits":
        sys.exit(5)
    if FAULT == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "is stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if FAULT == "makes another collective":
        dist.broadcast(3.0)
    if FAULT == "has another shape":
        dist.all_reduce([1.0, 2.0])
    if FAULT == "ends early":
        sys.exit(0)
    if FAULT == "has another program":
        dist.check_same("program b", "programs")
if FAULT == "interrupts itself" and dist.rank() == 1:
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        dist.all_reduce([1.0, 2.0, 3.0])
    except KeyboardInterrupt:
        print("KeyboardInterrupt", flush=True)
    try:
        dist.barrier()
    except base_errors.CallOrderError as error:
        print("later:", error.rule, flush=True)
        raise
if FAULT == "interrupts itself":
    time.sleep(60)
if FAULT == "has another program":
    dist.check_same("program a", "programs")
if FAULT == "sleeps":
    print("pid", os.getpid(), flush=True)
    time.sleep(60)
dist.all_reduce([1.0, 2.0, 3.0])
