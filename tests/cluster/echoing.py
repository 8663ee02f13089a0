"""A process that says again what it is told, for tests of who passes that on."""

from __future__ import annotations

import json
import sys
import time

from fedarena.runs.workers import begin_work

if __name__ == "__main__":
    events = begin_work()
    try:
        for line in sys.stdin:
            print(json.dumps({"event": "ended", "failure": json.loads(line)["say"]}), file=events, flush=True)
            if "wait" in line:
                time.sleep(60)
    except KeyboardInterrupt:
        raise SystemExit(143) from None
