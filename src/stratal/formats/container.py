"""Containers: a few named files and a manifest of their checksums, as a folder or as one zip file.

In a folder file names are drawn anew for every save, in a zip file they follow from what
is in the files. A zip file is stored, not compressed. Every byte is checked: what differs from what was
written is refused.
"""

from __future__ import annotations

import io
import os
import secrets
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from stratal.base.errors import FormatError
from stratal.base.files import (
    abandoned,
    create_locked,
    exists,
    ignoring_os_errors,
    make_folder,
    remove_drafts,
    sync_folder,
)
from stratal.base.interrupts import UNINTERRUPTIBLE
from stratal.formats.files import (
    Bytes,
    MissingFileError,
    cannot_open,
    destination,
    open_file,
    read_aligned,
    read_whole,
    replace_file,
    write_atomically,
    write_synced,
    writing,
)
from stratal.formats.manifest import (
    FILE_NAME,
    MANIFEST,
    MANIFEST_LIMIT,
    Rows,
    checked_manifest,
    manifest_of,
    refuse,
    row_of,
    verified,
)

SINGLE_FILE: Final = ".stratal"  # a path that ends so is one file; any other is a folder
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_OVERHEAD: Final = MANIFEST_LIMIT + (1 << 16)  # of a zip file: its manifest and what zip adds


def write_container(path: str | Path | BinaryIO, files: Mapping[str, Iterable[Bytes]]) -> None:
    """Write named files and their manifest; a container that stood there is replaced whole or stays whole.

    An open file gets the one file that a path ending in `.stratal` would name, where it stands.

    Raises: FileWriteError.
    """
    target = destination(path) if isinstance(path, (str, os.PathLike)) else None
    in_one = target is None or target.suffix == SINGLE_FILE
    chunks = {name: list(parts) for name, parts in files.items()}
    rows = {
        name: row_of(name, parts, "" if in_one else secrets.token_hex(8)) for name, parts in chunks.items()
    }
    members = {rows[name]["file"]: parts for name, parts in chunks.items()}
    if in_one:
        joined = {name: b"".join(parts) for name, parts in members.items()}
        with UNINTERRUPTIBLE:  # an exception leaves a ZipFile that cannot be closed; its finalizer drops one
            data = _zip_bytes({MANIFEST: manifest_of(rows), **joined})
        if isinstance(path, (str, os.PathLike)):
            write_atomically(path, [data])
        else:
            path.write(data)
    elif target is not None:
        write_folder(target, manifest_of(rows), members)


def _zip_bytes(members: Mapping[str, bytes]) -> bytes:
    """Return the one way a zip of these members is written: stored, in order, without a date."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def read_container(path: str | Path | BinaryIO) -> dict[str, memoryview]:
    """Return the files of a container by name, every byte checked; an open file is read from where it stands.

    Raises: FormatError.
    """
    found = read_container_or_zip(path, ())
    assert isinstance(found, dict)
    return found


def read_container_or_zip(
    path: str | Path | BinaryIO, first_members: tuple[bytes, ...]
) -> dict[str, memoryview] | memoryview:
    """Return the files of a container, see `read_container`; of a zip file whose first member's name has one
    of some endings, all bytes as they are. Raises: FormatError.
    """
    opened = None if isinstance(path, (str, os.PathLike)) else path
    place = Path("the file given" if opened is not None else path)  # type: ignore[arg-type]
    try:
        if opened is None and place.is_dir():
            return read_folder(place)
        file, size = open_file(place) if opened is None else _stream(opened)
        if first_members and _first_member_name(_start(file, size, place)).endswith(first_members):
            with file:
                return read_aligned(file, size, place)
        data = _read_zip(file, size, place)
        with UNINTERRUPTIBLE:  # as in writing
            members = _unzipped(data)
    except (OSError, ValueError) as error:  # a name too long, or not to be looked at
        if isinstance(error, FormatError) or getattr(error, "errno", 0) is None:
            raise
        raise cannot_open(place, error) from None
    found = {}
    for name, row in checked_manifest(members.pop(MANIFEST, memoryview(b""))).items():
        if row["file"] not in members:
            refuse("a file of the manifest is missing", row["file"])
        found[name] = verified(name, row, members.pop(row["file"]))
    if members:
        refuse("the file holds more than its manifest says", sorted(members)[0])
    return found


def _stream(opened: BinaryIO) -> tuple[io.BytesIO, int]:
    """Return what is left to read of an open file, and its size. Raises: FormatError for one of text."""
    data: object = opened.read()
    if not isinstance(data, bytes):
        got = f"a file of {type(data).__name__}"
        raise FormatError("load: takes a file opened as binary", got=got, hint='open(path, "rb")')
    return io.BytesIO(data), len(data)


def _read_zip(file: FileIO | io.BytesIO, size: int, path: Path) -> memoryview:
    """Return the bytes of a zip file whose first member is a manifest of what it holds, and of no more.

    Raises: FormatError, before anything large is read of a file that has a path.
    """
    with file:
        start = _start(file, size, path, len(MANIFEST) + MANIFEST_LIMIT)
        rows = checked_manifest(_first_member(start, path))
        held = sum(row["bytes"] for row in rows.values())
        if not 0 <= size - held <= _OVERHEAD:
            refuse("the file is not as long as its manifest says", f"{size} bytes for {held}")
        return read_aligned(file, size, path)


def _start(file: FileIO | io.BytesIO, size: int, path: Path, most: int = 1024) -> bytes:
    """Return a file's first bytes, and go back to its beginning. Raises: FormatError."""
    start = bytes(read_aligned(file, min(size, _FIRST.size + most), path))
    file.seek(0)
    return start


