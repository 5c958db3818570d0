"""A Postgres of its own, from Debian's package: private, on loopback, gone with the test."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from promptcodebook.deploy.online.log import Served, new_request_id
from tests.build.server import free_port

SECRET = "pass-word-4711"


def _program(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(found[-1]) if found else "")


MISSING = "" if _program("initdb") and find_spec("psycopg") else "no Postgres here"


@dataclass
class Cluster:
    folder: Path
    port: int
    process: subprocess.Popen[Any] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://pco:{SECRET}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        places = ["-D", str(self.folder / "data"), "-k", str(self.folder), "-p", str(self.port)]
        settings = ["-c", "fsync=off", "-c", "max_connections=60", "-c", "log_min_messages=fatal"]
        with (self.folder / "log").open("ab") as log:
            command = [_program("postgres"), *places, *settings]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **_unprivileged())
        for _ in range(300):
            with_secret = [*_psql(self.url), "SELECT 1"]
            if not subprocess.run(with_secret, capture_output=True).returncode:
                return
            time.sleep(0.1)
        raise TimeoutError((self.folder / "log").read_text())

    def stop(self) -> None:
        """At once, as a crash would."""
        if self.process is not None:
            subprocess.run(
                [_program("pg_ctl"), "stop", "-D", str(self.folder / "data"), "-m", "immediate"],
                capture_output=True,
                check=True,
                **_unprivileged(),
            )
            self.process.wait()

    def sql(self, statement: str) -> str:
        asked = [*_psql(self.url), statement]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _psql(url: str) -> list[str]:
    return [_program("psql"), url, "-Atqc"]


def _unprivileged() -> dict[str, Any]:
    """Postgres does not run as root."""
    if os.getuid():
        return {"cwd": "/"}
    known = {each.pw_name for each in pwd.getpwall()}
    name = "postgres" if "postgres" in known else "nobody"
    return {"cwd": "/", "user": name, "group": pwd.getpwnam(name).pw_gid, "extra_groups": []}


@contextmanager
def cluster() -> Generator[Cluster]:
    # Not in pytest's own folder, which other users may not enter.
    with tempfile.TemporaryDirectory(prefix="pco-postgres-") as name:
        folder = Path(name)
        if not os.getuid():
            shutil.chown(folder, _unprivileged()["user"])
        word = folder / "word"
        word.write_text(SECRET)
        word.chmod(0o644)
        made = [_program("initdb"), "-D", str(folder / "data"), "-U", "pco", "-E", "UTF8"]
        made += ["--locale", "C", "--no-sync", "-A", "scram-sha-256", "--pwfile", str(word)]
        subprocess.run(made, capture_output=True, check=True, **_unprivileged())
        running = Cluster(folder, free_port())
        running.start()
        try:
            yield running
        finally:
            running.stop()


def served(n: int = 0, ref: str = "tickets@live", caller: str = "a") -> Served:
    route, features = (1, 3), (7, 2048)
    return Served(
        new_request_id(), 100.0 + n, ref, "sha256:1", caller, "", 200, 0.5, None, route, 0.9,
        features, False, "My refund \0 is late.",
    )  # fmt: skip
