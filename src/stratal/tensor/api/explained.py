"""What public calls say of arguments they cannot take: looked for when a call fails, others pay nothing.

Functions check what they compute with. What they do not look at, such as a set where sizes belong, ends in
an error of Python's or NumPy's from somewhere inside; here it becomes one of Stratal's, with the call as the
user wrote it. The error it came from stays its cause.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from numbers import Real
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from stratal.base import tree
from stratal.base.errors import (
    AttributeValueError,
    DTypeError,
    IndexOutOfRangeError,
    ShapeError,
    StratalError,
)
from stratal.base.interrupts import deferring
from stratal.base.source import PACKAGE
from stratal.graph.builder import COMPOSITES
from stratal.graph.op import REGISTRY
from stratal.tensor.build import of_another_library
from stratal.tensor.calls.call_cache import cached_call
from stratal.tensor.functions.naming import Words, in_words, words_of
from stratal.tensor.tensor import Tensor


class Kind(NamedTuple):
    """What an annotation asks for, in words and as types."""

    words: str
    types: tuple[type, ...]


KINDS = {
    "Tensor": Kind("a tensor", (Tensor,)),
    "float": Kind("a number", (Real,)),
    "int": Kind("an int", (int,)),
    "str": Kind("a string", (str,)),
    "bool": Kind("a bool", (bool, int)),
    "Sizes": Kind("an int, or one per axis", (int, list, tuple)),
    "Sequence[int]": Kind("a sequence of ints", (list, tuple)),
    "None": Kind("None", (type(None),)),
}
_LIBRARY = os.path.dirname(os.__file__)
_NUMPY = os.path.dirname(np.__file__)
_PYTHONS_OWN = (
    TypeError, AttributeError, ValueError, LookupError, ArithmeticError, MemoryError, RecursionError,
    NotImplementedError,
)  # fmt: skip
_CONVERSIONS = ("tensor", "asarray", "from_dlpack", "from_numpy", "load_state_dict")
_MADE: dict[Any, Any] = {}  # by function: its names stay names of one thing


def explained(function: Any) -> Any:
    """Let a function take PyTorch's words for its arguments, too, and say which of them it cannot take, where
    it fails for that.
    """
    if not inspect.isfunction(function):
        return function
    if function not in _MADE:
        call = _explained(function, words_of(function))
        if not (hasattr(function, "defers") or function.__module__.startswith("stratal.formats.")):
            call = deferring(call)
        _MADE[function] = _MADE[call] = call
    return _MADE[function]


def explain_all(namespace: dict[str, Any]) -> None:
    """Let every function of a package's `__all__` explain."""
    namespace.update({name: explained(cached_call(namespace[name])) for name in namespace["__all__"]})


def explain_methods(cls: type, *names: str) -> None:
    """Let methods a class of this package defines explain, under its name; classes of users are theirs."""
    if cls.__module__.startswith("stratal."):
        for name in names:
            if name in cls.__dict__:
                setattr(cls, name, _explained(cls.__dict__[name], None, of_class=True))


def _explained(
    function: Callable[..., Any], words: Words | None, of_class: bool = False
) -> Callable[..., Any]:
    """Return a function that explains, under its own name or that of its first argument's class."""

    of_layers = "dims" in inspect.signature(function).parameters  # their class has the name people know

    def name_of(args: tuple[Any, ...]) -> str:
        return type(args[0]).__name__ if of_class and args else function.__name__

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if kwargs and words is not None:
                args, kwargs = in_words(function.__name__, words, args, kwargs)
            return function(*args, **kwargs)
        except StratalError as error:
            error.got = error.got or written(args[of_class:], kwargs)
            if not of_layers:
                _name(error, name_of(args))
            if isinstance(error, DTypeError) and not _users(error.__traceback__):
                better = _foreign(name_of(args), function, args, kwargs)
                if better is not None:
                    raise better from error
            raise
        except _PYTHONS_OWN as error:
            if isinstance(error, RecursionError) and not tree.holds_itself((args, kwargs)):
                raise  # the caller left too few frames
            better = explanation(name_of(args), function, args, kwargs, error)
            if better is None:
                if of_class and args and str(error).startswith(f"{function.__qualname__}()"):  # unbound
                    own = f"{type(args[0]).__name__}.{function.__name__}"
                    raise TypeError(str(error).replace(function.__qualname__, own, 1)) from None
                told = hasattr(error, "__notes__")  # by the function inside whose arguments are wrong
                if isinstance(error, TypeError) and "argument" in str(error) and not told:
                    error.add_note(f"it is {name_of(args)}{inspect.signature(function)}")
                raise
            raise better from error

    return call


