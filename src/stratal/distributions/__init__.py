"""Probability distributions, with the names and arguments of `torch.distributions`.

Draws follow `st.manual_seed`; `rsample` is differentiable by the parameters where it exists.
"""

from stratal.distributions.continuous import Cauchy as Cauchy
from stratal.distributions.continuous import Exponential as Exponential
from stratal.distributions.continuous import Gumbel as Gumbel
from stratal.distributions.continuous import HalfNormal as HalfNormal
from stratal.distributions.continuous import Laplace as Laplace
from stratal.distributions.continuous import LogNormal as LogNormal
from stratal.distributions.continuous import Normal as Normal
from stratal.distributions.continuous import Uniform as Uniform
from stratal.distributions.discrete import Bernoulli as Bernoulli
from stratal.distributions.discrete import Categorical as Categorical
from stratal.distributions.discrete import Geometric as Geometric
from stratal.distributions.distribution import Distribution as Distribution
from stratal.distributions.independent import Independent as Independent
from stratal.distributions.kl import kl_divergence as kl_divergence
