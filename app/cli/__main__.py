"""`python -m app.cli`: how the supervisor starts its children, whatever the PATH."""

from app.cli import main

main()
