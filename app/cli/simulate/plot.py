"""The figures of a year as one picture: a small chart each, a line for either store."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from app.cli.simulate.store import Month
from app.errors import StartupRefused

CHARTS: Final = {
    "active": "active memories", "bytes": "tables and indexes, MB", "duplicates": "facts said twice, memories",
    "untrue": "untrue and active, memories", "found_5": "truth among the first 5, share",
    "stale_5": "former truth among the first 5, share", "found_old": "truth told 90 days ago, among 10, share",
    "p95_ms": "search p95, ms",
}  # fmt: skip


def require() -> None:
    """Raises StartupRefused without matplotlib, which comes with the development tools."""
    if find_spec("matplotlib") is None:
        raise StartupRefused("--plot needs matplotlib: pip install matplotlib")


def draw(year: Mapping[str, Sequence[Month]], title: str, file: Path) -> None:
    """Write a PNG; what a month did not measure is left out of its line."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only who draws needs it

    figure = Figure(figsize=(12, 6), layout="constrained")
    figure.suptitle(title)
    for axes, (name, heading) in zip(figure.subplots(2, 4).flat, CHARTS.items(), strict=True):
        for store, months in year.items():
            known = [(month.month, getattr(month, name)) for month in months if getattr(month, name) is not None]
            scale = 1e6 if name == "bytes" else 1
            axes.plot([at for at, _ in known], [value / scale for _, value in known], marker=".", label=store)
        axes.set_title(heading, fontsize=9)
        axes.set_xlabel("month", fontsize=8)
        axes.set_ylim(bottom=0)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(file, dpi=100)
