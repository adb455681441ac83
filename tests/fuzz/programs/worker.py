"""A process that judges programs: JSON lines in (text, ways), JSON lines out (way, verdict)."""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import resource
import sys
from pathlib import Path

MEMORY_BYTES = 12 << 30


def main(arguments: list[str]) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from programs import execute

    if arguments[:1] == ["--plant"]:
        from programs import budgets
        from programs.faults import FAULTS

        (budgets.plant if arguments[1] == "budgets" else FAULTS[arguments[1]].plant)()

    gc.set_threshold(20_000, 20, 50)  # what compiling makes lives long

    def say(**what: object) -> None:
        print(json.dumps(what), file=out, flush=True)

    for line in sys.stdin:
        task = json.loads(line)
        verdict = execute.judge(task["text"], tuple(task["ways"]), lambda way: say(way=way))
        say(verdict=dataclasses.asdict(verdict))


if __name__ == "__main__":
    main(sys.argv[1:])
