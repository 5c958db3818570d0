"""A Ray cluster (extra [ray]): how one is joined, and whose machine a task came to."""

from __future__ import annotations

import platform
import socket
import uuid
from importlib.metadata import version
from typing import Any

from promptcodebook.errors import ConfigError, import_extra

__all__ = ["LOCAL", "join_cluster", "machine_name", "require_version"]

LOCAL = "local"
"""The address of a Ray that is started here and ends with the command."""
_KNOCK_S = 5.0


def join_cluster(address: str, width: int, what: str) -> Any:
    """Ray, joined to the cluster at `address`; a LOCAL one has so many processors. MissingExtra
    says that `what` needs ray, ConfigError that no cluster answers."""
    ray = import_extra("ray", what, "ray")
    here = {"num_cpus": width, "include_dashboard": False} if address == LOCAL else {}
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="error", **here)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise ConfigError(
            f"no Ray cluster could be joined at {address}: {error}",
            hint=f"ray start --head, then name the address that it prints; or --ray {LOCAL}",
        ) from error
    return ray


def _knock(address: str) -> None:
    """Ray itself waits for minutes where nobody answers."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _KNOCK_S).close()


def machine_name() -> str:
    """Tells this machine from others of the cluster."""
    return f"{platform.node()}-{uuid.getnode():x}"


def require_version(wanted: str) -> None:
    """Raises ConfigError where this machine has another version than whoever wrote the task."""
    if (here := version("promptcodebook")) != wanted:
        raise ConfigError(
            f"{platform.node()} has promptcodebook {here}, and {wanted} was asked for",
            hint=f"there: pip install promptcodebook=={wanted}",
        )
