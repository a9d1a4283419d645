"""QEMU's monitor protocol: one command, one answer. Called by `keeper.py` and `lab.py`; keeps no connection open."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from parts import LabError


def qmp(path: Path, command: str, arguments: dict[str, Any], timeout_s: float = 10.0) -> Any:
    """What QEMU answers to one command of its monitor protocol.

    Raises:
        LabError: QEMU refused it. OSError: no QEMU there.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        lines = connection.makefile("rw")

        def ask(name: str, given: dict[str, Any]) -> Any:
            lines.write(json.dumps({"execute": name, "arguments": given}) + "\n")
            lines.flush()
            for line in lines:
                answer = json.loads(line)
                if "error" in answer:
                    raise LabError(f"QEMU refused {name} {given}: {answer['error'].get('desc')}")
                if "return" in answer:
                    return answer["return"]
            raise LabError(f"QEMU ended while it was asked for {name}")

        lines.readline()
        ask("qmp_capabilities", {})
        return ask(command, arguments)
