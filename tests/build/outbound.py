"""A script in a process whose every address is written down: what did it look up, reach, listen on?

Two witnesses, since neither sees all. An audit hook of Python names each host, in child processes
of Python too, and lets none through but this machine. A network namespace of its own (Linux, where
the system allows one) has no way out: its kernel counts what any code, compiled code included,
tried to send, and lists what listens.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[2]

_HOOK = """
import json, os, sys

def _hook():
    log = os.open(os.environ["WATCHED_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    here = ("localhost", "", "None", "0.0.0.0", "::", "127.0.0.1", "::1")
    asked = {"socket.getaddrinfo": 0, "socket.gethostbyname": 0, "socket.gethostbyaddr": 0,
             "socket.connect": 1, "socket.sendto": 1, "socket.sendmsg": 1}

    def hook(event, given):
        place = asked.get(event)
        if place is None or given[place] is None or (place and not isinstance(given[place], tuple)):
            return
        to = given[place][0] if place else given[place]
        host = to.decode("ascii", "replace") if isinstance(to, bytes) else str(to)
        if host in here or host.startswith("127."):
            return
        os.write(log, json.dumps([event, host]).encode() + b"\\n")
        raise OSError(101, f"the test lets nothing go to {host}")

    sys.addaudithook(hook)

_hook()
"""

# The command runs to its end within; then the kernel's counts of the namespace are printed.
_ISOLATED = """
import fcntl, json, os, socket, struct, subprocess, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40) + bytes(24))
done = subprocess.run(sys.argv[2:])
lines = [line.split() for line in open("/proc/net/snmp")]
counts = {h[0] + name: int(value) for h, v in zip(lines[::2], lines[1::2])
          for name, value in zip(h[1:], v[1:])}
counts |= {line.split()[0]: int(line.split()[1]) for line in open("/proc/net/snmp6")}
tried = {"packets without a route": counts["Ip:OutNoRoutes"] + counts["Ip6OutNoRoutes"],
         "datagrams": counts["Udp:OutDatagrams"] + counts["Udp6OutDatagrams"]}
with open(sys.argv[1], "w") as out:
    json.dump({name: count for name, count in tried.items() if count}, out)
sys.exit(done.returncode)
"""


@dataclass(frozen=True, slots=True)
class Outbound:
    """What a process did. `hosts` as Python named them; `packets` are the kernel's counts, empty
    where there were none or no namespace could be had; `files` are new ones in its home."""

    code: int
    out: str
    err: str
    hosts: tuple[str, ...]
    packets: dict[str, int]
    files: tuple[str, ...]


@cache
def can_isolate() -> bool:
    """Whether this system lets us have a network namespace."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0


def watched(folder: Path, *command: str, isolated: bool = True, **environ: str) -> Outbound:
    """Runs a command with an empty home in `folder`, as a user without settings would."""
    hooks, home = folder / "hooks", folder / "home"
    hooks.mkdir(parents=True)
    home.mkdir()
    (hooks / "sitecustomize.py").write_text(_HOOK)
    log, counts = folder / "hosts.log", folder / "counts.json"
    apart = ["unshare", "-rn", sys.executable, "-c", _ISOLATED, str(counts)]
    paths = (str(hooks), str(_ROOT), os.environ.get("PYTHONPATH", ""))
    given = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "WATCHED_LOG": str(log),
        **environ,
    }
    done = subprocess.run(
        [*(apart if isolated and can_isolate() else []), *command],
        cwd=folder,
        env=given,
        capture_output=True,
        text=True,
        timeout=280,
    )
    lines = log.read_text().splitlines() if log.exists() else []
    hosts = tuple(f"{host} ({event})" for event, host in map(json.loads, lines))
    packets = json.loads(counts.read_text()) if counts.exists() else {}
    files = (str(p.relative_to(home)) for p in home.rglob("*") if p.is_file())
    return Outbound(done.returncode, done.stdout, done.stderr, hosts, packets, tuple(sorted(files)))


# Extras that no test tool needs: `make test-local` has them.
ELSEWHERE = {"datasets", "mlflow", "smollm2", "local"}


# What may be written to the home folder: our secret, and libraries' caches.
OWN = (".local/share/promptcodebook/", ".cache/", ".dspy_cache/")
