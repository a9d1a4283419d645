"""What a host says of its RDMA devices to whoever has only a shell there: what to run, and how to read it.

`genie.fabric.survey` runs `LOOK` on every host of an inventory before anything is brought there, and keeps what
`devices_of` and `libraries_of` read of it. Facts are sysfs's, so active MTUs and limits are not among them. Pure.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from ipaddress import AddressValueError, IPv6Address

from genie.rdma.model import INFINIBAND, ROCE_V1, ROCE_V2, Gid, RdmaDevice, RdmaPort, pkeys_of

WORDS = ("rdmaport", "rdmafile", "rdmaverbs", "library", "libraries")
"""What the lines begin with that `LOOK` prints."""

LIBRARIES = ("libibverbs.so.1", "libfabric.so.1", "libgloo.so.0")
"""Which of them a host's loader knows is asked: of its cache, and of the folders where it looks without one."""

LOOK = r"""
for d in /sys/class/infiniband/*/ports/*; do
  if [ -e "$d/state" ]; then
    r=${d#/sys/class/infiniband/}; echo rdmaport ${r%%/*} ${r##*/} $(cat $d/link_layer) $(cat $d/state)
    grep -sH . $d/gids/* | grep -v ':0000:0000:0000:0000:0000:0000:0000:0000$' | sed 's/^/rdmafile /'
    grep -sH . $d/pkeys/* | grep -v ':0x0000$' | sed 's/^/rdmafile /'
    grep -sH . $d/gid_attrs/types/* $d/gid_attrs/ndevs/* | sed 's/^/rdmafile /'
  fi
done
for f in /sys/class/infiniband_verbs/*/ibdev; do if [ -e "$f" ]; then echo rdmaverbs $(cat $f); fi; done
c=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null) && echo libraries known
echo "$c" | sed -n 's/^[[:space:]]*\(libibverbs[.]so[.]1\|libfabric[.]so[.]1\|libgloo[.]so[.]0\) .*/library \1/p'
for f in libibverbs.so.1 libfabric.so.1 libgloo.so.0; do
  for d in /lib /usr/lib /lib64 /usr/lib64 /lib/*-linux-gnu /usr/lib/*-linux-gnu; do
    if [ -e "$d/$f" ]; then echo library $f; fi
  done
done
"""
"""Lines for a POSIX shell with grep and sed; they read and print, and change nothing."""

_FILE = re.compile(
    r"/sys/class/infiniband/([^/]+)/ports/(\d{1,5})/(gids|pkeys|gid_attrs/types|gid_attrs/ndevs)/(\d{1,5}):(.*)",
    re.ASCII,
)
_PORT = re.compile(r"rdmaport (\S+) (\d{1,5}) (?:(\S+) )?\d+: (\S.*)", re.ASCII)


def devices_of(lines: Iterable[str]) -> tuple[RdmaDevice, ...]:
    """The devices in what `LOOK` printed, by name; other lines are passed over."""
    ports: dict[tuple[str, int], tuple[str, str]] = {}
    files: dict[tuple[str, int, str], dict[int, str]] = defaultdict(dict)
    opened = set()
    for line in lines:
        words = line.split()
        if port := _PORT.fullmatch(" ".join(words)):
            device, number, layer, state = port.groups()
            ports[device, int(number)] = (layer or "", state)
        elif words[:1] == ["rdmaverbs"] and len(words) == 2:
            opened.add(words[1])
        elif found := _FILE.fullmatch(line.removeprefix("rdmafile ").strip()):
            device, number, kind, index, text = found.groups()
            files[device, int(number), kind][int(index)] = text
    by_device: dict[str, list[RdmaPort]] = defaultdict(list)
    for (device, number), (layer, state) in sorted(ports.items()):
        gids, types, interfaces = (
            files[device, number, kind] for kind in ("gids", "gid_attrs/types", "gid_attrs/ndevs")
        )
        table = []
        for index, text in sorted(gids.items()):
            try:
                address = IPv6Address(text)
            except AddressValueError:
                continue
            kind = ROCE_V2 if types.get(index) == ROCE_V2 else ROCE_V1
            table.append(Gid(index, address, INFINIBAND if layer == INFINIBAND else kind, interfaces.get(index, "")))
        pkeys = pkeys_of(files[device, number, "pkeys"])
        by_device[device].append(RdmaPort(number, state, layer, tuple(table), pkeys=pkeys))
    return tuple(
        RdmaDevice(name, tuple(found), is_open_to_programs=name in opened) for name, found in sorted(by_device.items())
    )


def libraries_of(lines: Iterable[str]) -> frozenset[str] | None:
    """Of `LIBRARIES` those that the host's loader knows; None where it could not be asked."""
    words = [line.split() for line in lines]
    if ["libraries", "known"] not in words:
        return None
    return frozenset(word[1] for word in words if word[:1] == ["library"] and len(word) == 2)
