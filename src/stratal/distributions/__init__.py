"""Probability distributions, with the names and arguments of `torch.distributions`.

Draws follow `st.manual_seed`; `rsample` is differentiable by the parameters where it exists.
"""

from stratal.distributions import transforms as transforms
from stratal.distributions.continuous import Cauchy as Cauchy
from stratal.distributions.continuous import Exponential as Exponential
from stratal.distributions.continuous import Gumbel as Gumbel
from stratal.distributions.continuous import HalfCauchy as HalfCauchy
from stratal.distributions.continuous import HalfNormal as HalfNormal
from stratal.distributions.continuous import Laplace as Laplace
from stratal.distributions.continuous import Normal as Normal
from stratal.distributions.continuous import Uniform as Uniform
from stratal.distributions.continuous import VonMises as VonMises
from stratal.distributions.counts import Binomial as Binomial
from stratal.distributions.counts import Multinomial as Multinomial
from stratal.distributions.counts import NegativeBinomial as NegativeBinomial
from stratal.distributions.counts import Poisson as Poisson
from stratal.distributions.discrete import Bernoulli as Bernoulli
from stratal.distributions.discrete import Categorical as Categorical
from stratal.distributions.discrete import Geometric as Geometric
from stratal.distributions.discrete import OneHotCategorical as OneHotCategorical
from stratal.distributions.discrete import (
    OneHotCategoricalStraightThrough as OneHotCategoricalStraightThrough,
)
from stratal.distributions.distribution import Distribution as Distribution
from stratal.distributions.distribution import Independent as Independent
from stratal.distributions.gammas import Beta as Beta
from stratal.distributions.gammas import Chi2 as Chi2
from stratal.distributions.gammas import Dirichlet as Dirichlet
from stratal.distributions.gammas import FisherSnedecor as FisherSnedecor
from stratal.distributions.gammas import Gamma as Gamma
from stratal.distributions.gammas import InverseGamma as InverseGamma
from stratal.distributions.gammas import StudentT as StudentT
from stratal.distributions.kl import kl_divergence as kl_divergence
from stratal.distributions.kl import register_kl as register_kl
from stratal.distributions.matrices import LKJCholesky as LKJCholesky
from stratal.distributions.matrices import Wishart as Wishart
from stratal.distributions.multivariate import LowRankMultivariateNormal as LowRankMultivariateNormal
from stratal.distributions.multivariate import MixtureSameFamily as MixtureSameFamily
from stratal.distributions.multivariate import MultivariateNormal as MultivariateNormal
from stratal.distributions.relaxed import ExpRelaxedCategorical as ExpRelaxedCategorical
from stratal.distributions.relaxed import LogitRelaxedBernoulli as LogitRelaxedBernoulli
from stratal.distributions.relaxed import RelaxedBernoulli as RelaxedBernoulli
from stratal.distributions.relaxed import RelaxedOneHotCategorical as RelaxedOneHotCategorical
from stratal.distributions.transformed import Kumaraswamy as Kumaraswamy
from stratal.distributions.transformed import LogisticNormal as LogisticNormal
from stratal.distributions.transformed import LogNormal as LogNormal
from stratal.distributions.transformed import Pareto as Pareto
from stratal.distributions.transformed import TransformedDistribution as TransformedDistribution
from stratal.distributions.transformed import Weibull as Weibull
from stratal.distributions.transforms import *  # noqa: F403