TORCH_MEMBERS: Final = (b"/data.pkl", b"/.format_version")  # how names of first members end
_FIRST: Final = struct.Struct("<4s14xI4xHH")  # of a local header: signature, bytes, lengths


def _first_member(start: bytes, path: Path) -> bytes:
    """Return the content of a zip file's first member, which must be a stored manifest."""
    if len(start) >= _FIRST.size:
        signature, nbytes, name, extra = _FIRST.unpack_from(start)
        begin = _FIRST.size + name + extra
        if signature == b"PK\3\4" and start[_FIRST.size :][:name] == MANIFEST.encode():
            return start[begin : begin + nbytes]
    what, hint = _written_by(start)
    if what:
        raise FormatError(f"model file: not written by st.save but {what}", got=path.name, hint=hint)
    refuse("not a model, or damaged")


def _first_member_name(start: bytes) -> bytes:
    """Return the name of a zip file's first member by the file's first bytes; nothing where it is no zip."""
    if start[:4] != b"PK\3\4" or len(start) < _FIRST.size:
        return b""
    return start[_FIRST.size :][: _FIRST.unpack_from(start)[2]]


def _written_by(start: bytes) -> tuple[str, str]:
    """Return what else a file may be by its first bytes, and what reads it; nothing where nobody knows."""
    member = _first_member_name(start)
    if member.endswith(TORCH_MEMBERS):
        return "by torch.save", "st.load reads it"
    if b"/data/" in member:
        hint = "its code does not run here; torch.save(net.state_dict(), path) writes what st.load reads"
        return "by torch.jit.save or torch.export.save", hint
    if member.endswith(b".npy"):
        return "NumPy's .npz", "np.load reads it; st.tensor takes each array"
    if start[:6] == b"\x93NUMPY":
        return "NumPy's .npy", "st.tensor(np.load(path))"
    if start[:4] == b"\x89HDF":
        return "HDF5", "h5py reads it; st.tensor takes each array"
    if start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        hint = "PyTorch from 1.6 on writes what st.load reads: torch.save(torch.load(old), path)"
        return "a pickle, as torch.save wrote once", hint
    if start[8:9] == b"{" and len(start) > 8 and not any(start[5:8]):
        return "safetensors", "st.formats.load_tensors(path)"
    if start and not member and all(32 <= c < 127 or c in b"\t\n\r" for c in start[:256]):
        return "text", "st.save(value, path) writes what st.load reads"
    return "", ""


