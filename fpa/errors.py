"""Errors that a user can act on: the command line prints their one line, without a traceback."""


class FpaError(Exception):
    """Something the user can put right; the message says what is wrong and what to do."""


class UsageError(FpaError):
    """The request itself is wrong (a bad option, a file in the wrong form): exit code 2."""
