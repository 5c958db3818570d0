"""What every test lives under: no network but loopback, no environment but its own."""

import gc
import ipaddress
import itertools
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import certifi
import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow; what must be quick has a test of its own that says how quick. Every run
# of the suite draws other examples.
pytest.register_assert_rewrite("tests.build")
settings.register_profile(
    "promptcodebook",
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("promptcodebook")


_WHOLE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.(slow|local|bench)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of which nothing is asked for is not read: to rewrite the assertions of all of them
    takes each worker longer than most tests. A file says itself how it is marked, or the
    conftest.py beside it does."""
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    asked = str(config.option.markexpr)
    text = collection_path.read_text("utf-8")
    if asked in ("slow", "local", "bench"):
        beside = collection_path.parent / "conftest.py"
        told = text + (beside.read_text("utf-8") if beside.is_file() else "")
        return True if f"mark.{asked}" not in told else None
    whole = _WHOLE.search(text)
    return True if whole and f"not {whole[1]}" in asked else None


# The variables that tests see of the environment in which somebody types `make test`.
_KEPT = re.compile(
    "PATH|PATHEXT|SYSTEMROOT|COMSPEC|TE?MP|TMPDIR|LD_LIBRARY_PATH|DYLD_.*"  # the machine's
    "|PYTHONPATH|PYTHONDONTWRITEBYTECODE|PYTEST_.*|COV_.*|PIP_.*|PYENV_.*|PLAYWRIGHT_.*"  # tools'
    "|PCO_TEST_.*|PCO_SHARED|APPROVE"  # for the tests themselves
)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before any test file or library is read: what these see does not depend on who runs them."""
    for name in list(os.environ):
        if not _KEPT.fullmatch(name):
            del os.environ[name]
    os.environ |= {"LANG": "C.UTF-8", "TZ": "UTC"}
    if hasattr(time, "tzset"):
        time.tzset()
    os.umask(0o022)
    _compile_ahead(session)


def _compile_ahead(session: pytest.Session) -> None:
    """Each worker begins to read the files of the whole suite at another place: what one of them
    has compiled, the others find. In a fresh checkout the first test begins ten seconds sooner."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    whole = session.config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if worker != "0" and whole and "not slow" in session.config.option.markexpr:
        folder = Path(__file__).parent
        files = [f for f in sorted(folder.rglob("test_*.py")) if f.parent.name != "attack"]
        wanted = [f for f in files if not pytest_ignore_collect(f, session.config)]
        share = len(wanted) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        for file in wanted[share * int(worker) :]:
            with suppress(Exception, pytest.skip.Exception):  # the collection tells of it
                import_module(".".join(file.relative_to(folder.parent).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """What is loaded by now stays to the end: not looked through again at every collection of
    garbage, which saves a run of the suite a twentieth of its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _loopback(address: Any) -> bool:
    if not isinstance(address, tuple):
        return True  # a unix socket
    host = str(address[0])
    if host in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True, scope="session")
def _only_loopback() -> Iterator[None]:
    """A connection to anywhere else is a defect of the test or of the code."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def guarded(self: socket.socket, address: Any) -> None:
        if not _loopback(address):
            raise AssertionError(f"a test tried to reach {address}")
        connect(self, address)

    def guarded_ex(self: socket.socket, address: Any) -> int:
        if not _loopback(address):
            raise AssertionError(f"a test tried to reach {address}")
        return connect_ex(self, address)

    socket.socket.connect, socket.socket.connect_ex = guarded, guarded_ex  # type: ignore[method-assign]
    yield
    socket.socket.connect, socket.socket.connect_ex = connect, connect_ex  # type: ignore[method-assign]


@pytest.fixture(autouse=True, scope="session")
def _heard_signals() -> Iterator[None]:
    """A script's shell starts `make test &` with SIGINT ignored, and nohup ignores SIGHUP. Tests
    send signals, and the processes that they start inherit what is ignored."""
    ours = {signal.SIGPIPE, signal.SIGXFSZ}  # Python ignores these itself
    deaf = [n for n in signal.valid_signals() - ours if signal.getsignal(n) is signal.SIG_IGN]
    for number in deaf:
        heard = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, heard)
    yield
    for number in deaf:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True, scope="session")
def _one_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All tests are one user on one machine, who is not the developer: a run that one fixture made
    bears the mark of all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data-home")))
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is asked over TLS, and yet each client of OpenAI's, and each process that imports
    aiohttp, reads all authorities of the web: a twentieth of a second, a thousand times."""
    first, end, _ = Path(certifi.where()).read_text("utf-8").partition("-----END CERTIFICATE-----")
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(first + end + "\n", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for each test that is made once something is written there: most tests write
    nothing, and to make them all takes seconds."""
    base = tmp_path_factory.mktemp("homes")
    return (base / str(number) for number in itertools.count())


@pytest.fixture
def tmp_path(_homes: Iterator[Path]) -> Path:
    """Takes the place of pytest's own, which reads the list of all folders before it makes one."""
    folder = next(_homes)
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, _homes: Iterator[Path]) -> None:
    """No home of the developer's, and no cache of another test's, reaches a test."""
    home = next(_homes)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
