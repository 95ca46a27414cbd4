"""Pack a run's raw records into one file, `records.tar.xz`, small enough to keep in git, and unpack it.

Logs are left out. Equal records give equal bytes, so an archive changes only when a record does.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ddpbench.errors import OutputError, RequestError, UnreadableError
from ddpbench.guarded_folder import GuardedFolder
from ddpbench.records.files import MIB, create_file, most_of, read_bytes, write_anew, write_atomically
from ddpbench.records.rundir import CASE_ID, RunDir, explain_os_error, is_record
from ddpbench.removal import remove_tree
from ddpbench.text_safety import command, shortened
from ddpbench.units import counted

if TYPE_CHECKING:
    import tarfile

_NAME = re.compile(
    rf"cases/{CASE_ID.pattern}/(proof|launch-\d+)(\.aside-\d+)?"
    r"/(launch\.json|outcome\.json|rank-\d+\.attempt-\d+\.jsonl)",
    re.ASCII,
)
"""Pattern of the paths that an archive may contain. No path that matches it leads out of the run directory."""
MOST_BYTES = 2**30
"""Largest size of an archive, packed or unpacked, bytes; a few KB of xz could unpack to TB."""
_MOST_ON_DISK = 2 * MOST_BYTES
"""Most disk space that unpacked files and folders may take, in bytes. Empty files count too: a 1 GiB tar can hold two
million of them.
"""
_BLOCK = 4096
"""Size of a block of disk space on a usual disk, bytes. A folder takes one block."""
_MOST_MEMORY = 2**27
"""Most memory for decompression, bytes; an archive of `pack` needs half of it, and a hostile archive could ask for 4
GiB.
"""
_STAMP = ".unpacked"
"""Name of a file in `cases/` with the digest of the archive that has the same records. If a sweep has written `cases/`,
the file is missing.
"""


def pack(run: RunDir) -> Path:
    """Write `records.tar.xz` from the records in `cases/`, and return its path.

    Files that are not named like a record are left out. `unpackable` lists them.

    Raises:
        RequestError: records are missing, or have more than `MOST_BYTES`, or a name is too long.
        OutputError: the archive cannot be written.
    """
    import lzma
    import tarfile

    names = sorted(_record_files(run.path))
    if not names:
        raise RequestError(f"{run.path} has no records to pack: cases/ is missing or empty")
    sizes = {name: (run.path / name).stat().st_size for name in names}
    space = DiskSpace()
    if any(space.too_large_with(*each) for each in sizes.items()):
        raise _too_many(run)
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in names:
            data = read_bytes(run.path / name, most_of(name))
            member = tarfile.TarInfo(
                name
            )  # time 0, owner 0, mode 0644, so that equal records give equal bytes
            member.size = len(data)
            try:
                archive.addfile(member, io.BytesIO(data))
            except ValueError:  # in the folder of a case that no sweep has planned
                raise RequestError(
                    f"{shortened(name)} cannot be packed: its name is too long; remove the folder"
                ) from None
            if content.tell() > MOST_BYTES:  # files have grown, or there are very many
                raise _too_many(run)
    packed = lzma.compress(content.getvalue(), preset=9 | lzma.PRESET_EXTREME)
    stamp = run.cases / _STAMP
    try:
        if stamp.exists():  # the stamp has both digests while the archive is replaced
            write_atomically(stamp, "\n".join([*_stamp_now(run), _digest(packed)]))
        write_atomically(run.packed, packed)
        if stamp.exists():
            write_atomically(stamp, _digest(packed))
    except OSError as error:
        raise OutputError(f"{run.packed} cannot be written: {explain_os_error(error)}") from None
    return run.packed


def _too_many(run: RunDir) -> RequestError:
    return RequestError(f"{run.cases} holds more than {MOST_BYTES:,} bytes of records, too many to pack")


def unpack(run: RunDir) -> None:
    """Unpack `records.tar.xz` into `cases/`, unless the archive is missing or `cases/` exists.

    Raises:
        UnreadableError: the archive is damaged, or contains something other than records.
        RequestError: `cases/` was unpacked from a different archive than the present one.
        OutputError: the directory cannot be written.
    """
    if not run.packed.exists():
        return
    if run.cases.exists():
        _check_stamp(run)
        return
    with run.held(planned=False) as own:
        _unpack(own)


def outdated(run: RunDir) -> str:
    """Return a warning if `records.tar.xz` is damaged or lacks launches of `cases/`, with the command to renew it.

    Empty if it is up to date, or if either is missing.
    """
    if not run.packed.exists() or not run.cases.exists():
        return ""
    renew = f"renew it with: {command('ddpbench', 'pack', run.path)}"
    try:
        content = _Content(read_bytes(run.packed, MOST_BYTES))
        with _naming_damage(run.packed):
            packed = _check_members(run.packed, content)
            content.finish()
    except FileNotFoundError:
        return ""
    except UnreadableError as error:
        return f"{error}; {renew}"
    finished = [name for name in _record_files(run.path) if name.endswith("/outcome.json")]
    lacking = sum(name not in packed for name in finished)
    if not lacking:
        return ""
    launches = counted(len(finished), "launch", "launches")
    return f"{run.packed} is older than the records and lacks {lacking:,} of {launches}; {renew}"


def _unpack(run: RunDir) -> None:
    try:
        with GuardedFolder(".unpacking-", run.path) as folder:
            unpacked = RunDir(folder)
            packed = read_bytes(run.packed, MOST_BYTES)
            with _naming_damage(run.packed):
                for name, pieces in _members(run.packed, packed):
                    target = unpacked.path / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with create_file(target) as file:
                        file.writelines(pieces)
            unpacked.cases.mkdir(exist_ok=True)
            write_anew(unpacked.cases / _STAMP, _digest(packed))
            # Another process may have unpacked the archive meanwhile. Its folder, which is not empty, is not replaced.
            with contextlib.suppress(FileExistsError):
                _rename(unpacked.cases, run.cases)
    except OSError as error:
        raise OutputError(f"{run.packed} cannot be unpacked: {explain_os_error(error)}") from None


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        remove_tree(source)


@dataclass(slots=True)
class DiskSpace:
    """Two totals in bytes: the disk space that files and their folders take, and the sum of the files' sizes.

    Files are added one by one.
    """

    taken: int = 0
    size: int = 0
    _folders: set[str] = field(default_factory=set)

    def exceeded_with(self, name: str, size: int) -> bool:
        """Add a file, and return whether the total now exceeds the limit on disk space."""
        folders = {name.rsplit("/", up)[0] for up in (1, 2)} - self._folders
        self._folders |= folders
        self.taken += _BLOCK * (max(1, -(-size // _BLOCK)) + len(folders))
        self.size += size
        return self.taken > _MOST_ON_DISK

    def too_large_with(self, name: str, size: int) -> bool:
        """Add a file, and return whether the total now exceeds the limits of an archive."""
        return self.exceeded_with(name, size) or self.size > MOST_BYTES

    @property
    def limits(self) -> str:
        """The limits of an archive, in words."""
        return f"{MOST_BYTES:,} bytes, or {_MOST_ON_DISK:,} bytes on a disk"


class _Content:
    """An archive's content, decompressed piece by piece, because a few KB of xz may contain 1 GiB."""

    def __init__(self, packed: bytes) -> None:
        import lzma

        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_MEMORY)
        self._packed = memoryview(packed)
        self._left = MOST_BYTES

    def piece(self, most: int) -> bytes:
        """Return at most the next `most` bytes; empty at the end.

        Raises:
            EOFError: the archive is cut off, or its content has more than `MOST_BYTES`.
        """
        while not self._decompressor.eof:
            given = self._packed[: MIB if self._decompressor.needs_input else 0]
            self._packed = self._packed[len(given) :]
            if not given and self._decompressor.needs_input:
                raise EOFError("its end is missing")
            data = self._decompressor.decompress(given, max_length=most)
            self._left -= len(data)
            if self._left < 0:
                raise EOFError(f"it holds more than {MOST_BYTES:,} bytes")
            if data:
                return data
        return b""

    def pieces(self, count: int) -> Iterator[bytes]:
        """Yield the next `count` bytes, in pieces.

        Raises:
            EOFError: fewer bytes are left.
        """
        while count:
            found = self.piece(min(count, MIB))
            if not found:
                raise EOFError("its last member is cut off")
            count -= len(found)
            yield found

    def skip(self, count: int) -> None:
        """Skip the next `count` bytes. Raises the same errors as `pieces`."""
        for _ in self.pieces(count):
            pass

    def finish(self) -> None:
        """Read the rest, to verify the last checksum. Raises the same errors as `piece`."""
        while self.piece(MIB):
            pass