def _name(error: StratalError, name: str) -> None:
    """Let an error of an op inside say the name of the function that was called: the innermost public one."""
    op, colon, rest = error.rule.partition(": ")
    of_a_call = isinstance(error, (ShapeError, DTypeError, AttributeValueError))
    inside = of_a_call and not error.named and colon and (op in REGISTRY or op in COMPOSITES)
    inside = inside and op != "permute"  # a public name, PyTorch's of permute_dims
    if inside and not _users(error.__traceback__):
        error.rule = f"{name}: {rest}"
    error.named = True


def explanation(
    name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception
) -> StratalError | None:
    """Return what a call that failed says; None where it did not bind, or a function of the user's failed."""
    signature = inspect.signature(function)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:  # too many or too few: Python's own words are clear
        return None
    if _users(error.__traceback__):
        return None
    better = _foreign(name, function, args, kwargs) or _misfit(name, signature, given)
    return better or _refused(name, args, kwargs, error)


def _foreign(
    name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> StratalError | None:
    """Return the error for another library's array among arguments, which only conversions take."""
    if function.__name__ in _CONVERSIONS:
        return None
    return of_another_library(name, [*args, *kwargs.values()])


def _users(trace: TracebackType | None) -> bool:
    """Return whether an error was raised in code that is neither ours nor a library's we call."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        ours = file.startswith((PACKAGE, _NUMPY, "<"))
        if not ours and (not file.startswith(_LIBRARY) or "site-packages" in file):
            return True
        trace = trace.tb_next
    return False


def _misfit(name: str, signature: inspect.Signature, given: Mapping[str, Any]) -> StratalError | None:
    """Return an error about the first argument that does not fit its annotation, None where all do."""
    for argument, value in given.items():
        parameter = signature.parameters[argument]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kinds = [KINDS.get(part) for part in str(parameter.annotation).split(" | ")]
        known = [kind for kind in kinds if kind is not None]
        if len(known) == len(kinds) and not any(isinstance(value, kind.types) for kind in known):
            words = " or ".join(kind.words for kind in known)
            array = hasattr(value, "__array__") or isinstance(value, (list, tuple, int, float))
            array = array and "Tensor" in str(parameter.annotation)
            return DTypeError(
                f"{name}: {argument!r} must be {words}",
                got=f"{type(value).__name__} {shown(value)}",
                hint="st.tensor(x) makes a tensor of arrays, lists and numbers" if array else "",
            )
    return None


def _refused(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> StratalError:
    got = written(args, kwargs)
    why = str(error).split("\n")[0][:160]
    if isinstance(error, MemoryError) or "array is too big" in why or "Maximum allowed" in why:
        return ShapeError(f"{name}: the sizes asked for do not fit into memory", got=got, hint=why)
    kind: type[StratalError] = AttributeValueError
    if isinstance(error, (TypeError, AttributeError)):
        kind = DTypeError
    elif isinstance(error, IndexError):
        kind = IndexOutOfRangeError
    return kind(f"{name}: does not take these arguments", got=got, hint=f"Python says: {why}" if why else "")


def written(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return the arguments of a call as a short text."""
    words = [*map(shown, args), *(f"{word}={shown(value)}" for word, value in kwargs.items())]
    return ", ".join(words) or "no arguments"


def shown(value: Any, depth: int = 8) -> str:
    """Return a value as a short text: tensors and arrays by their types, also inside of `depth` lists."""
    if isinstance(value, Tensor):
        return str(value.type)
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype}{list(value.shape)}"
    if type(value) in (list, tuple) and len(value) <= 8 and depth:
        inside = ", ".join(shown(item, depth - 1) for item in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    kind = type(value)
    if kind.__module__.startswith("stratal.") or all("__repr__" not in vars(k) for k in kind.__mro__[:-1]):
        return f"a {kind.__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
