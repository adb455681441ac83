"""What every distribution is: parameters that broadcast, draws, densities, moments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from stratal.base.errors import AttributeValueError, NotGivenError
from stratal.distributions.derived import derived
from stratal.tensor.api.explained import explain_methods
from stratal.tensor.build import as_tensor, broadcast_shapes, common_dtype, default_float, normalise, required
from stratal.tensor.functions import random
from stratal.tensor.functions.elementwise import exp, maximum, sqrt
from stratal.tensor.functions.shapes import broadcast_to
from stratal.tensor.tensor import Tensor
from stratal.tensor.values.state import MODE, no_grad

Rule = tuple[str, Callable[[Tensor], Tensor]]  # in words, and where it holds

REAL: Rule = ("real", lambda x: x == x)
POSITIVE: Rule = ("positive", lambda x: x > 0)
NONNEGATIVE: Rule = ("at least 0", lambda x: x >= 0)
UNIT: Rule = ("in [0, 1]", lambda x: (x >= 0) & (x <= 1))
BIT: Rule = ("0 or 1", lambda x: (x == 0) | (x == 1))
COUNT: Rule = ("a whole number from 0 up", lambda x: (x >= 0) & (x % 1 == 0))
SIMPLEX: Rule = (
    "at least 0 with sum 1 along the last axis",
    lambda x: (x >= 0).all(axis=-1) & (abs(x.sum(axis=-1) - 1) < 1e-6),
)

_TINY = 1.2e-38  # the smallest normal float32: draws that are inverted never meet the ends of their range


def sizes(sample_shape: Any) -> tuple[int, ...]:
    """Return the sizes of the axes of draws, given as a sequence or as one. Raises: AttributeValueError."""
    found = tuple(sample_shape) if hasattr(sample_shape, "__iter__") else (sample_shape,)
    if any(not hasattr(n, "__index__") for n in found):
        raise AttributeValueError("sample_shape is a sequence of sizes", got=repr(sample_shape))
    return found


class Distribution:
    """Base of every distribution: a batch of independent ones, one for each element of its parameters.

    A subclass gives `parameters` (names and what must hold of each), `support`, and of the methods below
    those that exist. `validate_args` checks parameters, and what `log_prob` and `cdf` are asked about; inside
    compiled functions kernels look, where something is computed of them. `own_axes` says of a parameter how
    many of its last axes one distribution has, none if it is not there.
    """

    parameters: ClassVar[dict[str, Rule]] = {}
    own_axes: ClassVar[dict[str, int]] = {}
    support: ClassVar[Rule] = REAL
    has_rsample: ClassVar[bool] = False
    event_shape: tuple[int, ...] = ()
    _validates_unasked: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        explain_methods(cls, "__init__", "log_prob", "cdf", "icdf", "rsample", "sample", "entropy", "expand")

    def __init__(self, validate_args: bool | None = None, **given: Any) -> None:
        self.validate_args, self._given = self._validates(validate_args), tuple(given)
        who = type(self).__name__
        tensors = {name: as_tensor(value, who) for name, value in given.items()}
        dtype = default_float(common_dtype(who, normalise(who, list(given.values()))))
        if not dtype.is_float:
            raise AttributeValueError(f"{who}: parameters are real numbers", got=str(dtype))
        batches, own = [], {}
        for name, value in tensors.items():
            cut = value.ndim - self.own_axes.get(name, 0)
            if cut < 0:
                raise AttributeValueError(
                    f"{who}: {name} has at least {self.own_axes[name]} axes", got=str(value.type)
                )
            batches.append(value.shape[:cut])
            own[name] = value.shape[cut:]
            tensors[name] = self._check(name, value, self.parameters[name])
        self.batch_shape: tuple[int, ...] = tuple(broadcast_shapes(who, *batches))  # type: ignore[arg-type]
        for name, value in tensors.items():
            setattr(self, name, broadcast_to(value.to(dtype), (*self.batch_shape, *own[name])))
        self.dtype = dtype

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Say whether distributions made from now on check their arguments where `validate_args` is None."""
        if not isinstance(value, bool):
            raise AttributeValueError("set_default_validate_args: takes a bool", got=repr(value))
        Distribution._validates_unasked = value

    def _validates(self, asked: bool | None) -> bool:
        return Distribution._validates_unasked if asked is None else bool(asked)

    def _check(self, name: str, value: Tensor, rule: Rule) -> Tensor:
        """Return a value of which a rule holds, over its last axes or for each element."""
        words, holds = rule
        if not self.validate_args:
            return value
        says = f"{type(self).__name__}: {name} must be {words}"
        held = holds(value.detach())
        if MODE.trace is not None:
            held = held.reshape((*held.shape, *(1,) * (value.ndim - held.ndim)))
            shape = broadcast_shapes("validate_args", value.shape, held.shape)
            return required(broadcast_to(value, shape), ~broadcast_to(held, shape), 1, says)
        if not bool(held.all()):
            raise AttributeValueError(
                says, got=str(value.detach()).replace("\n", " ")[:120],
                hint="validate_args=False leaves such checks out",
            )  # fmt: skip
        return value

    def _asked(self, value: Any) -> Tensor:
        x = as_tensor(value, type(self).__name__)
        return self._check("value", x, self.support).to(self.dtype)

    def __repr__(self) -> str:
        names = ", ".join(f"{name}: {getattr(self, name).type}" for name in self._given if name in vars(self))
        return f"{type(self).__name__}({names})"

    def _missing(self, what: str) -> Any:
        raise NotGivenError(f"{type(self).__name__}: has no {what}", got=repr(self))

    # -- draws ---------------------------------------------------------------------------------------------
    def _extended(self, sample_shape: Any) -> tuple[int, ...]:
        return (*sizes(sample_shape), *self.batch_shape, *self.event_shape)

    def _wide(self, parameter: Tensor, sample_shape: Any) -> Tensor:
        """Return a parameter once per draw."""
        return broadcast_to(parameter, (*sizes(sample_shape), *parameter.shape))

    def _uniform(self, sample_shape: Any) -> Tensor:
        """Return floats uniform in (0, 1)."""
        return maximum(random.uniform(self._extended(sample_shape), dtype=self.dtype), _TINY)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """Return draws, sample_shape + batch_shape + event_shape, differentiable by the parameters."""
        return self.icdf(self._uniform(sample_shape)) if self.has_rsample else self._missing("rsample")

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Return draws of shape sample_shape + batch_shape + event_shape, constants to derivatives."""
        with no_grad():
            return self.rsample(sample_shape).detach()

    # -- functions of a value ------------------------------------------------------------------------------
    def log_prob(self, value: Any) -> Tensor:
        """Return the logarithm of the density, or of the probability, at a value."""
        return self._missing("log_prob")

    def cdf(self, value: Any) -> Tensor:
        """Return the probability of at most a value."""
        return self._missing("cdf")

    def icdf(self, value: Any) -> Tensor:
        """Return the value that is not exceeded with a probability."""
        return self._missing("icdf")

    def entropy(self) -> Tensor:
        """Return the entropy in nats."""
        return self._missing("entropy")

    def perplexity(self) -> Tensor:
        """Return the exponential of the entropy."""
        return exp(self.entropy())

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """Return all values along a new axis in front, of one distribution each, or one for all."""
        return self._missing("finite support")

    def _enumerated(self, values: Tensor, expand: bool) -> Tensor:
        """Return a row of values along a new axis in front of the batch."""
        values = values.reshape((-1, *(1,) * len(self.batch_shape)))
        return broadcast_to(values, (values.shape[0], *self.batch_shape)) if expand else values

    # -- moments -------------------------------------------------------------------------------------------
    mean = derived(lambda d: d._missing("mean"))
    variance = derived(lambda d: d._missing("variance"))
    mode = derived(lambda d: d._missing("mode"))
    stddev = derived(lambda d: sqrt(d.variance))

    def expand(self, batch_shape: Any) -> Any:
        """Return the same distribution for a larger batch, to which the present one broadcasts."""
        shape = tuple(batch_shape)
        wide = {
            name: broadcast_to(value, shape + value.shape[value.ndim - self.own_axes.get(name, 0) :])
            for name, value in ((name, getattr(self, name)) for name in self._given)
        }
        return type(self)(**wide, validate_args=False)


class Located(Distribution):
    """A distribution whose mean and mode are its `loc`."""

    loc: Tensor

    mean = derived(lambda d: d.loc)
    mode = derived(lambda d: d.loc)


class Independent(Distribution):
    """`base` with its last `reinterpreted_batch_ndims` axes of the batch as axes of the event.

    Draws and moments are those of the base; log-densities and entropies are summed over these axes.
    """

    def __init__(
        self,
        base_distribution: Distribution,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        base, count = base_distribution, reinterpreted_batch_ndims
        if not 0 <= count <= len(base.batch_shape):
            raise AttributeValueError(
                "Independent: reinterprets at most as many axes as the batch has",
                got=f"{count} of {list(base.batch_shape)}",
            )
        self.base_dist, self.reinterpreted_batch_ndims = base, count
        self.validate_args, self.dtype = base.validate_args, base.dtype
        self.has_rsample = base.has_rsample  # type: ignore[misc]  # as its base
        cut = len(base.batch_shape) - count
        self.batch_shape, self.event_shape = base.batch_shape[:cut], base.batch_shape[cut:] + base.event_shape

    def __repr__(self) -> str:
        return f"Independent({self.base_dist}, {self.reinterpreted_batch_ndims})"

    def sum_events(self, x: Tensor) -> Tensor:
        """Return `x`, of one value per element of the base's batch, summed over the event."""
        count = self.reinterpreted_batch_ndims
        return x.sum(axis=tuple(range(-count, 0))) if count else x

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def log_prob(self, value: Any) -> Tensor:
        return self.sum_events(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        return self.sum_events(self.base_dist.entropy())

    mean = derived(lambda d: d.base_dist.mean)
    mode = derived(lambda d: d.base_dist.mode)
    variance = derived(lambda d: d.base_dist.variance)

    def expand(self, batch_shape: Any) -> Any:
        count = self.reinterpreted_batch_ndims
        kept = self.base_dist.batch_shape[len(self.base_dist.batch_shape) - count :]
        return Independent(self.base_dist.expand((*batch_shape, *kept)), count)
