"""Transforms of images and columns, for `map`, in NumPy.

Images are arrays [channels, height, width], of uint8 or floats. A transform with a true attribute `draws` is
called with a generator of the element's own, which `map(transform, seed=...)` makes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stratal.base.elsewhere import no_name
from stratal.base.errors import AttributeValueError, CallOrderError, DTypeError, ShapeError

Array = np.ndarray[Any, Any]
Rng = np.random.Generator | None


def checked_function(what: str, function: Any) -> Any:
    """Return a function that is to be called with each element. Raises: DTypeError for what is none."""
    if isinstance(function, type) and function.__module__ == __name__:
        raise DTypeError(f"{what}: takes a transform, not its class", got=function.__name__,
                         hint=f"{function.__name__}(...)")  # fmt: skip
    if not callable(function):
        many = isinstance(function, list | tuple)
        hint = "Compose(f, g) makes one of several" if many else "a transform is one, and so is a lambda"
        raise DTypeError(f"{what}: takes a function", got=f"a {type(function).__name__}", hint=hint)
    return function


class Compose:
    """Transforms one after the other, or a list of them; those that draw share the element's generator.

    Raises: DTypeError for what is no function.
    """

    def __init__(self, *transforms: Callable[..., Any] | Sequence[Callable[..., Any]]) -> None:
        first = transforms[0] if len(transforms) == 1 else None
        given: Iterable[Any] = first if isinstance(first, list | tuple) else transforms
        self.transforms = tuple(checked_function("Compose", transform) for transform in given)
        self.draws = any(map(draws, self.transforms))

    def __call__(self, value: Any, rng: Rng = None) -> Any:
        for transform in self.transforms:
            value = _called(transform, value, rng)
        return value


class On:
    """A transform of one field of an element: a key of a mapping, or a position in a tuple.

    Raises: DTypeError for what is no function.
    """

    def __init__(self, field: Any, transform: Callable[..., Any]) -> None:
        self.field, self.transform, self.draws = field, checked_function("On", transform), draws(transform)

    def __call__(self, element: Any, rng: Rng = None) -> Any:
        made = _called(self.transform, element[self.field], rng)
        if isinstance(element, Mapping):
            return {**element, self.field: made}
        values = [*element]
        values[self.field] = made
        return type(element)(*values) if hasattr(element, "_fields") else type(element)(values)


def draws(transform: Any) -> bool:
    """Return whether a transform takes a generator."""
    return bool(getattr(transform, "draws", False))


def _called(transform: Callable[..., Any], value: Any, rng: Rng) -> Any:
    return transform(value, rng) if draws(transform) else transform(value)


class CenterCrop:
    """The middle of an image, [height, width] = `size`, at half of what is cut off, rounded to even as
    torchvision does. Raises: ShapeError where the image is smaller.
    """

    def __init__(self, size: int | tuple[int, int]) -> None:
        self.size = _pair(size)

    def __call__(self, image: Any) -> Array:
        x, (height, width) = _image("CenterCrop", image), self.size
        _check_fits("CenterCrop", x, self.size)
        top, left = round((x.shape[1] - height) / 2), round((x.shape[2] - width) / 2)
        return x[:, top : top + height, left : left + width]


class RandomCrop:
    """A part of an image at a random position, after `padding` zeros were put around it."""

    draws = True

    def __init__(self, size: int | tuple[int, int], padding: int = 0) -> None:
        self.size, self.padding = _pair(size), padding

    def __call__(self, image: Any, rng: Rng = None) -> Array:
        generator, (height, width) = _drawing("RandomCrop", rng), self.size
        around = ((0, 0), (self.padding, self.padding), (self.padding, self.padding))
        x = np.pad(_image("RandomCrop", image), around)
        _check_fits("RandomCrop", x, self.size)
        top = int(generator.integers(x.shape[1] - height + 1))
        left = int(generator.integers(x.shape[2] - width + 1))
        return x[:, top : top + height, left : left + width]


class RandomFlip:
    """The mirror image with probability `p`: left and right, or top and bottom where `vertical`."""

    draws = True

    def __init__(self, p: float = 0.5, *, vertical: bool = False) -> None:
        if not 0 <= p <= 1:
            raise AttributeValueError("RandomFlip: p lies between 0 and 1", got=repr(p))
        self.p, self.vertical = p, vertical

    def __call__(self, image: Any, rng: Rng = None) -> Array:
        x = _image("RandomFlip", image)
        if _drawing("RandomFlip", rng).random() >= self.p:
            return x
        return x[:, ::-1] if self.vertical else x[:, :, ::-1]


class ToFloat:
    """Bytes from 0 to 255 as float32 from 0 to 1; floats as float32."""

    def __call__(self, image: Any) -> Array:
        x = np.asarray(image)
        return x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x.astype(np.float32)


class Normalize:
    """(image - mean) / std in float32, a number or one for each channel; bytes are first put between 0 and 1.

    Raises: AttributeValueError where a deviation is not above 0; ShapeError for another number of channels.
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.mean, self.std = (np.asarray(v, np.float32).reshape(-1, 1, 1) for v in (mean, std))
        if not (self.std > 0).all():
            raise AttributeValueError("Normalize: deviations are above 0", got=repr(std))

    def __call__(self, image: Any) -> Array:
        x = ToFloat()(_image("Normalize", image))
        if {len(self.mean), len(self.std)} - {1, len(x)}:
            raise ShapeError("Normalize: has a mean and a deviation for each channel",
                             got=f"{len(self.mean)} and {len(self.std)} for {list(x.shape)}")  # fmt: skip
        return (x - self.mean) / self.std


