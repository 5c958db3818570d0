"""Writes pages of docs/results again from their stored data: python docs/generate_results.py NAME…

Pages with paragraphs that were written by hand lose them: name only those that have none.
"""

from __future__ import annotations

import sys
from pathlib import Path

from promptcodebook.paper.experiments.reproduce import read_results, write_page

RESULTS = Path(__file__).parent / "results"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = RESULTS / f"{name}.json.zst"
        sys.stderr.write(f"{write_page(file.parent, read_results(file))}\n")
