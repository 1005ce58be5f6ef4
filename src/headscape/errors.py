"""The two ways headscape says no: a user's mistake and a failure of ours."""

__all__ = ["HeadscapeError", "InputError"]


class HeadscapeError(Exception):
    """A failure of ours or of the machine; the command line prints it as one line and exits with 1."""

    exit_code = 1


class InputError(HeadscapeError, ValueError):
    """A mistake in what was asked: says what is wrong, where, and what to do. Exit code 2."""

    exit_code = 2
