"""The deferred style: build a graph of placeholders and variables first, then run parts of it in a session.

    import stratal.deferred as sd

    x = sd.placeholder(sd.float32, [None, 3])
    w = sd.Variable(sd.zeros((3, 1)))
    loss = sd.square(sd.matmul(x, w) - 1.0).mean()
    step = sd.GradientDescentOptimizer(0.1).minimize(loss)
    with sd.Session() as session:
        session.run(sd.global_variables_initializer())
        session.run(step, feed_dict={x: data})

Every function on tensors stands here under its own name and builds nodes of the graph of its arguments, or of
the default graph. Inside `with graph:` those of `stratal` and `stratal.nn` do, too.
"""

from __future__ import annotations

from typing import Any

from stratal.base import dtypes
from stratal.deferred.graph import Deferred as Deferred
from stratal.deferred.graph import Graph as Graph
from stratal.deferred.graph import builds
from stratal.deferred.graph import get_default_graph as get_default_graph
from stratal.deferred.graph import get_default_session as get_default_session
from stratal.deferred.graph import reset_default_graph as reset_default_graph
from stratal.deferred.optimizers import AdagradOptimizer as AdagradOptimizer
from stratal.deferred.optimizers import AdamOptimizer as AdamOptimizer
from stratal.deferred.optimizers import GradientDescentOptimizer as GradientDescentOptimizer
from stratal.deferred.optimizers import MomentumOptimizer as MomentumOptimizer
from stratal.deferred.optimizers import Optimizer as Optimizer
from stratal.deferred.session import InteractiveSession as InteractiveSession
from stratal.deferred.session import Session as Session
from stratal.deferred.variable import Operation as Operation
from stratal.deferred.variable import Variable as Variable
from stratal.deferred.variable import assign as assign
from stratal.deferred.variable import assign_add as assign_add
from stratal.deferred.variable import assign_sub as assign_sub
from stratal.deferred.variable import global_variables as global_variables
from stratal.deferred.variable import global_variables_initializer as global_variables_initializer
from stratal.deferred.variable import gradients as gradients
from stratal.deferred.variable import group as group
from stratal.deferred.variable import placeholder as placeholder
from stratal.deferred.variable import trainable_variables as trainable_variables
from stratal.deferred.variable import variables_initializer as variables_initializer
from stratal.tensor.api.functions import FUNCTIONS
from stratal.tensor.functions import random
from stratal.tensor.transformations import control

_RANDOM = (
    "bernoulli", "multinomial", "normal", "rand", "rand_like", "randint", "randn", "randn_like", "randperm",
)  # fmt: skip
_CONTROL = ("cond", "fori_loop", "host_call", "scan", "while_loop")


def __getattr__(name: str) -> Any:
    if name in FUNCTIONS:
        value = builds(FUNCTIONS[name])
    elif name in _RANDOM or name in _CONTROL:
        value = builds(getattr(random if name in _RANDOM else control, name))
    elif isinstance(getattr(dtypes, name, None), dtypes.DType):
        value = getattr(dtypes, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *FUNCTIONS, *_RANDOM, *_CONTROL})
