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
MODES: Final = {"L": 1, "RGB": 3, "RGBA": 4}


class ImageFolder:
    """Images and classes: element k is (uint8 [channels, height, width], the number of the class).

    Classes are the folders in `root`, sorted by name; images are all below, sorted by path. `size` is
    (height, width) to scale to (bilinear), `mode` one of L, RGB, RGBA.
    Raises: MissingSourceError, FormatError for a folder without images, MissingExtraError without pillow;
    BadRowError for an image that cannot be read.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, size: tuple[int, int] | None = None, mode: str = "RGB",
        extensions: Sequence[str] = EXTENSIONS,
    ) -> None:  # fmt: skip
        self._pillow = required("PIL.Image", "images")
        if mode not in MODES:
            raise AttributeValueError(f"ImageFolder: mode is one of {', '.join(MODES)}", got=repr(mode))
        self.classes, self.samples = class_folders("ImageFolder", root, extensions)
        self.size, self.mode = size, mode

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        path, label = self.samples[index]
        try:
            with self._pillow.open(path) as image:
                made = image.convert(self.mode)
                if self.size is not None:
                    made = made.resize(self.size[::-1], self._pillow.Resampling.BILINEAR)
                pixels = np.array(made, np.uint8)
        except (OSError, ValueError, SyntaxError, self._pillow.DecompressionBombError) as error:
            reason = str(error) or type(error).__name__
            raise BadRowError(path, index % len(self), None, reason) from None
        rows = pixels if pixels.ndim == 3 else pixels[:, :, None]
        return np.ascontiguousarray(rows.transpose(2, 0, 1)), label
