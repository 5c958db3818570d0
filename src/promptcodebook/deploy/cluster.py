"""A Ray cluster (extra [ray]): how a process joins one, and on which machine a task runs."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import uuid
from importlib.metadata import version
from typing import Any

from promptcodebook.errors import ConfigError, import_extra

LOCAL = "local"  # the address of a Ray that is started here and ends with the command
_KNOCK_S = 5.0
_LEAST_RAY = (2, 60)  # the release whose tokens were tested: an earlier one answers any caller


def join_cluster(address: str, width: int, what: str) -> Any:
    """Ray, joined to the cluster at `address`; a LOCAL one has `width` processors. MissingExtra
    says that `what` needs ray, ConfigError that no cluster answers or that this ray is too old."""
    if address == LOCAL:
        # Read as ray is imported: it listens on loopback only, to callers with this token.
        # A token in the environment leaves no file in the user's home folder.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    ray = import_extra("ray", what, "ray")
    if address == LOCAL and tuple(map(int, ray.__version__.split(".")[:2])) < _LEAST_RAY:
        message = f"ray {ray.__version__} is older than 2.60, the first whose tokens were tested"
        raise ConfigError(message, hint="pip install 'ray>=2.60'")
    with socket.socket() as taken:
        # Ray's dashboard asks cloud providers' addresses which of them it runs at, whatever its
        # settings say. So it finds its port taken, and is left out.
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        here = {"num_cpus": width, "include_dashboard": False, "dashboard_port": port}
        try:
            host, _, own = address.rpartition("/")[2].rpartition(":")
            if host and own.isdigit():  # Ray itself waits for minutes where nothing answers
                socket.create_connection((host, int(own)), _KNOCK_S).close()
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level="critical",
                **(here if address == LOCAL else {}),
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise ConfigError(
                f"no Ray cluster could be joined at {address}: {error}",
                hint=f"ray start --head, then name the address that it prints; or --ray {LOCAL}",
            ) from error
    return ray


def machine_name() -> str:
    """A name that no other machine of the cluster has."""
    return f"{platform.node()}-{uuid.getnode():x}"


def require_version(wanted: str) -> None:
    """Raises ConfigError where this machine has another version than the task was written with."""
    if (here := version("promptcodebook")) != wanted:
        message = f"{platform.node()} has promptcodebook {here}, and {wanted} was asked for"
        raise ConfigError(message, hint=f"there: pip install promptcodebook=={wanted}")
