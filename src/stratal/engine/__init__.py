"""Dependency engine: operations that name what they read and mutate, on threads, in a safe order."""

from stratal.engine.operation import EngineTimeoutError as EngineTimeoutError
from stratal.engine.operation import Operation as Operation
from stratal.engine.operation import Result as Result
from stratal.engine.operation import Variable as Variable
from stratal.engine.scheduler import Engine as Engine
