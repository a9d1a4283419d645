"""Opens a tap where it is run (a node of the embedded fabric) and hands it to whoever listens: `tap.py NAME SOCKET`.

Run by `switch.py` inside the fabric's holder, where alone a tap in that node can be opened. Standard library only.
"""

import fcntl
import os
import socket
import struct
import sys

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000  # linux/if_tun.h


def main(name, path):
    """A tap with QEMU's headers before each packet, sent as a descriptor with its name."""
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [name.encode()], [tap])
        # It would go with this process before it is taken.
        connection.recv(1)


main(*sys.argv[1:])
