"""Tensor: a rebindable cell that holds a value, which is a graph node or finished storage.

Building an op checks it at once and computes nothing; `lazy` computes what is needed when it is needed. A
tensor never aliases another: indexing returns a value, and in-place operators give this handle, and no other,
a new value (`handles`). Operators and methods are installed from tables by `methods`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from stratal.base.dims import as_int
from stratal.base.dtypes import DType, as_dtype
from stratal.base.elsewhere import no_attribute
from stratal.base.errors import (
    AttributeValueError,
    CaptureError,
    DTypeError,
    NotDifferentiableError,
    ShapeError,
)
from stratal.base.types import TensorType
from stratal.graph.node import Node, constant
from stratal.runtime.storage import Storage
from stratal.tensor import values
from stratal.tensor.alive import share, watched
from stratal.tensor.arguments import check_axis
from stratal.tensor.arrays import Array, to_array
from stratal.tensor.device import CPU, check_device, device
from stratal.tensor.handles import (
    CONSTANT,
    STOPPED,
    TRACKED,
    USED_UP,
    blank,
    disturb,
    give_gradient,
    is_leaf,
    look,
    own_value,
    place,
    rebind,
    refuse_traced,
    take_value,
    track_of,
)
from stratal.tensor.promises import Promise
from stratal.tensor.state import MODE, no_grad
from stratal.tensor.views import View, taken

if TYPE_CHECKING:
    from stratal.tensor.trace import Trace


class _Size(int):
    """A number of elements that can also be called for the shape."""

    shape: tuple[int, ...]

    def __call__(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[check_axis("size", dim, len(self.shape))]


class Tensor:
    """An n-dimensional array of one dtype. `Tensor(data)` copies its data, `Tensor(2, 3)` has such sizes and
    zeros, as PyTorch's constructor has no particular values; `st.tensor` and friends make one, too.
    """

    __slots__ = (
        "__weakref__",
        "_before",
        "_grad",
        "_guarded",
        "_held",
        "_home",
        "_leaf",
        "_retains",
        "_storage",
        "_trace",
        "_track",
        "_view",
        "_writes",
        "type",
    )

    type: TensorType
    _held: Node | Promise | None  # None only where `_storage` is known and nobody asked for a node yet
    _storage: Storage | None
    _track: int
    _leaf: bool  # takes gradients itself: derivatives end here
    _grad: Tensor | None
    # Where the value stood before in-place operators rebound this handle.
    _home: tuple[Storage, Node | None] | None
    _before: tuple[Node, int] | None  # what it was before, where it never had a value: for a flush that fails
    _trace: Trace | None  # the capture this tensor was made in
    _guarded: bool  # a compiled function reads this handle, and must hear of a change of its type
    _retains: bool  # keep the gradient although this is no leaf
    _view: View | None  # what it was taken of
    _writes: int  # how often it was given another value

    __array_priority__ = 1000

    # The rest is given by `methods`, from tables and from modules that are built on tensors.
    if TYPE_CHECKING:

        def _compute(self) -> None: ...
        def backward(
            self,
            gradient: Any = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            inputs: Any = None,
        ) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __eq__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __neg__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __pos__(self) -> Tensor: ...
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __floordiv__(self, other: Any) -> Tensor: ...
        def __rfloordiv__(self, other: Any) -> Tensor: ...
        def __mod__(self, other: Any) -> Tensor: ...
        def __rmod__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __rmatmul__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __rand__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __ror__(self, other: Any) -> Tensor: ...
        def __xor__(self, other: Any) -> Tensor: ...
        def __rxor__(self, other: Any) -> Tensor: ...
        def __lshift__(self, other: Any) -> Tensor: ...
        def __rlshift__(self, other: Any) -> Tensor: ...
        def __rshift__(self, other: Any) -> Tensor: ...
        def __rrshift__(self, other: Any) -> Tensor: ...

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, "Tensor", name)

    def __init__(self, data: Any = (), dtype: Any = None, requires_grad: bool = False, *more: int) -> None:
        if data.__class__ is int and self.__class__ is Tensor:  # sizes
            sizes = [n for n in (data, dtype, requires_grad, *more) if n is not None and n is not False]
            data, dtype, requires_grad = np.zeros(sizes, np.float32), None, False
        source = data if isinstance(data, Tensor) else tensor(data, dtype=dtype)
        if dtype is not None and source.dtype is not as_dtype(dtype):
            source = source.astype(dtype)
        take_value(self, source)
        if requires_grad:
            self.requires_grad_()

    @property
    def _node(self) -> Node | None:
        """The node it holds: of a promise, made now."""
        held = self._held
        if held.__class__ is Promise:
            held = self._held = held.node()
        return held

    @_node.setter
    def _node(self, node: Node | None) -> None:
        self._held = node

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
        return self.type.nbytes

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.type.dtype.itemsize

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

    def __iter__(self) -> Iterator[Tensor]:
        if not self.type.shape:
            raise ShapeError("iterate: a tensor without axes cannot be iterated over", got=str(self.type))
        return (self[k] for k in range(len(self)))

    def __hash__(self) -> int:
        return id(self)

    # -- its value -------------------------------------------------------------------------------------------
    def _value(self, asked: str) -> Storage:
        """Return finished storage, computing it now if needed."""
        trace = MODE.trace
        if trace is not None or self._trace is not None:
            refuse_traced(self, asked)
        if self._storage is None:
            self._compute()
        assert self._storage is not None
        return self._storage

    def numpy(self) -> Array:
        """Return a NumPy array of the value that shares its memory; a later in-place change here does not
        show in it.
        """
        return self._value("numpy()").export()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self._value("np.asarray").export()
        if dtype is not None and array.dtype != np.dtype(dtype):
            if copy is False:
                raise AttributeValueError(
                    "np.asarray: another dtype needs a copy", got=f"{array.dtype} to {dtype}"
                )
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Any, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule through which another library shares this memory. Raises: BufferError for dtypes
        DLPack or NumPy does not name.
        """
        options: dict[str, Any] = {"stream": stream}
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            options |= {"max_version": max_version, "dl_device": dl_device, "copy": copy}
        return self._value("__dlpack__").export().__dlpack__(**options)

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
        if spec and self.numel() == 1:
            return format(self.item(), spec)
        return format(repr(self), spec)

    # -- gradients -------------------------------------------------------------------------------------------
    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows to or through this tensor."""
        return track_of(self) == TRACKED

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Take gradients from now on, or no longer, and return self."""
        if requires_grad and not self.dtype.is_inexact:
            raise DTypeError(
                "requires_grad: only floats and complex numbers take gradients", got=str(self.type)
            )
        if requires_grad == (track_of(self) == TRACKED):
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
            return trace.read_grad(self)
        disturb(self._grad)
        return self._grad

    @grad.setter
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
            self._retains = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradient, or fill it with zeros."""
        if set_to_none or self.grad is None:
            self.grad = None
        else:
            self.grad.zero_()

    def detach(self) -> Tensor:
        """Return the value as of now, through which no gradient flows. Changed in place, this tensor changes,
        too; what becomes of this tensor does not show in the result.
        """
        return taken(self._snapshot(), self, None)

    def _snapshot(self) -> Tensor:
        """Return a tensor of its own that holds the value as of now, without history."""
        if self._storage is not None and MODE.trace is None and self._trace is None:
            made = hold(self._storage)
            share(made, self)
            return made
        node, track = look(self)
        return wrap(node, STOPPED if track == TRACKED else CONSTANT if track == USED_UP else track)

    @property
    def data(self) -> Tensor:
        """The value without history, as `detach` returns it; assigning gives this handle another value and
        keeps whether it takes gradients.
        """
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        source = value if isinstance(value, Tensor) else tensor(value, dtype=self.dtype)
        self._view = None
        with no_grad():
            if source.type == self.type:
                rebind(self, *look(source.detach()))
            elif MODE.trace is None:
                take_value(self, source.detach(), leaf=self._leaf)
            else:
                raise CaptureError("data: a compiled function cannot change the type of an argument",
                                   got=f"{source.type} for {self.type}")  # fmt: skip

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self.requires_grad and not self.is_leaf:
            raise NotDifferentiableError(
                "deepcopy: only leaves can be copied with their history", got=str(self.type)
            )
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        take_value(made, self._snapshot(), leaf=self._leaf)
        made._grad = None if self._grad is None else self._grad.__deepcopy__(memo)
        for name, value in getattr(self, "__dict__", {}).items():
            setattr(made, name, value)
        return made

    def __copy__(self) -> Tensor:
        return self._snapshot().requires_grad_(self._leaf)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_from_parts, (type(self), np.array(self.numpy()), self.dtype.name, self._leaf))


def _from_parts(cls: type[Tensor], array: Array, dtype: str, leaf: bool) -> Tensor:
    made = cls.__new__(cls)
    take_value(made, tensor(array, dtype=dtype), leaf=leaf)
    return made


_new = object.__new__


# -- making handles ------------------------------------------------------------------------------------------
def wrap(node: Node, track: int = CONSTANT) -> Tensor:
    """Return a tensor that holds a node's value, made in the mode of this thread."""
    made = blank(Tensor.__new__(Tensor), node.type)  # type: ignore[arg-type]
    made._node = node
    made._track = track
    place(made)
    return made


