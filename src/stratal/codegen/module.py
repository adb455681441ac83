"""One kernel as an LLVM module for a target: triple, function, attributes."""

from __future__ import annotations

from stratal.base.target import Target
from stratal.codegen.kernel import kernel_to_llvm
from stratal.codegen.streaming import streamed
from stratal.loops.stmt import Kernel


def kernel_module(kernel: Kernel, target: Target) -> str:
    """Return the LLVM text of a kernel as it is compiled for a target. Raises: VerifyError."""
    attributes = ["nounwind", *(f'"{k}"="{v}"' for k, v in target.function_attributes)]
    streams = streamed(kernel, target)
    text = kernel_to_llvm(kernel, " ".join(attributes), target.instructions, streams, masks=target.masks)
    return f'target triple = "{target.triple}"\n{text}'
