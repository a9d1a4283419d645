"""One TCP flow between lab machines, run there by their own Python: `receive` or `send ADDRESS SECONDS`.

Prints bytes and seconds as JSON. Needs nothing but the standard library.
"""

import json
import socket
import sys
import time

PORT = 5201


def receive():
    with socket.create_server(("", PORT)) as server:
        print("listening", flush=True)
        connection, _ = server.accept()
        total, began = 0, time.monotonic()
        with connection:
            while data := connection.recv(1 << 16):
                total += len(data)
        return {"bytes": total, "seconds": time.monotonic() - began}


def send(address, seconds):
    with socket.create_connection((address, PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        ends = time.monotonic() + seconds
        total = 0
        while time.monotonic() < ends:
            total += connection.send(b"\0" * 65536)
        return {"bytes": total}


print(json.dumps(receive() if sys.argv[1] == "receive" else send(sys.argv[2], float(sys.argv[3]))))
