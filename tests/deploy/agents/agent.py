"""An agent as people have them, without any client: it knows nothing of us but two variables.

python agent.py MODE        MODE is what a test wants of it
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.request

SYSTEM = "You work for a shop. Answer in letters."


def ask(content, system=SYSTEM, url="", key=""):
    body = {
        "model": "gpt-4o",
        "messages": [
            {"role": "system", "content": system},
            {"role": "user", "content": content},
        ],
    }
    request = urllib.request.Request(
        (url or os.environ["OPENAI_BASE_URL"]) + "/chat/completions",
        json.dumps(body).encode(),
        {
            "Authorization": "Bearer " + (key or os.environ["OPENAI_API_KEY"]),
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


mode = sys.argv[1]
if mode == "escapes":  # a daemon, as they are made: a child of a child, in a session of its own
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() or os.setsid() or os.fork():
        os._exit(0)
    pathlib.Path(sys.argv[2]).write_text(str(os.getpid()))
    time.sleep(600)
if mode == "lines":
    # What a library prints, and when: "banner", "before" or "after" an answer, "later", "next".
    how = sys.argv[2:]

    def warn():
        sys.stdout.write("warning: this is deprecated\n")
        sys.stdout.flush()

    if "banner" in how:
        warn()
    for number, line in enumerate(sys.stdin):
        asked = json.loads(line)
        row = asked["example"]
        if "next" in how and number == 2:
            warn()
        if row["input"] == "crash":
            sys.exit(3)
        reply = ask(row["input"], url=asked["base_url"], key=asked["api_key"])
        if "before" in how and number == 1:
            warn()
        named = {"id": asked["id"]} if "echo" in how else {}
        if "dies" in how:
            sys.exit(4)
        answer = {**named, "output": reply, "fields": {"pid": os.getpid()}}
        sys.stdout.write(json.dumps(answer) + "\n")
        if "after" in how and number == 1:
            warn()
        sys.stdout.flush()
        if "later" in how and number == 1:
            time.sleep(0.3)
            pathlib.Path(how[-1]).write_text("")  # before it: the line may be its end
            warn()
    sys.exit(0)
row = json.loads(sys.stdin.readline())
if mode == "hangs":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    begun = pathlib.Path(sys.argv[2])
    begun = begun / row["id"] if begun.is_dir() else begun
    escape = [sys.executable, __file__, "escapes", str(begun) + "-child"]
    subprocess.Popen(escape, start_new_session=True, stdin=subprocess.DEVNULL)
    begun.write_text(str(os.getpid()))
    time.sleep(600)
if mode in ("forks", "leads"):
    session = mode == "leads"
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(sleep, start_new_session=session)
    pathlib.Path(sys.argv[2]).write_text(str(child.pid))
if mode == "daemons":
    subprocess.Popen([sys.executable, __file__, "escapes", sys.argv[2]])
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
if mode == "leaves":  # a child that takes a moment to end
    lasting = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.1)
    pathlib.Path(sys.argv[2]).write_text("")
    sys.exit()
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).write_text("")
time.sleep(600)
"""
    subprocess.Popen([sys.executable, "-c", lasting, *sys.argv[2:]])
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
if mode == "deep":
    sys.stdout.write("[" * 200_000)
    sys.exit(0)
if mode == "crashes":
    sys.exit("it has no idea")
if mode == "floods":
    for _ in range(4000):
        sys.stdout.write("x" * 1000 + "\n")
reply = "" if mode == "silent" else ask(row["input"])
if mode == "twice":
    reply = ask(f"Say again: {reply}")
if mode == "nothing":
    sys.exit(0)
result = {"output": reply, "fields": {"row": row, "env": sorted(os.environ)}}
sys.stdout.write(f"on the way\n{json.dumps(result)}\n")
