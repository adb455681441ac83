"""TensorFlow 1's names for deferred programs: `import stratal.compat.tf1 as tf`.

Names and arguments are TensorFlow's, images have channels last; everything is `stratal.deferred` underneath.
"""

from stratal.base.dtypes import bool_ as bool  # noqa: F401  TensorFlow's name
from stratal.base.dtypes import float16 as float16
from stratal.base.dtypes import float32 as float32
from stratal.base.dtypes import float64 as float64
from stratal.base.dtypes import int8 as int8
from stratal.base.dtypes import int16 as int16
from stratal.base.dtypes import int32 as int32
from stratal.base.dtypes import int64 as int64
from stratal.base.dtypes import uint8 as uint8
from stratal.compat.tf1 import nn as nn
from stratal.compat.tf1 import train as train
from stratal.compat.tf1.functions import *  # noqa: F403  a page of names, listed in `__all__` there
from stratal.compat.tf1.session import InteractiveSession as InteractiveSession
from stratal.compat.tf1.session import Session as Session
from stratal.compat.tf1.session import set_random_seed as set_random_seed
from stratal.deferred import Deferred as Tensor  # noqa: F401  what TensorFlow calls it
from stratal.deferred import Graph as Graph
from stratal.deferred import Operation as Operation
from stratal.deferred import Variable as Variable
from stratal.deferred import assign as assign
from stratal.deferred import assign_add as assign_add
from stratal.deferred import assign_sub as assign_sub
from stratal.deferred import get_default_graph as get_default_graph
from stratal.deferred import get_default_session as get_default_session
from stratal.deferred import global_variables as global_variables
from stratal.deferred import global_variables_initializer as global_variables_initializer
from stratal.deferred import gradients as gradients
from stratal.deferred import group as group
from stratal.deferred import placeholder as placeholder
from stratal.deferred import reset_default_graph as reset_default_graph
from stratal.deferred import trainable_variables as trainable_variables
from stratal.deferred import variables_initializer as variables_initializer

initialize_all_variables = global_variables_initializer
