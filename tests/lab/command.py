"""`scripts/lab`: two virtual machines with a stock Debian kernel, joined by a wire. See docs/lab.md.

A thin command line over `lab.py`; never decides anything itself.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import lab
import parts
import verbs_layer
from guests import PORT, RDMA_DEVICES, WIRE
from lab import Lab
from parts import LabError


def main(arguments: list[str]) -> int:
    """One sub-command; the code to end with."""
    parser = argparse.ArgumentParser(
        prog="scripts/lab", description="Two virtual machines joined by a wire (docs/lab.md)."
    )
    parser.add_argument("--run", type=Path, default=lab.default_run(), help="folder of this lab's files (%(default)s)")
    parser.add_argument("--cache", type=Path, default=parts.default_cache(), help="kernel packages (%(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="boot both machines, print the Ansible inventory's path")
    up.add_argument("--minutes", type=float, default=120.0, help="the lab ends by itself after so long (%(default)g)")
    up.add_argument("--cpus", type=int, default=1, help="processors a machine")
    up.add_argument("--memory", type=int, default=1024, help="MiB a machine")
    up.add_argument("--rate", type=int, default=10, help="Mb/s of the wire, 0 for no shaper (%(default)s)")
    up.add_argument("--no-rdma", action="store_true", help="machines without Soft-RoCE, and without its programs")
    up.add_argument("--switch", action="store_true", help="also plug them into a switch of GENIE's embedded fabric")
    up.add_argument(
        "--accelerator", choices=("auto", "kvm", "tcg"), default="auto", help="auto: kvm if a machine boots with it"
    )
    commands.add_parser("down", help="end the lab")
    commands.add_parser("status", help="what is up; exit 1 if nothing")
    fetch = commands.add_parser("fetch", help="download the newest kernel and the RDMA programs into the cache")
    fetch.add_argument("--kernel", type=Path, help="a Debian linux-image package to use instead")
    ssh = commands.add_parser("ssh", help="a shell or a command on a machine")
    ssh.add_argument("machine")
    ssh.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    node = commands.add_parser("node", help="a command in the switch, or in h2, a host of it without machine")
    node.add_argument("node")
    node.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    cable = commands.add_parser("cable", help="pull the wire's cable, or plug it in")
    cable.add_argument("state", choices=("pull", "plug"))
    console = commands.add_parser("console", help="what a machine's kernel said")
    console.add_argument("machine")
    options = parser.parse_args(arguments)
    try:
        return _act(options)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 3


def _act(options: argparse.Namespace) -> int:
    if options.command == "fetch":
        print(f"lab: kernel {parts.fetch(options.cache, options.kernel).release} in {options.cache}")
        layer = verbs_layer.ready(options.cache)
        print(f"lab: RDMA programs {f'in {layer}' if layer else 'are installed here'}")
    elif options.command == "up":
        return _up(options)
    elif options.command == "down":
        print("lab: ended" if lab.stop(options.run) else "lab: none was up")
    elif options.command == "status":
        found = lab.running(options.run)
        print(_words(found) if found else "lab: not up")
        return 0 if found else 1
    elif options.command == "ssh":
        found = _needed(options.run)
        # As with ssh itself, words are put together to a line for the shell there.
        argv = [*found.ssh_argv(options.machine, []), *options.words]
        os.execvp(argv[0], argv)
    elif options.command == "node":
        argv = _needed(options.run).node_argv(options.node, options.words or [os.environ.get("SHELL", "/bin/sh")])
        os.execvp(argv[0], argv)
    elif options.command == "cable":
        _needed(options.run).cable(options.state == "plug")
    elif options.command == "console":
        sys.stdout.write(_needed(options.run).console(options.machine))
    return 0


def _up(options: argparse.Namespace) -> int:
    if lacking := parts.missing_tools():
        raise LabError(lacking)
    if parts.cached(options.cache) is None:
        print(f"lab: downloading a Debian kernel into {options.cache}", file=sys.stderr)
        parts.fetch(options.cache)
    size = ["--cpus", str(options.cpus), "--memory", str(options.memory), "--rate", str(options.rate)]
    size += ["--accelerator", options.accelerator]
    if options.switch:
        if not options.rate:
            raise LabError("a switch's ports have a rate: leave --rate 0 out, or --switch")
        size.append("--switch")
    if not options.no_rdma:
        size += verbs_layer.options(options.cache)
    found, _ = lab.start(options.run, options.cache, options.minutes * 60, size)
    print(_words(found))
    return 0


def _words(found: Lab) -> str:
    state = found.state
    lines = [f"lab: up, Linux {state['kernel']} by {state['accelerator']}, booted in {state['boot_s']} s"]
    lines += [f"{name}  {found.machine(name)['address']}  scripts/lab ssh {name}" for name in found.names]
    if state["rdma"]:
        lines.append(f"Soft-RoCE: {RDMA_DEVICES[WIRE]} on both wires, as in: scripts/lab ssh vm1 ibv_devinfo")
    if state["switch"]:
        devices = f" and {RDMA_DEVICES[PORT]}" if state["rdma"] else ""
        lines.append(f"switch: {PORT}{devices} on both, as in: scripts/lab node {state['switch']['node']} tc -s qdisc")
        lines.append(f"inventory by way of the switch: {found.switch_inventory}")
    lines.append(f"inventory: {found.inventory}, with fabric.control_address={state['control_address']}")
    return "\n".join(lines)


def _needed(run: Path) -> Lab:
    found = lab.running(run)
    if found is None:
        raise LabError(f"no lab is up in {run}: scripts/lab up")
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
