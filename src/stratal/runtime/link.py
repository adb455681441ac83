"""Objects into the memory of this process: sections laid out, symbols given addresses, places patched.

    code        sections that run, then a jump for each symbol outside        read and execute
    constants   sections that are read, then the table of addresses           read
    data        sections that are written                                     read and write

Each kind begins on a page of one mapping, so that code reaches its constants however far apart the process
maps things. A function outside, of the C library, may be farther away than a call reaches: code calls a jump
nearby, which takes the address from the table.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, get_args

from stratal.runtime.code_memory import PAGE, CodeMemory, Protection
from stratal.runtime.elf import Kind, Object, Relocation, Symbol, broken

_PROTECTION: Final[dict[Kind, Protection]] = {
    "code": "read and execute",
    "constants": "read",
    "data": "read and write",
}
_CODE_ALIGNMENT: Final = 64  # a loop lies in the same places of cache lines whatever else is linked
_SLOT: Final = struct.Struct("<Q")
_JUMP: Final = struct.Struct("<2sixx")  # jmp *offset(%rip), two bytes never reached
_JUMP_CODE: Final = b"\xff\x25"
_JUMP_LENGTH: Final = 6


class Patch(NamedTuple):
    """What a kind of relocation writes: the address of the symbol (of a jump to it where it is outside; of
    its slot in the table) plus the addend, less the place's own address where it is relative.
    """

    field: struct.Struct
    reach: Literal["symbol", "jump", "slot"]
    relative: bool


_INT32: Final = struct.Struct("<i")
PATCHES: Final[dict[int, Patch]] = {  # 32 bits of an absolute address reach nothing: not among them
    1: Patch(struct.Struct("<Q"), "symbol", relative=False),  # R_X86_64_64
    2: Patch(_INT32, "symbol", relative=True),  # PC32
    4: Patch(_INT32, "jump", relative=True),  # PLT32
    9: Patch(_INT32, "slot", relative=True),  # GOTPCREL
    24: Patch(struct.Struct("<q"), "symbol", relative=True),  # PC64
    41: Patch(_INT32, "slot", relative=True),  # GOTPCRELX
    42: Patch(_INT32, "slot", relative=True),  # REX_GOTPCRELX
}


class Linked(NamedTuple):
    """Exported names and their addresses, valid as long as the memory lives."""

    memory: CodeMemory
    addresses: dict[str, int]


def link(objects: Sequence[Object], given: Mapping[str, int] = MappingProxyType({})) -> Linked:
    """Load objects together; `given` are addresses of functions that the process does not export.

    Raises: CompilerError.
    """
    for object_ in objects:
        for section in object_.sections.values():
            for relocation in section.relocations:
                if relocation.kind not in PATCHES:
                    raise broken(f"a relocation of kind {relocation.kind}")
    return _Linking(objects, given).linked()


class _Linking:
    """One link in progress."""

    def __init__(self, objects: Sequence[Object], given: Mapping[str, int]) -> None:
        self.objects: Final = objects
        self.given: Final = given
        self.slots: Final = _slots(objects)
        self.offsets: dict[tuple[int, int], int] = {}  # of (object, section)
        self.ends: dict[Kind, int] = {}
        self.jumps = self.table = 0  # where they begin
        self._lay_out()
        self.memory: Final = CodeMemory(max(self.ends["data"], 1))
        self.exported: Final = self._exported()

    def _lay_out(self) -> None:
        end = 0
        for kind in get_args(Kind):
            end = _aligned(end, PAGE)
            for number, object_ in enumerate(self.objects):
                for index, section in object_.sections.items():
                    if section.kind == kind:
                        least = _CODE_ALIGNMENT if kind == "code" else 1
                        start = _aligned(end, max(section.alignment, least))
                        self.offsets[number, index] = start
                        end = start + section.nbytes
            if kind == "code":
                self.jumps = _aligned(end, _JUMP.size)
                end = self.jumps + _JUMP.size * len(self.slots)
            elif kind == "constants":
                self.table = _aligned(end, _SLOT.size)
                end = self.table + _SLOT.size * len(self.slots)
            self.ends[kind] = end

    def _exported(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for number, object_ in enumerate(self.objects):
            for symbol in object_.symbols:
                if symbol.exported and symbol.section:
                    if symbol.name in found:
                        raise broken(f"two definitions of {symbol.name!r}")
                    found[symbol.name] = self._place(number, symbol)
        return found

    def _place(self, number: int, symbol: Symbol) -> int:
        """Return the address of a symbol that an object defines."""
        start = self.offsets.get((number, symbol.section))
        if start is None:
            raise broken("a symbol in a section that is not loaded")
        return self.memory.address + start + symbol.offset

    def address(self, number: int, symbol: Symbol) -> int:
        """Return the address of any symbol an object names."""
        if symbol.section:
            return self._place(number, symbol)
        return self.exported.get(symbol.name) or self.given.get(symbol.name) or outside(symbol.name)

    def linked(self) -> Linked:
        """Write everything to its place and protect it."""
        with self.memory.writable() as image:
            self._fill(image)
        start = 0
        for kind, end in self.ends.items():
            self.memory.protect(start, end, _PROTECTION[kind])
            start = _aligned(end, PAGE)
        return Linked(self.memory, self.exported)

    def _fill(self, image: memoryview) -> None:
        for (number, index), k in self.slots.items():
            slot, jump = self.table + _SLOT.size * k, self.jumps + _JUMP.size * k
            _SLOT.pack_into(image, slot, self.address(number, self.objects[number].symbols[index]))
            _JUMP.pack_into(image, jump, _JUMP_CODE, slot - jump - _JUMP_LENGTH)
        for (number, index), start in self.offsets.items():
            section = self.objects[number].sections[index]
            image[start : start + len(section.content)] = section.content
            for relocation in section.relocations:
                width = PATCHES[relocation.kind].field.size
                if relocation.offset + width > len(section.content):
                    raise broken("a relocation beyond its section")
                self._patch(image, number, start, relocation)

    def _patch(self, image: memoryview, number: int, start: int, relocation: Relocation) -> None:
        field, reach, relative = PATCHES[relocation.kind]
        slot = self.slots.get((number, relocation.symbol), 0)
        symbol = self.objects[number].symbols[relocation.symbol]
        if reach == "slot":
            value = self.memory.address + self.table + _SLOT.size * slot
        elif reach == "jump" and not symbol.section and symbol.name not in self.exported:
            value = self.memory.address + self.jumps + _JUMP.size * slot
        else:
            value = self.address(number, symbol)
        place = start + relocation.offset
        value += relocation.addend - (self.memory.address + place if relative else 0)
        try:
            field.pack_into(image, place, value)
        except struct.error:
            raise broken("a relocation that does not reach") from None


def _slots(objects: Sequence[Object]) -> dict[tuple[int, int], int]:
    """Number the symbols (object, symbol) that need a slot in the table: those outside, and those whose
    address code reads from it.
    """
    slots: dict[tuple[int, int], int] = {}
    for number, object_ in enumerate(objects):
        for section in object_.sections.values():
            for relocation in section.relocations:
                if not object_.symbols[relocation.symbol].section or PATCHES[relocation.kind].reach == "slot":
                    slots.setdefault((number, relocation.symbol), len(slots))
    return slots


def outside(name: str) -> int:
    """Return the address of a function of this process, such as libc's. Raises: CompilerError."""
    try:
        found = ctypes.cast(_process()[name], ctypes.c_void_p).value
    except AttributeError:
        found = None
    if not found:
        raise broken(f"there is no {name!r}")
    return found


@lru_cache(maxsize=1)
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
