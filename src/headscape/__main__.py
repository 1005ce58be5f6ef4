"""The command `headscape`, also as `python -m headscape`: Ctrl-C works from the first moment."""

from headscape.stopping import stop_while_importing


def main() -> None:
    """Entry point of the command; the rest is imported once Ctrl-C and signals are handled."""
    stop_while_importing()
    from headscape.cli import main as command

    command()


if __name__ == "__main__":
    main()
