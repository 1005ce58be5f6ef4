"""The command `headscape`, also as `python -m headscape`: it can be stopped from its first moment on."""

from headscape.stopping import stop_while_importing


def main() -> None:
    """Entry point of the command: the rest is imported when a stop is heard."""
    stop_while_importing()
    from headscape.cli import main as command

    command()


if __name__ == "__main__":
    main()