def hold(storage: Storage) -> Tensor:
    """Return a tensor that holds finished storage."""
    made = blank(_new(Tensor), storage.type)
    made._storage = storage
    return made


def set_number(cell: Tensor, number: float) -> None:
    """Give a scalar another value: where its old one stands, unless somebody else may look there."""
    storage = cell._storage
    if MODE.trace is None and storage is not None and not watched(storage, cell):
        storage.array[...] = number
        storage.stamp = None
    else:
        cell.data = tensor(number, dtype=cell.dtype)


def fresh(tensor: Tensor) -> Tensor:
    """Return another handle on the same value, so that changing one in place leaves the other alone."""
    return wrap(*look(tensor))


# -- data from outside ---------------------------------------------------------------------------------------
_CONST_ELEMENTS = 256  # data up to this size becomes a constant of a captured graph, larger data an input


def tensor(data: Any, dtype: Any = None, *, requires_grad: bool = False, device: Any = None) -> Tensor:
    """Return a tensor with a copy of data: a number, nested lists, an array, a tensor.

    Python floats become float32, ints int64; arrays keep their dtype.
    """
    check_device(device)
    if isinstance(data, Tensor):
        made = data._snapshot() if dtype is None else data._snapshot().astype(dtype)
    else:
        made = _from_array(to_array(data, None if dtype is None else as_dtype(dtype)))
    return made.requires_grad_() if requires_grad else made


def _from_array(array: Array) -> Tensor:
    type_ = TensorType(as_dtype(array.dtype), array.shape)
    if MODE.trace is not None:
        if array.size <= _CONST_ELEMENTS:
            return wrap(constant(array))
        return wrap(values.leaf(Storage.copy_of(array, type_)))
    return hold(Storage.copy_of(array, type_))
