"""TCP flows between lab machines, run there by their own Python: `receive FLOWS` or `send FLOWS ADDRESS SECONDS`.

Prints bytes and seconds of all flows together as JSON. Needs nothing but the standard library.
"""

import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

PORT = 5201


def receive(flows):
    with socket.create_server(("", PORT), backlog=flows) as server:
        print("listening", flush=True)
        connections = [server.accept()[0]]
        began = time.monotonic()
        connections += [server.accept()[0] for _ in range(flows - 1)]
    with ThreadPoolExecutor(flows) as pool:
        total = sum(pool.map(drain, connections))
    return {"bytes": total, "seconds": time.monotonic() - began}


def drain(connection):
    total = 0
    with connection:
        while data := connection.recv(1 << 16):
            total += len(data)
    return total


def send(flows, address, seconds):
    ends = time.monotonic() + seconds
    with ThreadPoolExecutor(flows) as pool:
        return {"bytes": sum(pool.map(lambda _: fill(address, ends), range(flows)))}


def fill(address, ends):
    total = 0
    with socket.create_connection((address, PORT)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        while time.monotonic() < ends:
            total += connection.send(b"\0" * 65536)
    return total


role, count, *rest = sys.argv[1:]
print(json.dumps(receive(int(count)) if role == "receive" else send(int(count), rest[0], float(rest[1]))))
