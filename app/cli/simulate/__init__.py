"""`mneme simulate`: what becomes of a store in a year, with and without the jobs of the night."""

from app.cli.simulate.command import simulate

__all__ = ["simulate"]
