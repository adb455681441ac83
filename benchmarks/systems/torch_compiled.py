"""PyTorch through torch.compile (inductor, C++): the loss with its gradient; weights frozen for inference."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.systems import Job, torch_eager
from benchmarks.tasks import Task


def build(task: Task, variant: str, folder: Path) -> Job:
    """Return the task; what is compiled is all but the fused optimizer."""
    if task.suite == "forward":
        import torch._inductor.config as inductor

        inductor.freezing = True
    return torch_eager.build(task, variant, folder, compiled=lambda f: torch.compile(f, dynamic=False))
