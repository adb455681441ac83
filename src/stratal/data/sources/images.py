"""Folders of images (pillow): one folder for each class, as torchvision's ImageFolder has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stratal.base.errors import AttributeValueError
from stratal.data.bad_rows import BadRowError
from stratal.data.sources.class_folders import class_folders
from stratal.data.sources.opening import required

Array = np.ndarray[Any, Any]
EXTENSIONS: Final = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MODES: Final = {"L": np.uint8, "RGB": np.uint8, "RGBA": np.uint8, "I": np.int32, "F": np.float32}
_EXACT: Final = 1 << 24  # whole numbers up to here are float32's
_ORIENTATION: Final = 0x0112  # the tag of EXIF


class ImageFolder:
    """Images and classes: element k is (pixels [channels, height, width], the number of the class).

    Classes are the folders in `root`, sorted by name, or `classes`, names in the order of their numbers, of
    which some may have no images here. Images are all below, sorted by path. Files and folders that are
    hidden, by a name that begins with a dot, are left out.
    `size` is (height, width) to scale to (bilinear). `mode` is one of L, RGB and RGBA (uint8), I (grey,
    int32) and F (grey, float32): grey images of 16 and 32 bits take I or F, those of floats F. Images are
    turned upright as their EXIF data says, as viewers do; with `exif_transpose=False` they stay as they are
    stored, as torchvision and Keras have them.
    Raises: MissingSourceError; FormatError for a folder without images, or one that is not in `classes`;
    MissingExtraError without pillow; BadRowError for an image that cannot be read, or whose pixels the mode
    does not hold.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, size: tuple[int, int] | None = None, mode: str = "RGB",
        exif_transpose: bool = True, extensions: Sequence[str] = EXTENSIONS,
        classes: Sequence[str] | None = None, transform: Any = None, target_transform: Any = None,
    ) -> None:  # fmt: skip
        if transform is not None or target_transform is not None:  # torchvision's
            field = 0 if transform is not None else 1
            raise AttributeValueError(
                "ImageFolder: reads images; a pipeline transforms them", got=f"{'target_' * field}transform=",
                hint=f"Pipeline(folder).map(On({field}, transform), seed=0); without seed where none draws",
            )  # fmt: skip
        self._read = ImageReader(size=size, mode=mode, exif_transpose=exif_transpose)
        self.size, self.mode, self.exif_transpose = self._read.size, mode, exif_transpose
        self.classes, self.samples = class_folders("ImageFolder", root, extensions, classes)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        path, label = self.samples[index]
        return self._read(path, index % len(self)), label


class ImageReader:
    """Reads image files as pixels [channels, height, width]; size, mode and EXIF are those of `ImageFolder`.

    Raises: AttributeValueError, MissingExtraError without pillow; called, BadRowError.
    """

    def __init__(
        self, *, size: tuple[int, int] | None = None, mode: str = "RGB", exif_transpose: bool = True
    ) -> None:
        if mode not in MODES:
            raise AttributeValueError(f"ImageFolder: mode is one of {', '.join(MODES)}", got=repr(mode))
        required("PIL.Image", "images")
        self.size, self.mode, self.exif_transpose = _checked_size(size), mode, exif_transpose

    def __call__(self, path: str, number: int) -> Array:
        """Return the pixels of a file, the row `number` of its source."""
        pillow = required("PIL.Image", "images")  # no attribute: worker processes get this object pickled
        try:
            with pillow.open(path) as image:
                made = _converted(self._upright(image), self.mode)
                if self.size is not None:
                    made = made.resize(self.size[::-1], pillow.Resampling.BILINEAR)
                pixels = np.array(made, MODES[self.mode])
        except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
            raise BadRowError(path, number, None, str(error) or type(error).__name__) from None
        rows = pixels if pixels.ndim == 3 else pixels[:, :, None]
        return np.ascontiguousarray(rows.transpose(2, 0, 1))

    def _upright(self, image: Any) -> Any:
        """Return an image as its EXIF data says that it was meant to be seen."""
        image.load()  # what raises here is damaged pixels
        try:
            stored = not self.exif_transpose or image.getexif().get(_ORIENTATION, 1) == 1
        except Exception:  # damaged data beside the pixels, of which pillow's readers raise anything
            stored = True
        return image if stored else required("PIL.ImageOps", "images").exif_transpose(image)


def _checked_size(size: Any) -> tuple[int, int] | None:
    """Return height and width. Raises: AttributeValueError."""
    if size is None:
        return None
    pair = tuple(size) if isinstance(size, Sequence) else ()
    if len(pair) != 2 or not all(isinstance(n, int | np.integer) and n > 0 for n in pair):
        one = size if isinstance(size, int) else 64
        raise AttributeValueError("ImageFolder: size is a height and a width, above 0", got=repr(size)[:80],
                                  hint=f"size=({one}, {one})")  # fmt: skip
    return int(pair[0]), int(pair[1])


def _converted(image: Any, mode: str) -> Any:
    """Return an image of a mode. Raises: ValueError where pixels would be cut off or rounded."""
    given = image.mode
    if given == mode:
        return image
    deep = given.startswith("I")  # I, I;16, I;16B: grey of more than 8 bits
    if (deep and mode not in ("I", "F")) or (given == "F" and mode != "F"):
        named = "mode='F'" if given == "F" else "mode='I' or 'F'"
        raise ValueError(f"pixels of mode {given} are cut off in {mode}; {named} holds them")
    whole = image.convert("I") if deep else image
    if given == "I" and max(map(abs, whole.getextrema())) > _EXACT:
        raise ValueError("pixels beyond 2^24 are rounded in mode F; mode='I' holds them")
    return whole.convert(mode)
