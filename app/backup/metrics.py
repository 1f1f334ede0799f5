"""What operations sees of backups. The store is the truth: gauges are measured from its list, whoever made the backup.

Invariant: as in app.telemetry, no label holds text. Gauges are there once they were measured, and not in processes that
never do: zero would say that there is no backup.
"""

from collections.abc import Sequence
from typing import Final

from prometheus_client import Counter, Gauge

from app.backup.catalog import Entry

STATES: Final = ("verified", "unverified", "failed", "incomplete")
REASONS: Final = (
    "missing", "damaged", "wrong_key", "truncated", "checksum", "restore", "counts", "schema", "walls", "searches",
    "shrunk",
)  # fmt: skip

LAST_SUCCESS = Gauge(
    "mneme_backup_last_success_timestamp_seconds", "When the newest complete backup was made; 0: never.", ["kind"],
    multiprocess_mode="livemax",
)  # fmt: skip
LAST_VERIFIED = Gauge(
    "mneme_backup_last_verified_timestamp_seconds",
    "When the newest backup that was proved good was made; 0: never.", ["kind"], multiprocess_mode="livemax",
)  # fmt: skip
SIZE_BYTES = Gauge(
    "mneme_backup_size_bytes", "Size of the newest complete backup as it is stored.", ["kind"],
    multiprocess_mode="livemax",
)  # fmt: skip
ROWS = Gauge(
    "mneme_backup_rows", "Rows of all tables in the newest complete backup.", ["kind"], multiprocess_mode="livemax"
)
DURATION_SECONDS = Gauge(
    "mneme_backup_duration_seconds", "How long the newest complete backup took.", ["kind"], multiprocess_mode="livemax"
)
COUNT = Gauge(
    "mneme_backup_count", "Backups in the store; `failed` must be 0: restore from another one.", ["state"],
    multiprocess_mode="livemax",
)  # fmt: skip
FAILURES = Counter("mneme_backup_verification_failures_total", "Verifications that failed in this process.", ["reason"])

KIND: Final = "logical"
for _reason in REASONS:
    FAILURES.labels(_reason)


def show(known: Sequence[Entry]) -> None:
    """Set the gauges from the list of backups."""
    complete = [entry for entry in known if entry.state in ("verified", "unverified")]
    verified = [entry for entry in complete if entry.state == "verified"]
    LAST_SUCCESS.labels(KIND).set(complete[-1].made_at.timestamp() if complete else 0)
    LAST_VERIFIED.labels(KIND).set(verified[-1].made_at.timestamp() if verified else 0)
    SIZE_BYTES.labels(KIND).set(complete[-1].stored_bytes if complete else 0)
    ROWS.labels(KIND).set(complete[-1].rows if complete else 0)
    DURATION_SECONDS.labels(KIND).set(complete[-1].seconds if complete else 0)
    for state in STATES:
        COUNT.labels(state).set(sum(entry.state == state for entry in known))
