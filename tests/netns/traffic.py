"""Plain TCP traffic for the fabric's tests: ``traffic.py serve ADDRESS PORT`` and ``traffic.py send``. Stdlib only.

serve: prints "listening", takes connections, reads each to its end, prints one JSON line a connection
       (peer, bytes, seconds from first to last byte).
send:  ADDRESS PORT BYTES FLOWS: sends BYTES over each of FLOWS connections at once, prints their local ports.
"""

import json
import socket
import sys
import threading
import time


def _drain(connection: socket.socket, peer: str) -> None:
    total, first = 0, 0.0
    buffer = bytearray(1 << 18)
    while True:
        got = connection.recv_into(buffer)
        if not first:
            first = time.monotonic()
        if not got:
            break
        total += got
    seconds = time.monotonic() - first
    connection.close()
    sys.stdout.write(json.dumps({"peer": peer, "bytes": total, "seconds": seconds}) + "\n")
    sys.stdout.flush()


def serve(address: str, port: int) -> None:
    with socket.create_server((address, port), backlog=128) as listener:
        sys.stdout.write("listening\n")
        sys.stdout.flush()
        while True:
            connection, peer = listener.accept()
            threading.Thread(target=_drain, args=(connection, peer[0]), daemon=True).start()


def send(address: str, port: int, size: int, flows: int) -> None:
    payload = bytes(1 << 16)

    def one() -> None:
        with socket.create_connection((address, port), timeout=20) as connection:
            left = size
            while left > 0:
                part = min(left, len(payload))
                connection.sendall(memoryview(payload)[:part])
                left -= part
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)

    threads = [threading.Thread(target=one) for _ in range(flows)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    else:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
