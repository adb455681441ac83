"""Optimizers and learning-rate schedules, with PyTorch's names, arguments and state."""

from stratal.optim import lr_scheduler as lr_scheduler
from stratal.optim import swa_utils as swa_utils
from stratal.optim.adadelta import Adadelta as Adadelta
from stratal.optim.adafactor import Adafactor as Adafactor
from stratal.optim.adagrad import Adagrad as Adagrad
from stratal.optim.adam import Adam as Adam
from stratal.optim.adam import AdamW as AdamW
from stratal.optim.adamax import Adamax as Adamax
from stratal.optim.asgd import ASGD as ASGD
from stratal.optim.layerwise import LAMB as LAMB
from stratal.optim.layerwise import LARS as LARS
from stratal.optim.lbfgs import LBFGS as LBFGS
from stratal.optim.lion import Lion as Lion
from stratal.optim.muon import Muon as Muon
from stratal.optim.nadam import NAdam as NAdam
from stratal.optim.optimizer import Optimizer as Optimizer
from stratal.optim.radam import RAdam as RAdam
from stratal.optim.rmsprop import RMSprop as RMSprop
from stratal.optim.rprop import Rprop as Rprop
from stratal.optim.sgd import SGD as SGD

__all__ = [
    "ASGD", "LAMB", "LARS", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax",
    "Lion", "Muon", "NAdam", "Optimizer", "RAdam", "RMSprop", "Rprop", "lr_scheduler", "swa_utils",
]  # fmt: skip