def _headers(content: _Content) -> Iterator[tarfile.TarInfo]:
    """Yield the members' headers; the caller must read the contents before the next one.

    Only single-block headers, as `pack` writes them: tarfile could take minutes for longer ones.
    """
    import tarfile

    while any(header := b"".join(content.pieces(tarfile.BLOCKSIZE))):
        yield tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")


def _padding(size: int) -> int:
    import tarfile

    return -size % tarfile.BLOCKSIZE


@contextlib.contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    import lzma
    import tarfile

    try:
        yield
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, OverflowError) as error:
        raise UnreadableError(f"{path} is damaged: {error}") from None


def _members(path: Path, packed: bytes) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the name and contents, in pieces, of each file; messages call the archive `path`.

    Raises:
        UnreadableError: a member is not a record file, occurs twice or is too large, or there are too many.
        EOFError, lzma.LZMAError, tarfile.TarError: the archive is damaged; reading the contents may raise these too.
    """
    content = _Content(packed)
    _check_members(path, content)  # check all members before the caller writes any
    content.finish()
    content = _Content(packed)
    for member in _headers(content):
        yield member.name, content.pieces(member.size)
        content.skip(_padding(member.size))


def _check_members(path: Path, content: _Content) -> set[str]:
    """Check an archive's members, and return their names.

    Raises:
        UnreadableError: a member is not a record file, occurs twice or is too large, or there are too many.
        EOFError, lzma.LZMAError, tarfile.TarError: the archive is damaged.
    """
    import tarfile

    seen: set[str] = set()
    space = DiskSpace()
    for member in _headers(content):
        plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and member.size >= 0
        if not plain or member.name in seen or not _NAME.fullmatch(member.name):
            raise UnreadableError(
                f"{path}: unexpected member {member.name[:200]!r}; an archive of records holds each launch's "
                "launch.json, outcome.json and rank-*.jsonl once, and nothing else. The archive was not unpacked"
            )
        if member.size > (most := most_of(member.name)):
            raise UnreadableError(
                f"{path}: {member.name} has {member.size:,} bytes; such a file has {most:,} at most. The archive "
                "was not unpacked"
            )
        if space.exceeded_with(member.name, member.size):
            raise UnreadableError(
                f"{path}: its files and their folders would take more than {_MOST_ON_DISK:,} bytes on a disk, "
                "which is more than any run takes. The archive was not unpacked"
            )
        seen.add(member.name)
        content.skip(member.size + _padding(member.size))
    return seen


def _record_files(root: Path) -> Iterator[str]:
    """Yield the paths to pack, relative to `root`; `read_plan` has checked that no folder is a link."""
    for path in (root / "cases").glob("*/*/*"):
        if is_record(*path.parts[-3:]) and path.is_file() and not path.is_symlink():
            yield path.relative_to(root).as_posix()


def unpackable(run: RunDir) -> list[str]:
    """Return the paths, relative to the run, of JSON files in `cases/` that are not records and so are not packed."""
    found = (path for path in run.cases.glob("*/*/*") if path.suffix in (".json", ".jsonl"))
    return sorted(path.relative_to(run.path).as_posix() for path in found if not is_record(*path.parts[-3:]))


def _check_stamp(run: RunDir) -> None:
    while True:
        digest = _digest(read_bytes(run.packed, MOST_BYTES))
        try:
            stamped = _stamped(run.cases / _STAMP)
        except FileNotFoundError:
            return
        if digest in stamped:
            return
        if digest == _digest(read_bytes(run.packed, MOST_BYTES)):  # else it was packed between the two reads
            break
    raise RequestError(
        f"{run.cases} was unpacked from a different {run.packed.name} than the present one; move "
        f"{run.cases} away to read the new one"
    )


def _stamp_now(run: RunDir) -> list[str]:
    """Return the archive's digest in a list if `cases/` was unpacked from it; else an empty list."""
    with contextlib.suppress(FileNotFoundError, UnreadableError):
        digest = _digest(read_bytes(run.packed, MOST_BYTES))
        return [digest] if digest in _stamped(run.cases / _STAMP) else []
    return []


def _stamped(stamp: Path) -> list[str]:
    """Return a stamp's digests: two while the archive is being replaced, otherwise one."""
    return read_bytes(stamp, 1000).decode("ascii", "replace").split()


def _digest(packed: bytes) -> str:
    return hashlib.sha256(packed).hexdigest()
