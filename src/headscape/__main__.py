"""`python -m headscape` is the command."""

from headscape.cli import main

main()
