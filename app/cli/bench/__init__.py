"""`mneme bench`: what the service costs beside the plain SQL under it, measured in the same run."""

from app.cli.bench.command import bench

__all__ = ["bench"]
