"""Time zones by the name or offset that people write."""

import re
from datetime import timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo


def zone_of(name: str) -> tzinfo:
    """The zone of a name such as Asia/Shanghai or of an offset such as +08:00; raises ValueError."""
    try:
        if offset := re.fullmatch(r"([+-])(\d\d):(\d\d)", name, re.ASCII):
            shift = timedelta(hours=int(offset[2]), minutes=int(offset[3]))
            return timezone(-shift if offset[1] == "-" else shift)
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, outside of the folder of zones, or a folder in it
        raise ValueError("not a time zone") from None
