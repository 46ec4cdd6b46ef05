"""What goes wrong at an election's server, before it is told to users."""

from __future__ import annotations


class NoAnswerError(Exception):
    """The server does not answer, or not now."""


class PlaceLostError(Exception):
    """A place that a candidate had is gone: it has to stand anew."""
