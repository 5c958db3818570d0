"""A benchmark taken from its public home, kept in a folder of the cache, and recognised again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal, cast

from promptcodebook.data import SPLITS
from promptcodebook.data.load import read_source
from promptcodebook.data.table import Table
from promptcodebook.errors import DataError, TaskError, import_extra
from promptcodebook.paths import settle
from promptcodebook.units import bytes_text

Rows = list[dict[str, object]]

_RECORD = "origin.json"
_TIMEOUT_S = 60.0
"""Seconds without a byte."""
_DOWNLOAD_S = 3600.0
"""Seconds for a whole file, however steadily its bytes drip in."""
_MOST_FILES = 10_000
"""Files in an archive."""
_LIBRARIES = ("pooch", "requests")
_BASES = {
    "hub": ("HF_ENDPOINT", "https://huggingface.co"),
    "github": ("PCO_GITHUB_RAW", "https://raw.githubusercontent.com"),
}
_PATHS = {
    "hub": "{base}/datasets/{repo}/resolve/{revision}/{path}",
    "github": "{base}/{repo}/{revision}/{path}",
}


@dataclass(frozen=True, slots=True)
class Remote:
    """One file: of a data set on the Hugging Face hub, or of a repository on GitHub.

    `unpack` names the folder that an archive's content goes to, for what is not rows. A file (or an
    archive's content) of more than `most_bytes` is refused.
    """

    host: Literal["hub", "github"]
    repo: str
    path: str
    revision: str = "main"
    unpack: str = ""
    most_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class Source:
    """A benchmark's public home; `arrange` makes its files' rows into train, val, test (, corpus).

    `note` says how the result differs from the paper's data.
    """

    name: str
    files: tuple[Remote, ...]
    arrange: Callable[[Sequence[Rows]], Mapping[str, Rows]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where the copy is, how many rows each of its files has, and which files were downloaded."""

    folder: Path
    counts: Mapping[str, int]
    files: Mapping[str, str]


def url_of(remote: Remote) -> str:
    """The file's address; HF_ENDPOINT and PCO_GITHUB_RAW name other hosts (mirrors)."""
    variable, default = _BASES[remote.host]
    return _PATHS[remote.host].format(
        base=(os.environ.get(variable) or default).rstrip("/"),
        repo=remote.repo,
        revision=remote.revision,
        path=remote.path,
    )


def public_rows(source: Source, cache_dir: Path, *, accept: bool = False) -> Fetched:
    """Downloads the source, splits it by its protocol, and writes the splits into `cache_dir`.

    Each file's SHA-256 is recorded at the first download; TaskError when a later one differs (the
    old copy stays; `accept` takes the new one), when a file cannot be had, and when the copy cannot
    be written.
    """
    try:
        return _fetch(source, cache_dir, accept)
    except OSError as error:
        raise TaskError(
            f"{source.name} cannot be kept in {cache_dir}: {error.strerror or error}",
            hint=f"pco data fetch {source.name} --cache FOLDER",
        ) from error


def _fetch(source: Source, cache_dir: Path, accept: bool) -> Fetched:
    name, folder = source.name, cache_dir / source.name
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache_dir) as place:
        paths = [
            _download(remote, name, Path(place) / str(number))
            for number, remote in enumerate(source.files)
        ]
        files = list(zip(source.files, paths, strict=True))
        digests = {f"{r.host}:{r.repo}@{r.revision}/{r.path}": _sha256(path) for r, path in files}
        known = {} if accept else _record(folder).get("remote", {})
        changed = [file for file, digest in digests.items() if known.get(file, digest) != digest]
        if changed:
            raise TaskError(
                f"{name}: changed at its public home since it was first fetched: "
                f"{', '.join(changed)}; the copy in {folder} stays as it is",
                hint=f"pco data fetch {name} --accept takes the new files",
            )
        tables = [_rows(remote, path) for remote, path in files if not remote.unpack]
        try:
            arranged = source.arrange(tables)
        except DataError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise TaskError(
                f"{name}: its public files are not in the form expected ({error!r})",
                hint=_elsewhere(name),
            ) from None
        archives = {remote: path for remote, path in files if remote.unpack}
        _write(folder, arranged, archives, digests)
    return Fetched(folder, {part: len(rows) for part, rows in arranged.items()}, digests)


def checked_copy(name: str, cache_dir: Path) -> Path | None:
    """The folder of a fetched copy, None without one; TaskError when its files were altered."""
    folder = cache_dir / name
    kept = _record(folder).get("local", {})
    if not kept:
        return None
    for file, digest in kept.items():
        path = folder / file
        if not path.is_file() or _sha256(path) != digest:
            raise TaskError(
                f"{path} is not as it was fetched",
                hint=f"pco data fetch {name}, or give --data DIR",
            )
    return folder


