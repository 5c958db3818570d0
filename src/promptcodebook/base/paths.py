"""Where our files are, how one is written (whole, or not at all), and who else may read it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import secrets
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.resources.abc import Traversable
from pathlib import Path

from promptcodebook.base.text import shell
from promptcodebook.base.units import bytes_text
from promptcodebook.errors import ConfigError

BENCH = "bench"  # the folder below that of the runs in which experiments have theirs
_SECRET, _SECRET_BYTES = "secret", 32
MOST_BYTES = 100_000_000  # of a user's file, or of standard input


def path_from(variable: str) -> Path | None:
    """The path in an environment variable; None where it is not set. Raises ConfigError for an
    address, which is not repeated: it may hold a password."""
    chosen = os.environ.get(variable, "")
    if "://" in chosen:
        hint = f"export {variable}=PATH, or unset {variable}"
        raise ConfigError(f"{variable} is an address, but must be a path", hint=hint)
    return Path(chosen).expanduser() if chosen else None


def cache_folder() -> Path:
    """Our folder in the user's cache folder; on Linux `$XDG_CACHE_HOME`, else ~/.cache."""
    from platformdirs import user_cache_path  # not needed to import promptcodebook

    return user_cache_path("promptcodebook", appauthor=False)


def reply_cache_path() -> Path:
    """`$PCO_CACHE`, else cache.sqlite in the user's cache folder."""
    return path_from("PCO_CACHE") or cache_folder() / "cache.sqlite"


def unfinished_folder() -> Path:
    """Journals of work that is not a run, until it is done; beside the reply cache."""
    return reply_cache_path().with_suffix(".unfinished")


def read_text(path: Path | Traversable) -> str:
    """The text of a user's file, with every end of a line as \\n. Raises OSError as `read_bytes`
    does, and UnicodeDecodeError."""
    return io.TextIOWrapper(io.BytesIO(read_bytes(path)), "utf-8").read()


def read_bytes(path: Path | Traversable) -> bytes:
    """A user's file. Raises OSError beyond 100 MB, which a link to /dev/zero would reach."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it is longer than {bytes_text(MOST_BYTES)}", str(path))
    return data


def sha256_of(path: Path) -> str:
    """SHA-256 (hex) of a file of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_folder() -> Path:
    """Our folder in the user's data folder; on Linux `$XDG_DATA_HOME`, else ~/.local/share."""
    from platformdirs import user_data_path

    return user_data_path("promptcodebook", appauthor=False)


def read_secret() -> bytes | None:
    """This user's secret on this machine; None where none was made yet or it cannot be read."""
    try:
        secret = (data_folder() / _SECRET).read_bytes()
    except OSError:
        return None
    return secret if len(secret) == _SECRET_BYTES else None


def make_secret() -> bytes:
    """The same, made if it is missing; only its owner can read it. Raises OSError."""
    folder = data_folder()
    path = folder / _SECRET
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(folder)
    if (known := read_secret()) is not None:
        tighten(path, 0o600)
        return known
    # Written aside, so that another process never reads half of it; the first to come is kept.
    number, part = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(secrets.token_bytes(_SECRET_BYTES))
        _sync(Path(part))
        with contextlib.suppress(FileExistsError):
            os.link(part, path)
        _sync(folder)
    finally:
        os.unlink(part)
    if (made := read_secret()) is None:
        raise OSError(f"{path} is not a secret file that promptcodebook wrote")
    return made


def make_private_folder(folder: Path) -> None:
    """Makes a folder, or tightens one, so that its owner alone may enter it. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    tighten(folder, 0o700)


def make_private_file(path: Path) -> None:
    """Makes an empty file, or tightens one, so that its owner alone may read it. Raises OSError."""
    # One that is there is not opened: to close it would drop the locks that SQLite holds on it in
    # this process, and another process would then delete the log that this one writes to.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        tighten(path, 0o600)


def tighten(path: Path, mode: int) -> None:
    """Takes away what `mode` does not grant, where the path is there and ours."""
    with contextlib.suppress(OSError):
        allowed = path.stat().st_mode & 0o777
        if allowed & ~mode:
            path.chmod(allowed & mode)


def runs_dir() -> Path:
    """Where runs are kept: `$PCO_RUNS`, else ./runs."""
    return path_from("PCO_RUNS") or Path("runs")


def run_reference(folder: Path) -> str:
    """What to type for the run in `folder`: its id where runs are looked for, else the path."""
    home, parent = runs_dir().resolve(), folder.resolve().parent
    if parent == home or parent.parent == home / BENCH:
        return shell(folder.name)
    text = str(folder)
    return shell(text if "/" in text else f"./{text}")


def write_whole(target: Path, text: str) -> None:
    """Writes UTF-8 text so that no reader ever sees half of it. Raises OSError."""
    with whole_file(target) as part:
        part.write_text(text, "utf-8")


@contextmanager
def whole_file(target: Path) -> Generator[Path]:
    """A path beside `target` to write to; it replaces the target when the block ends well. In a
    private folder the file is private too. Raises OSError; what was half-written is removed."""
    part = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield part
        if not target.parent.stat().st_mode & 0o077:
            tighten(part, 0o600)
        settle(part, target)
    finally:
        part.unlink(missing_ok=True)


def settle(part: Path, target: Path) -> None:
    """Gives a finished file or folder its name: a power cut leaves the old or the new. Raises
    OSError."""
    for path in (*part.rglob("*"), part):
        _sync(path)
    part.replace(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    """Waits until the disk has a file's content, or a folder's names."""
    if os.name == "nt" and path.is_dir():  # where folders cannot be opened
        return
    number = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(number)
    finally:
        os.close(number)