class Standardize:
    """(value - mean) / std in float32, of numbers or arrays of features; `of` takes both from data.

    A feature that does not vary is only centred.
    """

    def __init__(self, mean: Any, std: Any) -> None:
        self.mean, self.std = np.asarray(mean, np.float64), np.asarray(std, np.float64)

    @classmethod
    def of(cls, values: Iterable[Any]) -> Standardize:
        """Return the transform that gives these values mean 0 and deviation 1 (population), in one pass.

        Raises: AttributeValueError for no values, or some that are not finite.
        """
        count = 0
        mean: Any = np.float64(0)
        squares: Any = np.float64(0)
        for value in values:  # Welford's algorithm
            x = np.asarray(value, np.float64)
            count += 1
            before = x - mean
            mean = mean + before / count
            squares = squares + before * (x - mean)
        if not count or not np.isfinite(mean).all():
            raise AttributeValueError("Standardize: takes finite values", got=f"{count} values, mean {mean}")
        return cls(mean, np.sqrt(squares / count))

    def __call__(self, value: Any) -> Any:
        std = np.where(self.std > 0, self.std, 1)
        return ((np.asarray(value, np.float64) - self.mean) / std).astype(np.float32)


class OneHot:
    """A float32 vector with a 1 at the position of the category; `OneHot.of` finds the categories, sorted.

    Raises: AttributeValueError for a category that is none of them, unless `unknown` is "zeros"; for missing
    values among those that `of` finds, and for NaN, which equals nothing.
    """

    def __init__(self, categories: Iterable[Hashable], *, unknown: str = "raise") -> None:
        self.categories = list(categories)
        self._positions = {c: k for k, c in enumerate(self.categories)}
        self.unknown = unknown
        if not self.categories or len(self._positions) < len(self.categories):
            raise AttributeValueError("OneHot: takes different categories", got=repr(self.categories)[:80])
        if any(c != c for c in self.categories):
            raise _not_a_category("NaN")
        if unknown not in ("raise", "zeros"):
            raise AttributeValueError('OneHot: unknown is "raise" or "zeros"', got=repr(unknown))

    @classmethod
    def of(cls, values: Iterable[Any], *, unknown: str = "raise") -> OneHot:
        """Return the transform for the categories of some values: texts, or numbers."""
        found = {_plain(v) for v in values}
        if missing := [c for c in found if c is None or c != c]:
            raise _not_a_category("None" if missing[0] is None else "NaN")
        try:
            return cls(sorted(found), unknown=unknown)
        except TypeError:
            kinds = sorted({type(c).__name__ for c in found})
            raise DTypeError("OneHot.of: categories are of one type", got=", ".join(kinds),
                             hint="OneHot([...]) takes any, in the order you give") from None  # fmt: skip

    def __call__(self, value: Any) -> Array:
        position = self._positions.get(_plain(value))
        if position is None and self.unknown == "raise":
            raise AttributeValueError(
                "OneHot: a category that is known", got=repr(_plain(value)),
                hint='unknown="zeros" takes others',
            )  # fmt: skip
        made = np.zeros(len(self.categories), np.float32)
        if position is not None:
            made[position] = 1
        return made


def _not_a_category(shown: str) -> AttributeValueError:
    hint = "pipeline.filter(is_complete), of stratal.data, leaves out rows that miss a value"
    return AttributeValueError("OneHot: a missing value is no category", got=shown, hint=hint)


def _plain(value: Any) -> Any:
    """Return NumPy's scalars as Python's."""
    return value.item() if hasattr(value, "item") else value


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise AttributeValueError("crop: a size is positive", got=repr(size))
    return height, width


def _image(name: str, image: Any) -> Array:
    x = np.asarray(image)
    if x.ndim != 3:
        raise ShapeError(f"{name}: an image is [channels, height, width]", got=str(list(x.shape)))
    return x


def _check_fits(name: str, image: Array, size: tuple[int, int]) -> None:
    if image.shape[1] < size[0] or image.shape[2] < size[1]:
        raise ShapeError(f"{name}: takes images of at least {list(size)}", got=str(list(image.shape[1:])))


def _drawing(name: str, rng: Rng) -> np.random.Generator:
    if rng is None:
        raise CallOrderError(
            f"{name}: draws from a generator", got="none",
            hint=f"pipeline.map({name}(...), seed=0) gives it one",
        )  # fmt: skip
    return rng


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise no_name(__name__, name)
