"""Optimizers and learning-rate schedules, with PyTorch's names, arguments and state."""

from stratal.optim import lr_scheduler as lr_scheduler
from stratal.optim.adagrad import Adagrad as Adagrad
from stratal.optim.adam import Adam as Adam
from stratal.optim.adam import AdamW as AdamW
from stratal.optim.optimizer import Optimizer as Optimizer
from stratal.optim.rmsprop import RMSprop as RMSprop
from stratal.optim.sgd import SGD as SGD

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSprop", "lr_scheduler"]
