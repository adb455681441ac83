"""Random tensors, from explicit keys or from the default generator, whose state is a cell like a parameter.

A key is a uint64 scalar tensor; equal keys give equal numbers, on any machine and number of threads. The
generator hands out a new key per draw by a Weyl sequence: its keys do not repeat within 2**64 draws.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stratal.base import settings
from stratal.base.dtypes import as_dtype, int64, uint64
from stratal.base.errors import AttributeValueError, DTypeError
from stratal.graph.builder import Builder
from stratal.tensor.build import as_tensor, call, full, looked_at, required, where_now
from stratal.tensor.device import check_device
from stratal.tensor.functions.elementwise import FUNCTIONS, cast, where
from stratal.tensor.functions.naming import named
from stratal.tensor.functions.reductions import amax, argmax
from stratal.tensor.functions.shapes import as_shape, broadcast_to, narrow, reshape
from stratal.tensor.tensor import Tensor, tensor, wrap
from stratal.tensor.values.binding import node_and_track, rebind
from stratal.tensor.values.handle import CONSTANT, set_node
from stratal.tensor.values.live import share
from stratal.tensor.values.state import LOCK, MODE, tracing

_STRIDE = 0x9E3779B97F4A7C15  # odd, so that adding it visits every uint64
_HOST = 0x5851F42D4C957F2D  # keys drawn for the host come from a sequence of their own
_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """Return a well-mixed uint64 of an int (Steele, Lea and Flood, 2014: the finaliser of SplitMix64)."""
    x = (x + _STRIDE) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _same_leaf(tensor: Tensor) -> Tensor:
    """Return a tensor on the very node of another: what is drawn from it and its next value go together."""
    node, _ = node_and_track(tensor)
    made = wrap(node, CONSTANT)
    if made._storage is not None and made._trace is None:
        set_node(made, node, CONSTANT)
        if tensor._storage is not None:  # else it takes what the node holds when it is asked for
            share(tensor)
    return made


class Generator:
    """A stream of keys. Its state is a tensor: a compiled step reads it and writes it back."""

    def __init__(self, seed: int = 0) -> None:
        self._state: Tensor = tensor(np.uint64(0))
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start again from a seed and return self."""
        self._seed = _seed("manual_seed", seed)
        self._host_draws = 0
        rebind(self._state, *node_and_track(tensor(np.uint64(_mix(self._seed)))))
        return self

    def initial_seed(self) -> int:
        """Return the seed this generator started from."""
        return self._seed

    def next_key(self) -> Tensor:
        """Return a key that was not handed out before."""
        with LOCK:  # no other thread draws the same one
            key = _same_leaf(self._state)
            node, _ = node_and_track(self._state)
            b = Builder(where_now())
            rebind(self._state, b.add(node, full("random", _STRIDE, uint64, ())), CONSTANT)
        return key if MODE.trace is None else MODE.trace.drawn(key)

    def next_host_key(self) -> int:
        """Return a key for NumPy's generators, from a sequence of its own. Raises: CaptureError."""
        if MODE.trace is not None:
            MODE.trace.draws_once()
        with LOCK:
            self._host_draws += 1
            return _mix((_mix(self._seed ^ _HOST) + self._host_draws) & _MASK)

    def get_state(self) -> Tensor:
        """Return the state as a tensor of three uint64, to be saved."""
        return tensor(np.array([self._seed, int(self._state), self._host_draws], np.uint64))

    def set_state(self, state: Any) -> None:
        """Go on from a state that `get_state` returned."""
        found = np.asarray(state)
        if found.shape != (3,) or found.dtype != np.uint64:
            raise DTypeError("set_state: a state is three uint64, as get_state returns", got=repr(state)[:80])
        seed, key, draws = map(int, found)
        self._seed, self._host_draws = seed, draws
        rebind(self._state, *node_and_track(tensor(np.uint64(key))))


_DEFAULT: list[Generator] = []


def default_generator() -> Generator:
    """Return the generator that draws without a key use; it starts from the setting `seed`."""
    if not _DEFAULT:
        with tracing(None):
            _DEFAULT.append(Generator(int(settings.seed.value)))
    return _DEFAULT[0]


def generator_state() -> Tensor | None:
    """Return the tensor that the default generator draws keys from; None before its first use."""
    return _DEFAULT[0]._state if _DEFAULT else None


def manual_seed(seed: int) -> Generator:
    """Start the default generator again from a seed, and return it."""
    return default_generator().manual_seed(seed)


def initial_seed() -> int:
    """Return the seed of the default generator."""
    return default_generator().initial_seed()


def get_rng_state() -> Tensor:
    """Return the state of the default generator."""
    return default_generator().get_state()


def set_rng_state(state: Any) -> None:
    """Let the default generator go on from a state."""
    default_generator().set_state(state)


