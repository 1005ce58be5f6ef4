"""The two kinds of errors: a mistake in the request, and a failure of headscape or the machine."""

__all__ = ["HeadscapeError", "InputError"]


class HeadscapeError(Exception):
    """A failure of headscape or the machine; the command line prints it as one line and exits with 1."""

    exit_code = 1


class InputError(HeadscapeError, ValueError):
    """A mistake in what was asked: says what is wrong, where, and what to do. Exit code 2."""

    exit_code = 2
