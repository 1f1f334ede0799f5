"""The list of backups, and which of them may go.

Invariant: as long as there is a good backup, one stays: what is not verified never pushes out what is, and without
any verified one nothing complete is removed.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import orjson

from app.backup.config import BackupConfig
from app.backup.manifest import VERDICT, Manifest, Verdict
from app.backup.store import Depot
from app.errors import Invalid, VerificationFailed

UNFINISHED_STAYS: Final = timedelta(days=1)
LATEST: Final = "latest"
_NAME: Final = re.compile(r"(\d{8}T\d{6}\.\d{3})Z-[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """One backup of the list.

    state: verified; unverified: never tried; failed: does not give back what went in, see `reason`; incomplete: without
    a manifest, broken off or still being made.
    """

    backup: str
    made_at: datetime
    state: Literal["verified", "unverified", "failed", "incomplete"]
    reason: str = ""
    verified_at: datetime | None = None
    stored_bytes: int = 0
    rows: int = 0
    seconds: float = 0.0
    encrypted: bool = False


def name_of(moment: datetime, random: str) -> str:
    """The name of a backup: its moment in UTC, so that names are in order of time."""
    moment = moment.astimezone(UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03}Z-{random}"


def entries(depot: Depot, keys: Sequence[bytes]) -> list[Entry]:
    """All backups, oldest first; what else lies there is not looked at."""
    return [_entry(depot, name, match[1], keys) for name in depot.backups() if (match := _NAME.fullmatch(name))]


def chosen(known: Sequence[Entry], asked: str) -> str:
    """The backup of that name, or for `latest` the newest verified one (without any: the newest complete one).

    Raises Invalid when there is none.
    """
    if asked != LATEST:
        if asked not in {entry.backup for entry in known}:
            raise Invalid(f"there is no backup {asked}: `mneme backup list`")
        return asked
    for states in (("verified",), ("unverified",)):
        if found := [entry.backup for entry in known if entry.state in states]:
            return found[-1]
    raise Invalid("there is no backup yet: `mneme backup create`")


def prune(depot: Depot, known: Sequence[Entry], config: BackupConfig, *, now: datetime, dry_run: bool) -> list[Entry]:
    """Remove the backups whose time is over and return them; a dry run only returns them."""
    doomed = expendable(known, config, now)
    if not dry_run:
        for entry in doomed:
            depot.delete(entry.backup)
    return doomed


def expendable(known: Sequence[Entry], config: BackupConfig, now: datetime) -> list[Entry]:
    """Which backups may go: those that are no day's, week's or month's last good one and older than the newest good.

    Broken off ones go after a day. Pure; days, weeks and months are those of UTC that have a backup.
    """
    good = [entry for entry in known if entry.state == "verified"]
    kept: set[str] = set()
    for count, period in ((config.keep_daily, _day), (config.keep_weekly, _week), (config.keep_monthly, _month)):
        kept |= _last_of_each(good, count, period)
    newest_good = good[-1].made_at if good else None
    return [
        entry
        for entry in known
        if (
            now - entry.made_at > UNFINISHED_STAYS
            if entry.state == "incomplete"
            else newest_good is not None and entry.made_at < newest_good and entry.backup not in kept
        )
    ]


def _last_of_each(good: Iterable[Entry], count: int, period: Callable[[datetime], tuple[int, ...]]) -> set[str]:
    last = {period(entry.made_at): entry.backup for entry in good}
    return {last[one] for one in sorted(last)[-count:]} if count else set()


def _day(moment: datetime) -> tuple[int, ...]:
    return moment.year, moment.month, moment.day


def _week(moment: datetime) -> tuple[int, ...]:
    return tuple(moment.isocalendar())[:2]


def _month(moment: datetime) -> tuple[int, ...]:
    return moment.year, moment.month


def _entry(depot: Depot, backup: str, moment: str, keys: Sequence[bytes]) -> Entry:
    made_at = datetime.strptime(moment, "%Y%m%dT%H%M%S.%f").replace(tzinfo=UTC)
    try:
        manifest = Manifest.read(depot, backup, keys)
    except VerificationFailed as failure:
        state: Literal["incomplete", "failed"] = "incomplete" if failure.reason == "missing" else "failed"
        return Entry(backup, made_at, state, failure.reason)
    verdict = _verdict(depot, backup)
    good = verdict is not None and not verdict.reason
    return Entry(
        backup,
        made_at,
        "unverified" if verdict is None else "verified" if good else "failed",
        verdict.reason if verdict is not None else "",
        verdict.at if verdict is not None and good else None,
        manifest.stored_bytes,
        manifest.total_rows,
        manifest.seconds,
        manifest.key is not None,
    )


def _verdict(depot: Depot, backup: str) -> Verdict | None:
    try:
        return Verdict.model_validate(orjson.loads(depot.read_bytes(f"{backup}/{VERDICT}")))
    except (VerificationFailed, ValueError):
        return None  # never verified, or the verdict itself is damaged: then it is verified again