def _unzipped(data: memoryview) -> dict[str, memoryview]:
    """Return the members of a zip file that `_zip_bytes` wrote."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if any(e.compress_type != zipfile.ZIP_STORED or e.file_size > len(data) for e in entries):
                refuse("a member is compressed or larger than the file")
            members = {e.filename: archive.read(e) for e in entries}
    except (zipfile.BadZipFile, ValueError, KeyError, NotImplementedError, OSError, EOFError, OverflowError,
            RuntimeError, struct.error) as error:  # fmt: skip
        if isinstance(error, FormatError) or getattr(error, "errno", 0) is None:
            raise
        raise FormatError("model file: not a model, or damaged", got=str(error)[:120]) from None
    if _zip_bytes(members) != data:
        refuse("the file is damaged, or was not written by Stratal")
    return {name: _aligned(content) for name, content in members.items()}


def _aligned(data: bytes) -> memoryview:
    """Return a writable copy whose tensors can be used where they stand."""
    copy = np.empty(len(data), np.uint8)
    copy[:] = np.frombuffer(data, np.uint8)
    return copy.data


# -- folders -------------------------------------------------------------------------------------------------
# A save writes files under names nobody else has, syncs them, and renames its manifest into place: that one
# rename replaces a version by another. Files no manifest names are removed afterwards, and by later saves,
# unless their writer lives and may still name them: it holds their locks until its manifest is in place.
# Readers take no lock. One whose files are gone finds another manifest and reads what that names.


def write_folder(folder: Path, manifest: bytes, members: Mapping[str, Sequence[Bytes]]) -> None:
    """Write files and the manifest that names them. Raises: FileWriteError, see `write_atomically`."""
    make_room(folder)
    with members_written(folder, members):
        replace_file(folder / MANIFEST, [manifest])
    remove_unnamed(folder)


def make_room(folder: Path) -> None:
    """Make a folder, and remove what savers left there that died. Raises: FileWriteError."""
    with writing(folder.name):
        make_folder(folder)
        _remove_unnamed(folder, os.listdir(folder))


def remove_unnamed(folder: Path) -> None:
    """Remove files that no manifest names any more, as far as the system lets."""
    with ignoring_os_errors():
        _remove_unnamed(folder, os.listdir(folder))


def remove_folder(folder: Path) -> None:
    """Remove a container that is a folder, its manifest first, and the folder unless it holds more.

    Raises: OSError.
    """
    with suppress(FileNotFoundError):
        os.unlink(folder / MANIFEST)
    _remove_unnamed(folder, os.listdir(folder))
    remove_drafts(folder)
    os.rmdir(folder)


@contextmanager
def members_written(folder: Path, members: Mapping[str, Sequence[Bytes]]) -> Iterator[None]:
    """Write files for a block that puts the manifest in place which names them; remove them where it raises.

    Raises: FileWriteError.
    """
    with ExitStack() as files:
        try:
            with writing(folder.name):
                for name, parts in members.items():
                    file = files.enter_context(create_locked(folder / name))
                    write_synced(file, parts)
                sync_folder(folder)
            yield
        except BaseException:
            files.close()
            _remove_unnamed(folder, members)
            raise


def _remove_unnamed(folder: Path, names: Iterable[str]) -> None:
    """Remove those of some files that no manifest names, now or later."""
    for name in names:
        if not FILE_NAME.fullmatch(name):
            continue
        with ignoring_os_errors(), abandoned(folder / name) as is_abandoned:
            # Asked while its lock is held: whoever wrote it has named it by now, or never will.
            if is_abandoned and not _is_named(folder, name):
                os.unlink(folder / name)


def _is_named(folder: Path, name: str) -> bool:
    """Return whether the manifest in a folder names a file; one that cannot be read may name any."""
    if not exists(folder / MANIFEST):
        return False
    try:
        return any(row["file"] == name for row in _manifest(folder)[1].values())
    except FormatError:
        return True


def _manifest(folder: Path) -> tuple[bytes, Rows]:
    data = bytes(read_whole(folder / MANIFEST, MANIFEST_LIMIT, follow=False))
    return data, checked_manifest(data)


def read_folder(folder: Path) -> dict[str, memoryview]:
    """Return the files of a folder by name, every byte checked. Raises: FormatError."""
    manifest = b""
    while True:
        before = manifest
        manifest, rows = _manifest(folder)
        with ExitStack() as files:
            try:
                opened = _opened(folder, rows, files)
            except MissingFileError as error:
                if manifest != before:
                    continue  # a save may have replaced it since
                raise FormatError("load: a file of the manifest is missing", got=error.got) from None
            return {
                name: verified(name, rows[name], read_aligned(file, size, folder / rows[name]["file"]))
                for name, (file, size) in opened.items()
            }


def _opened(folder: Path, rows: Rows, files: ExitStack) -> dict[str, tuple[FileIO, int]]:
    """Return name -> open file and its size: what is open can be read though it be removed."""
    found = {}
    for name, row in rows.items():
        file, size = open_file(folder / row["file"], row["bytes"], follow=False)
        files.enter_context(file)
        found[name] = file, size
    return found
