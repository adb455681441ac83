"""The op protocol: one class in one file holds all that Stratal knows about one op.

A record is a frozen dataclass whose fields are the op's attributes. Everything another subsystem needs stands
beside the type rule: reference, derivative rules, lowering, cost, samples. A field that is absent says why,
as a sentence in the class variable of the same theme (`not_differentiable`, `not_lowered`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import numpy as np

from stratal.base.cost import Cost
from stratal.base.dims import Dim, upper_bound
from stratal.base.errors import NotDifferentiableError, ShapeError, StratalError, VerifyError
from stratal.base.lowered import Lowered
from stratal.base.types import TensorType, TupleType, Type

if TYPE_CHECKING:
    from stratal.graph.builder import Builder
    from stratal.graph.node import Node

Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator], Sequence[Array]]


class Sample(NamedTuple):
    """One way to call an op in the generated contract tests.

    Inputs are drawn from `domain` (floats), small integers or booleans, or by `draw` where values must obey
    more than a range. `smooth` is False where finite differences across a kink or jump would be wrong.
    """

    op: Op
    types: tuple[TensorType, ...]
    domain: tuple[float, float] = (-2.0, 2.0)
    draw: Draw | None = None
    smooth: bool = True


class Reject(NamedTuple):
    """A call an op must refuse, and words its message must contain."""

    op: Op
    types: tuple[TensorType, ...]
    says: str


class Op:
    """Base of every record. Subclasses are made with `@record` and define at least `infer` and `ref`."""

    name: ClassVar[str] = ""
    arity: ClassVar[int | None] = None  # None: any number of inputs
    not_differentiable: ClassVar[str] = ""  # why there is no derivative; empty: there is one
    not_lowered: ClassVar[str] = ""  # why it runs by host fallback; empty: `lower` exists
    not_batched: ClassVar[str] = ""  # why vmap runs it row by row; empty: `batch` serves it
    _fields: ClassVar[tuple[str, ...]] = ()
    foldable: ClassVar[bool] = True  # may be evaluated at compile time when its inputs are constant
    effects: ClassVar[bool] = False  # must not be dropped, merged or repeated (host calls)
    commutative: ClassVar[bool] = False  # op(y, x) has the bits of op(x, y)
    pointwise: ClassVar[bool] = False  # an element of the result is made of those of operands at its indices
    repeats: ClassVar[bool] = False  # every element of the result is one of its operand's
    pinned: ClassVar[bool] = False  # what it marks must not be moved away from it
    begins: ClassVar[bool] = False  # what goes on beside the kernels behind it: it runs as soon as it can
    by_parts: ClassVar[bool] = False  # of complex operands: does the same to real and imaginary parts
    ulp: ClassVar[float] = 0.5  # bound on the rounding error of the lowered form, in units in the last place
    exact: ClassVar[str] = ""  # kinds of results (`buif`) for which the reference has the kernel's bits
    dim_attributes: ClassVar[tuple[str, ...]] = ()  # fields that hold sizes and may hold symbolic ones

    # -- meaning ---------------------------------------------------------------------------------------------
    def infer(self, *types: TensorType) -> Type:
        """Return the result type. Raises: ShapeError, DTypeError, AttributeValueError."""
        raise NotImplementedError

    def ref(self, *arrays: Array) -> Array | tuple[Array, ...]:
        """Evaluate with NumPy: the oracle every other implementation is compared with."""
        raise NotImplementedError

    # -- derivatives -----------------------------------------------------------------------------------------
    def vjp(self, b: Builder, ct: Any, out: Node, *inputs: Node) -> Sequence[Node | None]:
        """Return one cotangent (or None for zero) per input.

        `ct` is a Node, or for an op of several results a sequence with None for those without a cotangent.
        """
        raise self.no_derivative()

    def jvp(self, b: Builder, tangents: Sequence[Node | None], out: Node, *inputs: Node) -> Any:
        """Return the tangent of the result (a list of them for several results); None means zero.

        At least one of `tangents` is not None.
        """
        raise self.no_derivative()

    def differentiated(self, *inputs: Node) -> Sequence[Node]:
        """Return the operands that gradients flow to: values alone are taken of the others."""
        return inputs

    def no_derivative(self) -> StratalError:
        reason = self.not_differentiable or "its record has no derivative rule"
        return NotDifferentiableError(
            f"{self.name}: not differentiable", got=reason, hint="stop_gradient keeps it out of the gradient"
        )

    # -- batching --------------------------------------------------------------------------------------------
    def batch(self, b: Builder, size: Dim, mapped: Sequence[bool], *inputs: Node) -> Any:
        """Return this op over a new axis of `size`, which the inputs marked in `mapped` have in front.

        At least one has. The result (a list for several results) has the axis in front, too; one without it
        is the same for every row. None: no rule serves this call, and a scan runs it row by row.
        """
        return None

    # -- execution -------------------------------------------------------------------------------------------
    def lower(self, *types: TensorType) -> Lowered:
        """Return the tensor expression, loop body or region that computes this op (grammar in `loops/`).

        It is asked for only where `host_reason` is empty.
        """
        raise VerifyError(f"{self.name}: has no lowering", got=self.not_lowered)

    def in_reals(self, b: Builder, *inputs: Node) -> Node | None:
        """Return this op on complex operands, or with a complex result, as ops on real numbers.

        Those are `b.real` and `b.imag` of operands; `b.complex` puts parts together. None: there is no such
        form, and the host runs it.
        """
        if not self.by_parts:
            return None
        parts = (
            b.op(self.name, *(part(x) if x.dtype.is_complex else x for x in inputs), **self.attributes)
            for part in (b.real, b.imag)
        )
        return b.complex(*parts)

    def host_reason(self, *types: TensorType) -> str:
        """Return why a call with operands of these types runs by host fallback.

        Empty where `lower` serves it.
        """
        if self.not_lowered:
            return self.not_lowered
        out = self.infer(*types)
        results = out.elements if isinstance(out, TupleType) else (out,)
        if any(t.dtype.is_complex for t in (*types, *results)):
            return "complex runs by host fallback"
        return ""

    def cost(self, *types: TensorType) -> Cost:
        """Estimate the work from types alone: by default one operation per output element."""
        out = self.infer(*types)
        results = out.elements if isinstance(out, TupleType) else (out,)
        return Cost(
            float(sum(upper_bound(t.size) for t in results)),
            float(sum(t.nbytes for t in types)),
            float(sum(t.nbytes for t in results)),
        )

    # -- examples --------------------------------------------------------------------------------------------
    @classmethod
    def samples(cls) -> Iterable[Sample]:
        """Yield calls that exercise the op: shapes, dtypes, zero-size and size-1 axes, special attributes."""
        return ()

    @classmethod
    def rejects(cls) -> Iterable[Reject]:
        """Yield calls the op must refuse, with words of the message."""
        return ()

    # -- records as values -----------------------------------------------------------------------------------
    @property
    def attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def check_arity(self, count: int) -> None:
        if self.arity is not None and count != self.arity:
            raise ShapeError(f"{self.name}: takes {self.arity} operands", got=f"{count}")

    def __str__(self) -> str:
        attributes = ", ".join(f"{k}={v}" for k, v in self.attributes.items())
        return f"{self.name}({attributes})" if attributes else self.name


REGISTRY: dict[str, type[Op]] = {}
_Record = TypeVar("_Record", bound=type[Op])


@dataclass_transform(frozen_default=True)
def record(cls: _Record) -> _Record:
    """Register an op class: freeze it as a dataclass of its attributes, named `name` or as its class.

    A module that is imported again, because its import stopped halfway, registers its classes again.
    """
    frozen = dataclasses.dataclass(frozen=True, repr=False)(cls)
    if not frozen.__dict__.get("name"):
        frozen.name = cls.__name__.lower()
    names = tuple(f.name for f in dataclasses.fields(frozen))  # type: ignore[arg-type]

    def __hash__(self: Op) -> int:
        try:
            return self._hash  # type: ignore[attr-defined,no-any-return]
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.name, *(getattr(self, n) for n in names))))
            return self._hash  # type: ignore[attr-defined,no-any-return]

    frozen._fields = names
    frozen.__hash__ = __hash__  # type: ignore[assignment]
    known = REGISTRY.get(frozen.name, frozen)
    if (known.__module__, known.__qualname__) != (frozen.__module__, frozen.__qualname__):
        raise VerifyError(f"record: two records are called {frozen.name!r}")
    REGISTRY[frozen.name] = frozen
    return cls  # the same class: it was made a dataclass where it stands
