"""The `mneme` command: one file a group; exit codes 0 ok, 1 failure, 2 usage, 3 configuration, 4 dependency."""

__all__ = ["main"]


def main() -> None:
    """Run the command line and end the process with an exit code."""
    from app.cli.root import run  # noqa: PLC0415 - the embedded server alone must not load the whole service

    run()
