"""What clients over HTTP say of an error, sorted and made short."""

from __future__ import annotations

import re

#: What of TLS does not pass by itself.
_TLS_REFUSED = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|CERTIFICATE_REQUIRED"
    r"|BAD_CERTIFICATE|UNKNOWN_CA|HTTPS server"
)

#: What matters in a long text of requests, or of urllib3.
_POINT = re.compile(r"\[(?:Errno -?\d+|SSL\b[^]]*)\] [^'\")]+|Remote end [^'\")]+")
#: Where in Python's own code it failed, cut off by the pattern above.
_LINE_OF_SSL = re.compile(r" \(_ssl\.c:\d+\Z")
_MAX_TEXT = 200


def is_tls_refusal(text: str) -> bool:
    """Whether it says that a secure connection cannot be, however often it is tried."""
    return _TLS_REFUSED.search(text) is not None


def point_of(text: str) -> str:
    """What matters in a text."""
    found = _POINT.search(text)
    return shortened(_LINE_OF_SSL.sub("", found.group()) if found else text)


def shortened(text: str) -> str:
    """A text in one line that is not too long."""
    text = " ".join(text.split()).rstrip(".")
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
