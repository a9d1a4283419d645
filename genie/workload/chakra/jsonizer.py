"""Chakra ET as chakra_jsonizer writes it: protobuf's JSON of the metadata and of each node, one after the other.

Not one JSON document. Enum names are text, 64-bit integers are text, keys are camelCase. Each node is turned
into its protobuf form, so all further rules are those of `genie.workload.chakra.et`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format

from genie.errors import TraceError
from genie.workload.chakra import et, wire
from genie.workload.chakra.nodes import Maker
from genie.workload.chakra.rankfile import RankFile
from genie.workload.excerpt import excerpt


def read(documents: tuple[Any, ...], maker: Maker) -> RankFile:
    """The file whose JSON values are ``documents``.

    Raises:
        TraceError: a value that is neither metadata nor a node of the schema.
    """
    messages = []
    for number, document in enumerate(documents):
        made = wire.GlobalMetadata() if number == 0 and _is_metadata(document) else wire.FullNode()
        try:
            messages.append(json_format.ParseDict(document, made))
        except (json_format.ParseError, ValueError, TypeError, RecursionError) as error:
            reason = excerpt(str(error) or type(error).__name__, 200)[1:-1]
            raise TraceError(
                f"JSON value number {number + 1} is not a Chakra message: {reason}", file=maker.file
            ) from None
    headless = not _is_metadata(documents[0])
    return et.read_current(wire.write_frames(messages), maker, headless)


def _is_metadata(document: Any) -> bool:
    return isinstance(document, dict) and document.keys() <= {"version", "attr"}
