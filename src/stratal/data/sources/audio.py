"""Folders of audio (soundfile): one folder for each class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from stratal.data.bad_rows import BadRowError
from stratal.data.sources.class_folders import class_folders
from stratal.data.sources.opening import required

Array = np.ndarray[Any, Any]
EXTENSIONS: Final = (".wav", ".aif", ".aiff", ".flac", ".mp3", ".ogg")


class AudioFolder:
    """Recordings and classes: element k is (float32 [channels, frames], the number of the class).

    Samples lie between -1 and 1. All files have one `rate`, in Hz: that of the first where it is not given.
    `frames` cuts recordings to a length. Classes and files are found as by `ImageFolder`.
    Raises: MissingSourceError, FormatError for a folder without files, MissingExtraError without soundfile;
    BadRowError for a file that cannot be read or has another rate.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, rate: int | None = None, frames: int | None = None,
        extensions: Sequence[str] = EXTENSIONS, classes: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        required("soundfile", "audio")
        self.classes, self.samples = class_folders("AudioFolder", root, extensions, classes)
        self.frames = frames
        self.rate = rate or self._opened(0, lambda file: int(file.samplerate))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Array, int]:
        def read(file: Any) -> Array:
            if file.samplerate != self.rate:
                raise ValueError(f"{file.samplerate} Hz, not {self.rate}")
            samples = file.read(-1 if self.frames is None else self.frames, dtype="float32", always_2d=True)
            return np.ascontiguousarray(samples.T)

        return self._opened(index, read), self.samples[index][1]

    def _opened(self, index: int, read: Any) -> Any:
        """Return what a function makes of a file. Raises: BadRowError."""
        path = self.samples[index][0]
        soundfile = required("soundfile", "audio")  # no attribute: worker processes get this object pickled
        try:
            with soundfile.SoundFile(path) as file:
                return read(file)
        except (RuntimeError, OSError, ValueError) as error:
            raise BadRowError(path, index % len(self), None, str(error)) from None
