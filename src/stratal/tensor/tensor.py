"""Tensor: a rebindable cell that holds a value, which is a graph node or finished storage.

Building an op checks it at once and computes nothing; `lazy` computes what is needed when it is needed.
In-place operators give a handle a new value, and views of the same memory theirs (`handles`, `views`).
Operators and methods are installed from tables by `methods`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from stratal.base.dims import as_int
from stratal.base.dlpack import capsule_of
from stratal.base.dtypes import DType, as_dtype
from stratal.base.elsewhere import no_attribute
from stratal.base.errors import (
    AttributeValueError,
    CaptureError,
    DTypeError,
    NotDifferentiableError,
    ShapeError,
)
from stratal.base.interrupts import deferring
from stratal.base.types import TensorType
from stratal.graph.node import Node, constant
from stratal.runtime.program import new_storage
from stratal.runtime.storage import Storage
from stratal.tensor.arguments import check_axis
from stratal.tensor.arrays import Array, to_array
from stratal.tensor.device import CPU, check_device, device
from stratal.tensor.lazy.exports import hand_out
from stratal.tensor.lazy.flushing import value_of
from stratal.tensor.scalars import RuntimeScalar
from stratal.tensor.values import node_values
from stratal.tensor.values.binding import (
    is_leaf,
    lazy_value_of,
    node_and_track,
    node_of,
    own_value,
    rebind,
    register,
    take_value,
    track_of,
)
from stratal.tensor.values.deferred import Deferred
from stratal.tensor.values.handle import (
    CONSTANT,
    CONSUMED,
    STOPPED,
    TRACKED,
    Handle,
    detach_from_memory,
    give_gradient,
    initialize,
    invalidate,
    retain_gradient,
)
from stratal.tensor.values.live import is_observable, register_live, share
from stratal.tensor.values.state import MODE, no_grad
from stratal.tensor.values.views import join


class _Size(int):
    """A number of elements that can also be called for the shape."""

    shape: tuple[int, ...]

    def __call__(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[check_axis("size", dim, len(self.shape))]


class Tensor(Handle):
    """An n-dimensional array of one dtype. `Tensor(data)` copies its data, `Tensor(2, 3)` has such sizes and
    zeros, as PyTorch's constructor has no particular values; `st.tensor` and friends make one, too.
    """

    __slots__ = ()
    _grad: Tensor | None
    __array_priority__ = 1000

    # The rest is given by `methods`, from tables and from modules that are built on tensors.
    if TYPE_CHECKING:

        def backward(
            self,
            gradient: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            inputs: Any = None,
        ) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __iter__(self) -> Iterator[Tensor]: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __eq__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __neg__(self) -> Tensor: ...
        def __add__(self, other: Any) -> Tensor: ...

        __invert__ = __abs__ = __pos__ = __neg__
        __lt__ = __le__ = __gt__ = __ge__ = __add__
        __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __matmul__ = __add__
        __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __add__
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __add__
        __rmatmul__ = __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = __add__

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, "Tensor", name)

    def __init__(self, data: Any = (), dtype: Any = None, requires_grad: bool = False, *more: int) -> None:
        if data.__class__ is int and self.__class__ is Tensor:  # sizes
            sizes = [n for n in (data, dtype, requires_grad, *more) if n is not None and n is not False]
            data, dtype, requires_grad = np.zeros(sizes, as_dtype(float).np), None, False
        elif dtype is None and (isinstance(data, (list, tuple)) or (
            self.__class__ is Tensor and isinstance(data, np.ndarray)
        )):  # fmt: skip
            dtype = float  # of any numbers, as in PyTorch; `tensor` keeps their kind
        source = data if isinstance(data, Tensor) else tensor(data, dtype=dtype)
        if dtype is not None and source.dtype is not as_dtype(dtype):
            source = source.astype(dtype)
        take_value(self, source)
        if requires_grad:
            self.requires_grad_()

    # -- what it is ------------------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of its axes."""
        return self.type.shape  # type: ignore[return-value]

    @property
    def dtype(self) -> DType:
        """The type of its elements."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.type.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.type.size * self.type.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.type.dtype.itemsize

    is_cuda = False

    @property
    def device(self) -> device:
        """Where it lies: on the CPU."""
        return CPU

    @property
    def size(self) -> _Size:
        """The number of elements, as in the array API; called, the shape or the size of one axis, as in
        PyTorch.
        """
        made = _Size(as_int(self.type.size))
        made.shape = self.shape
        return made

    def numel(self) -> int:
        """Return the number of elements; while a function is captured for any size, a symbol."""
        return self.type.size  # type: ignore[return-value]

    nelement = numel

    def dim(self) -> int:
        """Return the number of axes."""
        return self.ndim

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return self.type.dtype.itemsize

    def __len__(self) -> int:
        if not self.type.shape:
            raise ShapeError("len: a tensor without axes has no length", got=str(self.type))
        return as_int(self.type.shape[0])

    def __hash__(self) -> int:
        return id(self)

    # -- its value -------------------------------------------------------------------------------------------
    def _value(self, asked: str) -> Storage:
        """Return finished storage, computing it now if needed."""
        return value_of(self, asked)

    def numpy(self) -> Array:
        """Return a NumPy array of the value that shares its memory; a later in-place change here does not
        show in it.
        """
        return hand_out(self, "numpy()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self._value("np.asarray").array
        if not copy and (dtype is None or array.dtype == np.dtype(dtype)):
            return hand_out(self, "np.asarray")
        if dtype is not None and array.dtype != np.dtype(dtype):
            if copy is False:
                raise AttributeValueError(
                    "np.asarray: another dtype needs a copy", got=f"{array.dtype} to {dtype}"
                )
            return array.astype(dtype)
        return array.copy()

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None, copy: bool | None = None
    ) -> Any:
        """Return a capsule through which another library shares this memory."""
        options: dict[str, Any] = {"stream": stream}
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            options |= {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        return capsule_of(hand_out(self, "__dlpack__"), options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def item(self) -> Any:
        """Return the only element as a Python number."""
        if self.numel() != 1:
            raise ShapeError("item: the tensor must have exactly one element", got=str(self.type))
        value = self._value("item()").array.reshape(()).item()
        return value if isinstance(value, (bool, int, float, complex)) else float(value)

    def tolist(self) -> Any:
        """Return nested lists of Python numbers."""
        array = self._value("tolist()").array
        return (array.astype(np.float32) if self.dtype.name == "bfloat16" else array).tolist()

    def __bool__(self) -> bool:
        if self.numel() != 1:
            raise AttributeValueError(
                "bool: only a tensor with one element is true or false",
                got=str(self.type),
                hint="use .any() or .all()",
            )
        return bool(self._value("bool").array.reshape(()).item())

    def __int__(self) -> int:
        return int(self._scalar("int"))

    def __float__(self) -> float:
        return float(self._scalar("float"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex"))

    def __index__(self) -> int:
        if not (self.dtype.is_integer and self.numel() == 1):
            raise DTypeError("index: only an integer tensor with one element is an index", got=str(self.type))
        return int(self._scalar("index"))

    def _scalar(self, asked: str) -> Any:
        if self.numel() != 1:
            raise ShapeError(f"{asked}: the tensor must have exactly one element", got=str(self.type))
        return self._value(asked).array.reshape(()).item()

    def __format__(self, spec: str) -> str:
        if self.numel() == 1 and (spec or not self.type.shape):  # as in PyTorch
            later = None if MODE.trace is None else MODE.trace.text(self, spec, "", "")
            return later or format(self.item(), spec)
        try:
            return format(repr(self), spec)
        except ValueError:
            raise DTypeError(
                "format: numbers are formatted one by one", got=f"{self.type} as {spec!r}",
                hint='f"{x.mean():.2f}" formats one; print(x) shows four digits of each',
            ) from None  # fmt: skip

    # -- gradients -------------------------------------------------------------------------------------------
    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows to or through this tensor."""
        return track_of(self) in (TRACKED, CONSUMED)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    @deferring
    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Take gradients from now on, or no longer, and return self."""
        if requires_grad and not self.dtype.is_inexact:
            raise DTypeError(
                "requires_grad: only floats and complex numbers take gradients", got=str(self.type)
            )
        if requires_grad == self.requires_grad:
            return self
        if not requires_grad and not is_leaf(self):
            raise NotDifferentiableError(
                "requires_grad: only a leaf can stop taking gradients",
                got=str(self.type),
                hint="use detach()",
            )
        own_value(self, leaf=requires_grad)
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether no gradient flows further back from here."""
        return is_leaf(self) or track_of(self) != TRACKED

    @property
    def grad(self) -> Tensor | None:
        """The gradient that `backward()` added up here, or None."""
        trace = MODE.trace
        if trace is not None:
            found = trace.read_grad(self)
            assert found is None or isinstance(found, Tensor)
            return found
        invalidate(self._grad)
        return self._grad

    @grad.setter
    @deferring
    def grad(self, value: Tensor | None) -> None:
        if value is not None and (not isinstance(value, Tensor) or value.type != self.type):
            got = str(value.type) if isinstance(value, Tensor) else type(value).__name__
            raise ShapeError("grad: must be None or a tensor of the same type", got=f"{got} for {self.type}")
        trace = MODE.trace
        if trace is None:
            give_gradient(self, value)
        else:
            trace.write_grad(self, value)

    @property
    def grad_fn(self) -> str | None:
        """The op a tracked tensor came from, or None for a leaf."""
        node = None if self.is_leaf else self._node
        return None if node is None else node.op.name

    def retain_grad(self) -> None:
        """Keep the gradient of this tensor in `grad` although it is no leaf."""
        if not self._leaf:
            retain_gradient(self, True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradient, or fill it with zeros."""
        if set_to_none or self.grad is None:
            self.grad = None
        else:
            self.grad.zero_()

    @deferring
    def detach(self) -> Tensor:
        """Return a view of all of this tensor through which no gradient flows."""
        storage = self._storage
        if storage is None or not storage.exported or MODE.trace is not None:
            return join(self._snapshot(), self, detached=True)
        made = hold(storage)  # one memory to NumPy, as it would be in PyTorch
        share(made, self)
        return join(made, self, detached=True)

    def _snapshot(self) -> Tensor:
        """Return a tensor of its own that holds the value as of now, without history."""
        storage = self._storage
        if storage is not None and not storage.exported and MODE.trace is None and self._trace is None:
            made = hold(storage)
            share(made, self)
            return made
        ir, track = lazy_value_of(self)
        track = STOPPED if track == TRACKED else CONSTANT if track == CONSUMED else track
        if ir.__class__ is not Deferred or MODE.eager is not None:
            return wrap(node_of(self), track)
        made = initialize(_new(Tensor), self.type, ir, track)
        register_live(made)
        return made

    @property
    def data(self) -> Tensor:
        """The value without history, as `detach` returns it; assigning gives this handle another value and
        keeps whether it takes gradients.
        """
        return self.detach()

    @data.setter
    @deferring
    def data(self, value: Any) -> None:
        source = value if isinstance(value, Tensor) else tensor(value, dtype=self.dtype)
        detach_from_memory(self)
        with no_grad():
            if source.type == self.type:
                rebind(self, *node_and_track(source.detach()))
            elif MODE.trace is None:
                take_value(self, source.detach(), leaf=self._leaf)
            else:
                raise CaptureError("data: a compiled function cannot change the type of an argument",
                                   got=f"{source.type} for {self.type}")  # fmt: skip

    @deferring
    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        """Return a copy with a gradient of its own."""
        if not self.is_leaf:
            raise NotDifferentiableError(
                "deepcopy: only leaves can be copied with their history", got=str(self.type)
            )
        made, grad = self._twin(memo), self.grad
        if grad is not None:
            made.grad = memo[id(grad)] if id(grad) in memo else grad.__deepcopy__(memo)
        if own := getattr(self, "__dict__", None):
            made.__dict__.update(copy.deepcopy(own, memo))
        return made

    @deferring
    def __copy__(self) -> Tensor:
        """Return a leaf on the same memory: changed in place, it changes this tensor, too."""
        made = self._twin({})
        getattr(made, "__dict__", {}).update(getattr(self, "__dict__", {}))
        return join(made, self, detached=True)

    def _twin(self, memo: dict[int, Any]) -> Tensor:
        """Return a leaf of this class with the value as of now."""
        made = memo[id(self)] = self.__class__.__new__(self.__class__)
        take_value(made, self._snapshot(), leaf=self.requires_grad)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        parts = type(self), np.array(self, copy=True), self.dtype.name, self.requires_grad
        return (_from_parts, parts, getattr(self, "__dict__", None))


@deferring
def _from_parts(cls: type[Tensor], array: Array, dtype: str, leaf: bool) -> Tensor:
    made = cls.__new__(cls)
    take_value(made, tensor(array, dtype=dtype), leaf=leaf)
    return made


_new = object.__new__


# -- making handles ------------------------------------------------------------------------------------------
def wrap(node: Node, track: int = CONSTANT) -> Tensor:
    """Return a tensor that holds a node's value, made in the mode of this thread."""
    made = initialize(Tensor.__new__(Tensor), node.aval, node, track)
    register(made)
    return made


def hold(storage: Storage, track: int = CONSTANT) -> Tensor:
    """Return a tensor that holds finished storage; `track` is what it is to gradients."""
    return initialize(_new(Tensor), storage.type, None, track, storage)


@deferring
def set_number(cell: Tensor, number: float) -> None:
    """Give a scalar another value: where its old one stands, unless somebody else may look there."""
    if not _wrote(cell, number):
        cell.data = tensor(number, dtype=cell.dtype)


_WRITTEN_BYTES = 1 << 16


def write_over(cell: Tensor, value: Tensor) -> bool:
    """Write a value that is there where the old one of a tensor stands, if nobody else may look there;
    return whether that was done.
    """
    new = value._storage
    if new is None or new.type.nbytes > _WRITTEN_BYTES:  # which the two may share
        return False
    if MODE.step is not None or cell._track or value._track or cell._leaf or cell._view is not None:
        return False
    return _wrote(cell, new.array)


def _wrote(cell: Tensor, value: Any) -> bool:
    """Write where a value stands, unless somebody else may look there; return whether that was done."""
    storage = cell._storage
    if MODE.trace is not None or storage is None or is_observable(storage, cell):
        return False
    storage.array[...] = value
    storage.stamp = None
    return True


def fresh(tensor: Tensor) -> Tensor:
    """Return another handle on the same value, so that changing one in place leaves the other alone."""
    ir, track = lazy_value_of(tensor)
    return _holding(tensor.type, ir, track if MODE.grad or track != TRACKED else STOPPED)


def alias(tensor: Tensor) -> Tensor:
    """Return a view of all of a tensor."""
    return join(_holding(tensor.type, *lazy_value_of(tensor)), tensor)


def _holding(type_: TensorType, ir: Node | Deferred, track: int) -> Tensor:
    if isinstance(ir, Node):
        return wrap(ir, track)
    made = initialize(Tensor.__new__(Tensor), type_, ir, track)
    register_live(made)
    return made


# -- data from outside ---------------------------------------------------------------------------------------
_CONST_ELEMENTS = 256  # data up to this size becomes a constant of a captured graph, larger data an input


def tensor(data: Any, dtype: Any = None, *, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Return a tensor with a copy of data: a number, nested lists, an array, a tensor.

    Python floats become float32, ints int64; arrays keep their dtype.
    """
    check_device(device)
    if isinstance(data, Tensor):
        made = data._snapshot() if dtype is None else data._snapshot().astype(dtype)
    elif type(data) is RuntimeScalar:
        made = wrap(data.element(as_dtype(dtype or float)))
    else:
        given = None if MODE.trace is None or not isinstance(data, np.ndarray) else MODE.trace.array(data)
        if given is None:
            made = _from_array(to_array(data, None if dtype is None else as_dtype(dtype)))
        else:
            made = wrap(given) if dtype is None else wrap(given).to(dtype)
    return made.requires_grad_() if requires_grad else made


def _from_array(array: Array) -> Tensor:
    dtype = as_dtype(array.dtype)
    if MODE.trace is not None:
        type_ = TensorType(dtype, array.shape)
        if array.size <= _CONST_ELEMENTS:
            return wrap(constant(array))
        return wrap(node_values.leaf(Storage.copy_of(array, type_)))
    storage = new_storage(dtype, array.shape)
    storage.array[...] = array
    return hold(storage)
