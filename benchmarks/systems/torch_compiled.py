"""PyTorch through torch.compile (inductor, C++): the loss with its gradient; weights frozen for inference."""

from __future__ import annotations

from pathlib import Path

import torch
import torch._inductor.config as inductor

from benchmarks.systems import Job, torch_eager
from benchmarks.task import Task


def build(task: Task, variant: str, model_file: Path) -> Job:
    """Return the task; what is compiled is all but the fused optimizer."""
    inductor.freezing = task.suite == "forward"
    return torch_eager.build(task, variant, model_file, compiled=lambda f: torch.compile(f, dynamic=False))
