"""How untrusted text and long values get into a message: escaped and short.

Names and values in a trace come from anywhere: they may hold terminal escapes or megabytes. Every message of this
package about something read from a file goes through here.
"""

from __future__ import annotations


def excerpt(value: object, most: int = 120) -> str:
    """``repr(value)``, cut in its middle to ``most`` characters."""
    if isinstance(value, str) and len(value) > most:
        value = value[: most - 30] + "…" + value[-20:]
    text = repr(value)
    return text if len(text) <= most else f"{text[: most - 21]}…{text[-20:]}"


def label(number: int, name: str) -> str:
    """A node as messages name it: ``17 'aten::mm'``."""
    return f"{number} {excerpt(name)}"