def next_host_key() -> int:
    """Return a key of the default generator for NumPy's generators."""
    return default_generator().next_host_key()


# -- keys ----------------------------------------------------------------------------------------------------
def key(seed: int) -> Tensor:
    """Return the key of a seed."""
    return tensor(np.uint64(_mix(_seed("key", seed))))


def _seed(name: str, seed: Any) -> int:
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
        raise DTypeError(f"{name}: a seed is an int", got=repr(seed))
    return int(seed) & _MASK


def split(key: Tensor, count: int = 2) -> Tensor:
    """Return `count` keys, independent of each other and of `key`."""
    return call("random_split", _checked(key), count=count)


def fold_in(key: Tensor, number: Any) -> Tensor:
    """Return a key that depends on a key and on an integer, such as the number of a step."""
    return call("random_fold_in", _checked(key), as_tensor(number))


def _key(source: Any) -> Tensor:
    if source is None:
        return default_generator().next_key()
    if isinstance(source, Generator):
        return source.next_key()
    return _checked(source)


def _checked(source: Any) -> Tensor:
    given = as_tensor(source, "random")
    if given.dtype is not uint64 or given.ndim:
        raise DTypeError(
            "random: a key is a uint64 scalar", got=str(given.type), hint="st.random.key(seed) makes one"
        )
    return given


# -- draws ---------------------------------------------------------------------------------------------------
Source = Any  # a key, a Generator, or None for the default generator


def _source(key: Any, generator: Any) -> Source:
    return key if key is not None else generator


def uniform(
    shape: Any = (), *, low: Any = 0.0, high: Any = 1.0, dtype: Any = None, key: Source = None
) -> Tensor:
    """Return floats uniform in [low, high)."""
    target = as_dtype(dtype or float)
    unit = call("random_uniform", _key(key), shape=as_shape("uniform", (shape,)), dtype=target)
    return unit if (low, high) == (0.0, 1.0) else unit * (high - low) + low


def standard_normal(shape: Any = (), *, dtype: Any = None, key: Source = None) -> Tensor:
    """Return floats of the standard normal distribution."""
    target = as_dtype(dtype or float)
    return call("random_normal", _key(key), shape=as_shape("normal", (shape,)), dtype=target)


def bernoulli(
    p: Any, shape: Any = None, *, key: Source = None, generator: Any = None, dtype: Any = None
) -> Tensor:
    """Return bools that hold with probability `p`; for a tensor of probabilities, a tensor of zeros and ones
    like it.
    """
    source = _source(key, generator)
    if isinstance(p, Tensor):
        p = required(p, (p < 0) | (p > 1), 1, "bernoulli: a probability lies in [0, 1]")
        drawn = uniform(p.shape if shape is None else shape, dtype=p.dtype, key=source) < p
        return cast(drawn, dtype or p.dtype)
    sizes = as_shape("bernoulli", (() if shape is None else shape,))
    made = call("random_bernoulli", _key(source), p=float(p), shape=sizes)
    return made if dtype is None else cast(made, dtype)


def integers(
    low: int, high: int | None = None, shape: Any = (), *, dtype: Any = None, key: Source = None
) -> Tensor:
    """Return integers uniform in [low, high), or in [0, low)."""
    if high is None:
        low, high = 0, low
    sizes, target = as_shape("integers", (shape,)), as_dtype(dtype or int64)
    return call("random_integers", _key(key), low=int(low), high=int(high), shape=sizes, dtype=target)


def permutation(x: Any, *, key: Source = None) -> Tensor:
    """Return 0 .. x-1 in random order, or the rows of a tensor in random order."""
    if isinstance(x, Tensor):
        order = permutation(int(x.shape[0]), key=key)
        return x[order]
    return call("random_permutation", _key(key), size=int(x))


def gumbel(shape: Any = (), *, dtype: Any = None, key: Source = None) -> Tensor:
    """Return floats of the standard Gumbel distribution."""
    u = uniform(shape, dtype=dtype, key=key)
    tiny = float(np.finfo(np.float32).tiny)
    return -FUNCTIONS["log"](-FUNCTIONS["log"](FUNCTIONS["maximum"](u, tiny)))


def categorical(logits: Any, *, axis: int = -1, key: Source = None) -> Tensor:
    """Return one class per row, drawn with probability softmax(logits): where logits plus Gumbel noise are
    greatest.
    """
    t = as_tensor(logits, "categorical")
    return argmax(t + gumbel(t.shape, dtype=t.dtype, key=key), axis=axis)


# -- PyTorch's names -----------------------------------------------------------------------------------------
def _finish(made: Tensor, device: Any, requires_grad: bool = False) -> Tensor:
    check_device(device)
    return made.requires_grad_() if requires_grad else made


