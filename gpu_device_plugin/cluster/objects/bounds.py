"""Bound what strangers write into objects before it is kept, by the API's own limits where it has some."""

from __future__ import annotations

LONGEST_NAME = 253
"""Bytes of the name of an object, or of an API group (RFC 1123, a subdomain)."""
LONGEST_LABEL = 63
"""Of a namespace, a container, a kind, the value of a label, and of a word such as a reason (RFC 1123, a label)."""
LONGEST_UID = 64
"""The API server makes UIDs of 36 characters. In a reference to another object it takes any text."""
LONGEST_KEY = LONGEST_NAME + 1 + LONGEST_LABEL
"""Of a key or a resource, ``<prefix>/<name>``, and of ``<group>/<version>``."""
LONGEST_SENTENCE = 1024
"""Of an Event's note. Messages in a status have no bound."""


def fits(text: str, most: int) -> bool:
    """Return whether a text has no more bytes in UTF-8 than so many."""
    return len(text) <= most and (text.isascii() or len(text.encode(errors="surrogatepass")) <= most)


def bounded(text: str | None, most: int) -> str:
    """Return a text; an empty one where it is missing, or has more than so many bytes: what it means is not known."""
    return text if text and fits(text, most) else ""
