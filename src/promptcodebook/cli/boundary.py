"""Where every error becomes one clear message and an exit code."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from promptcodebook.cli.console import printable
from promptcodebook.errors import ConfigError, PcoError, Stop

__all__ = ["guarded", "say_error"]


def guarded(command: Any) -> int:
    """Runs a command: 0 done, 1 failed, 2 usage, 3 budget reached, 130 interrupted."""
    try:
        code = command(prog_name="pco", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except PcoError as error:
        say_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("pco: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, say) has left: nobody is to be told, not even at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            return _usage(error)
        if os.environ.get("PCO_TRACEBACK"):
            raise
        print(
            f"pco: internal error: {type(error).__name__}: {error}\n"
            "  next: run again with PCO_TRACEBACK=1 and report what it shows",
            file=sys.stderr,
        )
        return 1


def _usage(error: Any) -> int:
    """What was typed cannot be read: said like every other error."""
    said = error.format_message()
    if not said or said.startswith("Usage:"):  # a group without a command: its help is the answer
        error.show()
    else:
        context = getattr(error, "ctx", None)
        place = context.command_path if context is not None else "pco"
        text = said[:1].lower() + said[1:].rstrip(".")
        say_error(ConfigError(text, hint=f"{place} --help"))
    return int(error.exit_code)


def say_error(error: PcoError) -> None:
    """What failed and where, then what to type next; as JSON on stdout when --json was asked."""
    if "--json" in sys.argv:
        body = {"error": type(error).__name__, "message": str(error), "hint": error.hint}
        print(json.dumps(body, ensure_ascii=False))
    word = "stopped" if isinstance(error, Stop) else "error"
    print(f"pco: {word}: {printable(str(error))}", file=sys.stderr)
    if error.hint:
        print(f"  next: {printable(error.hint)}", file=sys.stderr)
