"""`tf.train`: optimizers."""

from stratal.deferred import AdagradOptimizer as AdagradOptimizer
from stratal.deferred import AdamOptimizer as AdamOptimizer
from stratal.deferred import GradientDescentOptimizer as GradientDescentOptimizer
from stratal.deferred import MomentumOptimizer as MomentumOptimizer
from stratal.deferred import Optimizer as Optimizer
