"""Relocatable objects of x86-64 in the ELF format, as LLVM writes them, read into values.

    Object      := sections by their number, symbols
    Section     what takes memory in a process: code, constants or data; and the places in it to patch
    Symbol      a name for an offset in a section, or of something outside (section 0)
    Relocation  a place to patch: offset, kind, symbol, addend

An object comes from a file and may hold anything. Every offset, size and index is checked before it is used.
What breaks the format is refused, and so is what generated code never needs: memory of one thread, common and
weak symbols, groups of sections.
See: the System V ABI, chapters 4 and 5, and its supplement for AMD64.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final, Literal, NamedTuple

from stratal.base.errors import CompilerError

Kind = Literal["code", "constants", "data"]

_IDENTITY: Final = b"\x7fELF\2\1\1"  # 64 bits, little-endian, version 1
_RELOCATABLE: Final = 1
_X86_64: Final = 62
_HEADER: Final = Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = Struct("<IIQQQQIIQQ")
_SYMBOL: Final = Struct("<IBBHQQ")
_RELOCATION: Final = Struct("<QIIq")

_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL, _GROUP, _UNWIND = 1, 2, 4, 8, 9, 17, 0x70000001  # section types
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4  # section flags
_KNOWN_FLAGS: Final = _WRITE | _ALLOC | _EXECUTE | 0x10 | 0x20 | 0x40  # mergeable, of strings, with a link
_LOCAL, _GLOBAL = 0, 1  # bindings of symbols
_PLAIN_SYMBOLS: Final = range(5)  # types: none, object, function, section, file
_FILE: Final = 4
_FIRST_RESERVED: Final = 0xFF00  # section numbers that are no sections


class Relocation(NamedTuple):
    offset: int
    kind: int
    symbol: int
    addend: int


class Section(NamedTuple):
    """Memory to be: `content`, then zeros up to `nbytes`."""

    kind: Kind
    content: bytes
    nbytes: int
    alignment: int
    relocations: list[Relocation]


class Symbol(NamedTuple):
    name: str
    section: int
    offset: int
    exported: bool  # seen by other objects


class Object(NamedTuple):
    sections: dict[int, Section]
    symbols: list[Symbol]


class _Header(NamedTuple):
    """A section's header."""

    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


def read_object(code: bytes) -> Object:
    """Return what an object file holds. Raises: CompilerError."""
    if not code.startswith(_IDENTITY):
        raise broken(f"it begins with {code[:7]!r}")
    _, type_, machine, _, _, _, start, _, _, _, _, size, count, _ = _HEADER.unpack(
        _part(code, 0, _HEADER.size, "header")
    )
    if (type_, machine, size) != (_RELOCATABLE, _X86_64, _SECTION.size):
        raise broken(f"file type {type_} for machine {machine}")
    table = _part(code, start, count * _SECTION.size, "section table")
    headers = [_Header(*fields) for fields in _SECTION.iter_unpack(table)]
    sections = {
        number: _section(code, header)
        for number, header in enumerate(headers)
        if header.flags & _ALLOC and header.type != _UNWIND  # nothing unwinds through generated code
    }
    symbols: list[Symbol] = []
    for header in headers:
        if header.type == _SYMTAB:
            if symbols:
                raise broken("two symbol tables")
            symbols = list(_symbols(code, header, headers, sections))
        elif header.type in (_REL, _GROUP):
            raise broken(f"a section of type {header.type}")
    for header in headers:
        if header.type == _RELA and header.info in sections:
            sections[header.info].relocations.extend(_relocations(code, header, len(symbols)))
    return Object(sections, symbols)


def broken(what: str) -> CompilerError:
    """Return the error for an object that cannot be what generated code became."""
    return CompilerError("linker: object code does not link", got=what)


def _part(code: bytes, start: int, size: int, what: str) -> bytes:
    if start + size > len(code):
        raise broken(f"the {what} ends beyond the object")
    return code[start : start + size]


def _records(layout: Struct, code: bytes, header: _Header, what: str) -> Iterator[tuple[Any, ...]]:
    table = _part(code, header.offset, header.size, what)
    if len(table) % layout.size:
        raise broken(f"half an entry in the {what}")
    return layout.iter_unpack(table)


def _section(code: bytes, header: _Header) -> Section:
    if header.type not in (_PROGBITS, _NOBITS) or header.flags & ~_KNOWN_FLAGS:
        raise broken(f"a section of type {header.type}, flags {header.flags:#x}")
    alignment = max(header.alignment, 1)
    if alignment & (alignment - 1) or alignment > mmap.PAGESIZE:
        raise broken(f"a section aligned to {alignment} bytes")
    if header.flags & _EXECUTE and header.flags & _WRITE:
        raise broken("code that can be written")
    kind: Kind = "code" if header.flags & _EXECUTE else "data" if header.flags & _WRITE else "constants"
    content = b"" if header.type == _NOBITS else _part(code, header.offset, header.size, "section")
    return Section(kind, content, header.size, alignment, [])


def _symbols(
    code: bytes, header: _Header, headers: list[_Header], sections: dict[int, Section]
) -> Iterator[Symbol]:
    if header.link >= len(headers):
        raise broken("a symbol table without names")
    names = _part(code, headers[header.link].offset, headers[header.link].size, "names")
    for name, info, _, section, offset, _ in _records(_SYMBOL, code, header, "symbol table"):
        binding, type_ = info >> 4, info & 15
        if type_ == _FILE:
            yield Symbol("", 0, 0, exported=False)
            continue
        if binding not in (_LOCAL, _GLOBAL) or type_ not in _PLAIN_SYMBOLS or section >= _FIRST_RESERVED:
            raise broken(f"a symbol of binding {binding}, type {type_}, section {section:#x}")
        if section in sections and offset > sections[section].nbytes:
            raise broken("a symbol beyond its section")
        yield Symbol(_name(names, name), section, offset, exported=binding == _GLOBAL)


def _name(names: bytes, start: int) -> str:
    end = names.find(b"\0", start)
    try:
        if start > end:
            raise broken("a name without an end")
        return names[start:end].decode("ascii")
    except UnicodeDecodeError:
        raise broken("a name that is no text") from None


def _relocations(code: bytes, header: _Header, num_symbols: int) -> Iterator[Relocation]:
    for offset, kind, symbol, addend in _records(_RELOCATION, code, header, "relocations"):
        if symbol >= num_symbols:
            raise broken("a relocation to no symbol")
        yield Relocation(offset, kind, symbol, addend)
