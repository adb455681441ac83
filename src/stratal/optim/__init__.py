"""Optimizers and learning-rate schedules, with PyTorch's names, arguments and state."""

from stratal.optim import lr_scheduler, swa_utils
from stratal.optim.adagrad import Adadelta, Adafactor, Adagrad, RMSprop
from stratal.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from stratal.optim.layerwise import LAMB, LARS
from stratal.optim.lbfgs import LBFGS
from stratal.optim.muon import Muon
from stratal.optim.optimizer import Optimizer
from stratal.optim.sgd import ASGD, SGD
from stratal.optim.signs import Lion, Rprop

__all__ = [
    "ASGD", "LAMB", "LARS", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax",
    "Lion", "Muon", "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler", "swa_utils",
]  # fmt: skip
