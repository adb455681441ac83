"""Training: `Trainer` with fit, evaluate and predict, callbacks, and checkpoints that resume bit by bit.

`Classifier` and `Regressor` need scikit-learn, which is imported when one of them is first asked for.
"""

import sys
from typing import Any

from stratal.train.callbacks import EMA as EMA
from stratal.train.callbacks import CSVLog as CSVLog
from stratal.train.callbacks import EarlyStopping as EarlyStopping
from stratal.train.callbacks import Schedule as Schedule
from stratal.train.checkpoints import CheckpointManager as CheckpointManager
from stratal.train.checkpoints import DamagedCheckpointWarning as DamagedCheckpointWarning
from stratal.train.finite import NonFiniteError as NonFiniteError
from stratal.train.history import History as History
from stratal.train.provenance import ChangedProgramWarning as ChangedProgramWarning
from stratal.train.steps import StepOptions as StepOptions
from stratal.train.steps import TrainingStep as TrainingStep
from stratal.train.tensorboard import TensorBoard as TensorBoard
from stratal.train.trainer import Trainer as Trainer


def __getattr__(name: str) -> Any:
    if name not in ("Classifier", "Regressor"):
        from stratal.base.elsewhere import no_attribute

        raise no_attribute(sys.modules[__name__], "module 'stratal.train'", name)
    from stratal.train import estimators

    return getattr(estimators, name)
