"""Capture: `st.compile`, which runs a function once per signature and replays what it did as one program."""

from stratal.tensor.capture.compiled import Compiled, CompiledModule, compile
from stratal.tensor.capture.frozen import frozen
from stratal.tensor.values.state import note_mutation

__all__ = ["Compiled", "CompiledModule", "compile", "frozen", "note_mutation"]
