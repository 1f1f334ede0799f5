"""`python -m app.embed`: keep a local model for later starts, as app/embed/kept.py asks on standard input.

Invariant: it ends with the exit code of a refused start and its reason on standard output, or in silence.
"""

import json
import sys
from pathlib import Path

from app.embed import kept
from app.embed.source import Source
from app.errors import StartupRefused


def main() -> int:
    order = json.load(sys.stdin)
    try:
        kept.make(Source(**order["source"]), Path(order["shelf"]))
    except StartupRefused as refusal:
        sys.stdout.write(refusal.message)
        return refusal.exit_code
    except OSError as error:  # no room, no right: the caller does without, and says so
        sys.stderr.write(f"mneme: the model cannot be kept: {error.strerror}\n")
        return 1
    except KeyboardInterrupt:  # whoever asked is interrupted, too, and says so
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
