"""Learning-rate schedules: what each parameter group's rate is after so many steps.

Rates are computed in double precision by the same recurrences as PyTorch's, so the values are equal to the
bit. They are runtime inputs of compiled steps: a schedule never recompiles.
"""

from stratal.optim.lr_scheduler.base import LRScheduler as LRScheduler
from stratal.optim.lr_scheduler.compose import ChainedScheduler as ChainedScheduler
from stratal.optim.lr_scheduler.compose import SequentialLR as SequentialLR
from stratal.optim.lr_scheduler.cosine import CosineAnnealingLR as CosineAnnealingLR
from stratal.optim.lr_scheduler.cosine import CosineAnnealingWarmRestarts as CosineAnnealingWarmRestarts
from stratal.optim.lr_scheduler.cosine import WarmupCosineLR as WarmupCosineLR
from stratal.optim.lr_scheduler.cycles import CyclicLR as CyclicLR
from stratal.optim.lr_scheduler.cycles import OneCycleLR as OneCycleLR
from stratal.optim.lr_scheduler.decay import ConstantLR as ConstantLR
from stratal.optim.lr_scheduler.decay import ExponentialLR as ExponentialLR
from stratal.optim.lr_scheduler.decay import LambdaLR as LambdaLR
from stratal.optim.lr_scheduler.decay import LinearLR as LinearLR
from stratal.optim.lr_scheduler.decay import MultiplicativeLR as MultiplicativeLR
from stratal.optim.lr_scheduler.decay import MultiStepLR as MultiStepLR
from stratal.optim.lr_scheduler.decay import PolynomialLR as PolynomialLR
from stratal.optim.lr_scheduler.decay import StepLR as StepLR
from stratal.optim.lr_scheduler.plateau import ReduceLROnPlateau as ReduceLROnPlateau

_LRScheduler = LRScheduler  # PyTorch's older name