def _elsewhere(name: str) -> str:
    return f"--data DIR with the benchmark's files (docs/tasks/{name}.md says which fields)"


class _TooMuch(Exception):
    """More came, or for longer, than a file of this source may take."""


class _Capped:
    """A file that refuses to grow beyond `most` bytes, or for longer than a download may take."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self._most, self._left = file, most, most
        self._until = time.monotonic() + _DOWNLOAD_S

    def write(self, chunk: bytes) -> None:
        self._left -= len(chunk)
        if self._left < 0:
            raise _TooMuch(f"it is larger than {bytes_text(self._most)}")
        if time.monotonic() > self._until:
            raise _TooMuch(f"it was not here after {_DOWNLOAD_S:.0f} seconds")
        self._file.write(chunk)

    def flush(self) -> None:
        self._file.flush()


def _download(remote: Remote, name: str, folder: Path) -> Path:
    """The file in `folder`, under its own name; TaskError says why it cannot be had."""
    pooch, requests = (import_extra(m, "fetching a benchmark", "bench") for m in _LIBRARIES)
    url = url_of(remote)
    folder.mkdir()
    path = folder / PurePosixPath(remote.path).name
    fetch = pooch.HTTPDownloader(timeout=_TIMEOUT_S, headers={"User-Agent": "promptcodebook"})
    try:
        with path.open("wb") as file:
            fetch(url, _Capped(file, remote.most_bytes), None)
        return path
    except requests.HTTPError as error:
        reason = f"the server answered {error.response.status_code}"
    except _TooMuch as error:
        reason = str(error)
    except (OSError, ValueError) as error:
        root: BaseException = error  # what first went wrong
        while (earlier := root.__cause__ or root.__context__) is not None:
            root = earlier
        why = getattr(root, "strerror", None) or root or type(root).__name__
        reason = f"it cannot be reached ({why})"
    variable = _BASES[remote.host][0]
    raise TaskError(
        f"{name}: {url}: {reason}", hint=f"offline? {_elsewhere(name)}; a mirror? set {variable}"
    )


def _rows(remote: Remote, path: Path) -> Rows:
    """The rows of a downloaded file; its name tells its format."""
    try:
        _check_unpacked_size(remote, path)
        table = read_source(path)
    except DataError as error:
        # The temporary place says nothing to anybody; the address does.
        where = str(error).replace(str(path), url_of(remote))
        raise TaskError(where, hint="the public file is not as expected: --data DIR") from None
    return [dict(row.values) for row in cast(Table, table).rows]


def _check_unpacked_size(remote: Remote, path: Path) -> None:
    """Raises DataError for a Parquet file that unpacks to more than its source may have."""
    if path.suffix != ".parquet":
        return
    parquet = import_extra("pyarrow.parquet", f"reading {path.name}", "parquet")
    try:
        about = parquet.ParquetFile(path).metadata
        size = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    except (OSError, ValueError):  # reading it says what is wrong
        return
    if not 0 <= size <= remote.most_bytes:
        raise DataError(f"{path} unpacks to more than {bytes_text(remote.most_bytes)}")


def _write(
    folder: Path,
    arranged: Mapping[str, Rows],
    archives: Mapping[Remote, Path],
    digests: Mapping[str, str],
) -> None:
    """The copy, made beside its place and moved there whole."""
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        local = dict[str, str]()
        for name, rows in arranged.items():
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
            body = "".join(lines).encode("utf-8", "surrogatepass")
            (fresh / f"{name}.jsonl").write_bytes(body)
            local[f"{name}.jsonl"] = hashlib.sha256(body).hexdigest()
        for remote, path in archives.items():
            _unpack(path, fresh / remote.unpack, remote.most_bytes)
        record = {"remote": digests, "local": local}
        (fresh / _RECORD).write_text(json.dumps(record, indent=1), "utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        settle(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _unpack(path: Path, folder: Path, most_bytes: int) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            unpacked = sum(info.file_size for info in entries)
            if unpacked > most_bytes or len(entries) > _MOST_FILES:
                most = f"{bytes_text(most_bytes)} or {_MOST_FILES} files"
                raise TaskError(
                    f"the archive for {folder.name} holds more than {most}", hint="give --data DIR"
                )
            archive.extractall(folder)  # drops absolute names and '..' itself
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError):  # RuntimeError: encrypted
        raise TaskError(
            f"the archive for {folder.name} is not a zip file that can be read",
            hint="fetch again, or give --data DIR",
        ) from None


def _record(folder: Path) -> dict[str, dict[str, str]]:
    """What was fetched, or nothing; a copy without all its splits counts as none."""
    path = folder / _RECORD
    if not path.is_file():
        return {}
    try:
        tree = cast("dict[str, dict[str, str]]", json.loads(path.read_text("utf-8")))
        complete = {f"{split}.jsonl" for split in SPLITS} <= set(tree["local"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return tree if complete else {}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
