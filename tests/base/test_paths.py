import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from promptcodebook.base import paths


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have places of their own")
def test_the_caches_lie_where_the_system_has_them_unless_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert paths.cache_folder() == tmp_path / ".cache" / "promptcodebook"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert paths.cache_folder() == tmp_path / ".cache" / "promptcodebook"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert paths.cache_folder() == tmp_path / "xdg" / "promptcodebook"
    assert not (tmp_path / "xdg").exists()
    assert paths.reply_cache_path() == paths.cache_folder() / "cache.sqlite"
    monkeypatch.setenv("PCO_CACHE", str(tmp_path / "mine.sqlite"))
    assert paths.reply_cache_path() == tmp_path / "mine.sqlite"
    monkeypatch.setenv("PCO_CACHE", "~/mine.sqlite")
    assert paths.reply_cache_path() == Path(os.environ["HOME"]) / "mine.sqlite"


def test_a_run_is_typed_by_its_id_where_runs_are_looked_for_and_else_by_its_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert paths.run_reference(Path("runs/a-1")) == "a-1"
    assert paths.run_reference(tmp_path / "runs" / "bench" / "quick" / "a-1") == "a-1"
    assert paths.run_reference(Path("a-1")) == "./a-1"
    assert paths.run_reference(Path("my runs/a-1")) == "'my runs/a-1'"
    assert paths.run_reference(tmp_path / "other" / "bench" / "quick" / "a-1").startswith(
        str(tmp_path)
    )
    monkeypatch.setenv("PCO_RUNS", "other")
    assert paths.run_reference(Path("other/a-1")) == "a-1"
    assert paths.run_reference(Path("runs/a-1")) == "runs/a-1"


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "policy.json"
    target.write_text("old", "utf-8")
    with pytest.raises(UnicodeEncodeError):
        paths.write_whole(target, "half \ud800")
    with pytest.raises(KeyError), paths.whole_file(target) as part:
        part.write_text("half", "utf-8")
        raise KeyError
    with pytest.raises(OSError, match="none"):
        paths.write_whole(tmp_path / "none" / "policy.json", "text")
    assert target.read_text("utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is told to the disk, in its order: "sync" or "name", and the name concerned."""
    told = list[tuple[str, str]]()
    fsync, replace, link = os.fsync, os.replace, os.link

    def synced(number: int) -> None:
        told.append(("sync", Path(os.readlink(f"/proc/self/fd/{number}")).name))
        fsync(number)

    def named(rename: Any) -> Any:
        def rename_it(source: Any, target: Any, **more: Any) -> None:
            told.append(("name", Path(target).name))
            rename(source, target, **more)

        return rename_it

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named(replace))
    monkeypatch.setattr(os, "rename", named(os.rename))
    monkeypatch.setattr(os, "link", named(link))
    return told


@pytest.mark.skipif(sys.platform != "linux", reason="the names of open files are Linux's")
def test_a_power_cut_finds_the_old_or_the_new_and_never_half(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, done: list[tuple[str, str]]
) -> None:
    """The content is on disk before the name is, and the name before anybody relies on it."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))  # where no secret is yet
    paths.write_whole(tmp_path / "policy.json", "text")
    assert [what for what, _ in done] == ["sync", "name", "sync"]
    assert done[1:] == [("name", "policy.json"), ("sync", tmp_path.name)]
    done.clear()
    made = tmp_path / "made"
    (made / "within").mkdir(parents=True)
    (made / "within" / "a").write_text("a")
    paths.settle(made, tmp_path / "index")
    assert (tmp_path / "index" / "within" / "a").read_text() == "a"
    synced = [name for what, name in done[:-2] if what == "sync"]
    assert sorted(synced) == ["a", "made", "within"]
    assert done[-2:] == [("name", "index"), ("sync", tmp_path.name)]
    done.clear()
    paths.make_secret()
    assert [what for what, _ in done] == ["sync", "name", "sync"]
    assert done[-1] == ("sync", "promptcodebook")


def test_a_file_takes_after_its_folder(tmp_path: Path) -> None:
    """What lies in a private folder is private, what is exported is not."""
    for name, mode, expected in (("private", 0o700, 0o600), ("shared", 0o755, 0o644)):
        folder = tmp_path / name
        folder.mkdir()
        folder.chmod(mode)
        with umask(0o022):
            paths.write_whole(folder / "report.html", "text")
        assert mode_of(folder / "report.html") == expected


def test_what_is_made_private_is_open_to_its_owner_alone(tmp_path: Path) -> None:
    """New or old; what its owner may not do to an old one stays forbidden."""
    for make, most in ((paths.make_private_file, 0o600), (paths.make_private_folder, 0o700)):
        for mode in (None, 0o777, 0o644, 0o711, most, 0o600):
            path = tmp_path / f"{make.__name__} {mode}"
            if mode is not None:
                path.touch() if make is paths.make_private_file else path.mkdir()
                path.chmod(mode)
            with umask(0):
                make(path)
            assert mode_of(path) == (most if mode is None else most & mode)


def test_what_is_made_private_is_so_from_its_first_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where permissions cannot be changed afterwards, as on some network drives, too."""

    def refuse(self: Path, mode: int) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)
    with umask(0):
        paths.make_private_file(tmp_path / "file")
        paths.make_private_folder(tmp_path / "folder")
    assert (mode_of(tmp_path / "file"), mode_of(tmp_path / "folder")) == (0o600, 0o700)


@pytest.mark.parametrize("home", ["", "data", "some/data"])
def test_the_secret_is_made_once_and_for_nobody_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str
) -> None:
    """Whether the folder that it belongs in is there or not."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / home))
    assert paths.read_secret() is None
    with umask(0):
        secret = paths.make_secret()
    assert len(secret) == 32
    assert paths.make_secret() == paths.read_secret() == secret
    [file] = paths.data_folder().iterdir()
    assert (mode_of(file), mode_of(paths.data_folder())) == (0o600, 0o700)
    file.chmod(0o644)
    paths.make_secret()
    assert mode_of(file) == 0o600
    file.write_bytes(b"short")
    assert paths.read_secret() is None
    with pytest.raises(OSError, match="not a secret file that promptcodebook wrote"):
        paths.make_secret()
