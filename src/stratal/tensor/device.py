"""Where tensors lie: on the CPU, whatever name says so."""

from __future__ import annotations

from typing import Any

from stratal.base.errors import AttributeValueError

_KINDS = ("cpu", "cuda", "gpu", "meta", "mps", "xpu")


class device(str):
    """A device: `st.device("cpu")`. It equals its name. Raises: AttributeValueError for any but the CPU."""

    __slots__ = ("index", "type")

    type: str
    index: int | None  # type: ignore[assignment]  # PyTorch's name for it, and a method of str

    def __new__(cls, type: Any = "cpu", index: int | None = None) -> device:
        name, colon, number = str(type).partition(":")
        if colon:
            index = int(number) if number.isdigit() else -1
        if name not in _KINDS:
            raise AttributeValueError("device: a kind of device, cpu:0 or such", got=repr(type))
        if name != "cpu" or index not in (None, 0):
            raise AttributeValueError(
                "device: only the CPU is here", got=str(type), hint='leave device out, or pass "cpu"'
            )
        made = super().__new__(cls, "cpu")
        made.type, made.index = "cpu", index
        return made

    def __getnewargs__(self) -> tuple[str, int | None]:  # type: ignore[override]
        return self.type, self.index

    def __repr__(self) -> str:
        return f"device(type={self.type!r}" + ("" if self.index is None else f", index={self.index}") + ")"


CPU = device("cpu")


def check_device(given: Any) -> None:
    """Refuse any device but the CPU: another name is an error rather than a silent change of place."""
    if given is not None and given is not CPU:
        device(given)


def is_device(value: Any) -> bool:
    """Return whether a value names a device, here or not."""
    return isinstance(value, str) and value.partition(":")[0] in _KINDS
