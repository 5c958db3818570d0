"""The parent of an agent's command: it ends the command and all that it started when the command
ends, or when `pco` does. The pipe from `pco` closes then, whatever ended it.

python supervise.py PIPE COMMAND ...

Each rollout starts this file, so it imports little, and nothing of ours."""

import ctypes
import os
import signal
import sys
import threading
import time
from contextlib import suppress

_GRACE_S, _LOOK_S = 1.0, 0.01  # from the request to end to the kill; between two looks
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # of prctl(2)
_LINUX = sys.platform == "linux"


def main(pipe: int, command: list[str]) -> int:
    """The command's exit status, as a shell reports it."""
    os.set_inheritable(pipe, False)
    if _LINUX:  # what loses its parent becomes a child of this process
        ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    child = os.fork()
    if not child:
        _become(command)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # the agent alone holds its pipes, so that they close with it
        os.dup2(null, stream)
    threading.Thread(target=_end_with, args=(pipe, child), daemon=True).start()
    ended = status = 0
    while ended != child:
        ended, status = os.wait()
    if not (_LINUX and _has_no_child()):
        _end_all(child)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _has_no_child() -> bool:
    """Usually true, and faster to check than all processes."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def _become(command: list[str]) -> None:
    os.setsid()
    if _LINUX:  # a kill of the supervisor reaches the command, too
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"the command cannot be started: {error.strerror}\n".encode())
    os._exit(127)


def _end_with(pipe: int, child: int) -> None:
    os.read(pipe, 1)  # nothing is ever written: it returns when the other end closes
    _end_all(child)


def _end_all(child: int) -> None:
    """Asks all to end, and kills after a second those that still run."""
    late = time.monotonic() + _GRACE_S
    how = signal.SIGTERM
    while pids := _alive(child):
        if how or time.monotonic() > late:
            for pid in pids:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, how or signal.SIGKILL)
        how = 0
        time.sleep(_LOOK_S)


def _alive(child: int) -> list[int]:
    """What descends from this process. Systems without /proc know the command's group alone."""
    if not _LINUX:
        try:
            os.killpg(child, 0)
        except (ProcessLookupError, PermissionError):
            return []
        return [-child]
    parents = dict[int, int]()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except OSError:  # it has ended
            continue
        if state != b"Z":
            parents[int(name)] = int(parent)
    found = [os.getpid()]
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    return found[1:]


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