def _of_sizes(name: str, draw: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    def drawn(
        *sizes: Any, size: Any = None, dtype: Any = None, generator: Any = None, device: Any = None,
        requires_grad: bool = False, key: Any = None,
    ) -> Tensor:  # fmt: skip
        shape = as_shape(name, sizes if size is None else (size,))
        return _finish(draw(shape, dtype=dtype, key=_source(key, generator)), device, requires_grad)

    return named(drawn, name, doc)


rand = _of_sizes("rand", uniform, "Return floats uniform in [0, 1).")
randn = _of_sizes("randn", standard_normal, "Return floats of the standard normal distribution.")


def _of_shape(name: str, draw: Callable[..., Tensor], doc: str) -> Callable[..., Tensor]:
    def drawn(
        x: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, key: Any = None
    ) -> Tensor:
        t = as_tensor(x, name)
        return _finish(draw(t.shape, dtype=dtype or t.dtype, key=key), device, requires_grad)

    return named(drawn, name, f"{doc}, in the shape and dtype of `x`.")


rand_like = _of_shape("rand_like", uniform, "Return floats uniform in [0, 1)")
randn_like = _of_shape("randn_like", standard_normal, "Return floats of the standard normal distribution")


def randint(
    low: int, high: Any = None, size: Any = None, *, dtype: Any = None, generator: Any = None,
    device: Any = None, requires_grad: bool = False, key: Any = None,
) -> Tensor:  # fmt: skip
    """Return integers uniform in [low, high), or, called with one bound, in [0, low)."""
    if size is None and not hasattr(high, "__index__") and high is not None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    floats = dtype is not None and as_dtype(dtype).is_float  # whole numbers as floats, as in PyTorch
    drawn = None if floats else dtype
    made = integers(low, high, () if size is None else size, dtype=drawn, key=_source(key, generator))
    made = cast(made, dtype) if floats else made
    return _finish(made, device, requires_grad)


def randperm(n: int, *, generator: Any = None, device: Any = None, key: Any = None) -> Tensor:
    """Return 0 .. n-1 in random order."""
    return _finish(permutation(int(n), key=_source(key, generator)), device)


_SPREAD = "normal: a standard deviation is not negative"


def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, dtype: Any = None, generator: Any = None,
    device: Any = None, requires_grad: bool = False, key: Any = None,
) -> Tensor:  # fmt: skip
    """Return floats of normal distributions with means and standard deviations, numbers or tensors."""
    if isinstance(std, Tensor) and std.dtype.is_float:
        std = required(std, std < 0, 1, _SPREAD)
    elif isinstance(std, (int, float)) and std < 0:
        raise AttributeValueError(_SPREAD, got=str(std))
    if size is None:
        spread = as_tensor(mean, "normal") * 0.0 + std
        size, dtype = spread.shape, spread.dtype
    made = standard_normal(size, dtype=dtype, key=_source(key, generator))
    result: Tensor = made * std + mean
    return _finish(result.detach() if requires_grad else result, device, requires_grad)


def multinomial(
    probabilities: Any, num_samples: int, replacement: bool = False, *, key: Any = None, generator: Any = None
) -> Tensor:
    """Return `num_samples` classes per row, drawn with probability in proportion to the weights.

    Without replacement these are the classes of the greatest weights times exponential noise (Efraimidis and
    Spirakis, 2006). Outside of captures the weights are needed now, since they are checked.
    """
    t = as_tensor(probabilities, "multinomial")
    source = _source(key, generator)
    if not t.dtype.is_float or t.ndim not in (1, 2):
        raise DTypeError("multinomial: takes one or two axes of float weights", got=str(t.type))
    if num_samples < 1:
        raise AttributeValueError("multinomial: draws at least one sample", got=str(num_samples))
    says = "multinomial: weights are finite, not negative and not all zero"
    w = looked_at("multinomial", t)
    if w is None:
        some = broadcast_to(amax(t, axis=-1, keepdims=True) > 0, t.shape)
        t = required(t, ~((t >= 0) & FUNCTIONS["isfinite"](t) & some), 1, says)
    elif not (np.isfinite(w).all() and (w >= 0).all() and (w > 0).any(-1).all()):
        raise AttributeValueError(says, got=str(w.tolist())[:200])
    logits = where(t > 0, FUNCTIONS["log"](t), -float("inf"))
    if replacement:
        wide = (*t.shape[:-1], num_samples, t.shape[-1])
        spread = reshape(logits, (*t.shape[:-1], 1, t.shape[-1])) + gumbel(wide, dtype=t.dtype, key=source)
        return argmax(spread, axis=-1)
    if num_samples > t.shape[-1]:
        raise AttributeValueError(
            "multinomial: more samples than classes need replacement", got=f"{num_samples} of {t.shape[-1]}"
        )
    noisy = logits + gumbel(t.shape, dtype=t.dtype, key=source)
    order = call("sort", noisy, axis=t.ndim - 1, descending=True)[1]
    return narrow(order, -1, 0, num_samples)
