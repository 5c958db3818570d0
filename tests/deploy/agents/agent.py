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
if mode == "lines":
    for line in sys.stdin:
        asked = json.loads(line)
        row = asked["example"]
        if row["input"] == "crash":
            sys.exit(3)
        said = ask(row["input"], url=asked["base_url"], key=asked["api_key"])
        sys.stdout.write(json.dumps({"output": said, "fields": {"pid": os.getpid()}}) + "\n")
        sys.stdout.flush()
    sys.exit(0)
row = json.loads(sys.stdin.readline())
if mode == "hangs":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path(sys.argv[2]).write_text("begun")
    time.sleep(600)
if mode == "forks":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path(sys.argv[2]).write_text(str(child.pid))
if mode == "leaves":  # a child that takes a moment to end
    lasting = """
import pathlib, signal, sys, time
def end(*_):
    time.sleep(0.3)
    pathlib.Path(sys.argv[2]).write_text("")
    sys.exit()
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).write_text("")
time.sleep(600)
"""
    subprocess.Popen([sys.executable, "-c", lasting, *sys.argv[2:]])
    while not pathlib.Path(sys.argv[2]).exists():
        time.sleep(0.01)
if mode == "crashes":
    sys.exit("it has no idea")
if mode == "floods":
    for _ in range(4000):
        sys.stdout.write("x" * 1000 + "\n")
said = "" if mode == "silent" else ask(row["input"])
if mode == "twice":
    said = ask(f"Say again: {said}")
if mode == "nothing":
    sys.exit(0)
result = {"output": said, "fields": {"row": row, "env": sorted(os.environ)}}
sys.stdout.write(f"on the way\n{json.dumps(result)}\n")
