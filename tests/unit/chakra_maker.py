"""Writes small Chakra traces for tests, in today's schema and in v0.0.1."""

from genie.workload.chakra import wire

TYPES = {"metadata": 1, "load": 2, "store": 3, "comp": 4, "send": 5, "recv": 6, "coll": 7}
KINDS = {name.lower(): number for number, name in enumerate(wire.COMM_TYPES)}


def node(number, kind, name="", *, data=(), ctrl=(), micros=0, values="", **attributes):
    """A node. Attributes are ``name=value`` (written in the usual encoding) or ``name=(case, value)``."""
    made = wire.FullNode(id=number, name=name or f"{kind}{number}", duration_micros=micros)
    made.type = TYPES.get(kind, kind)
    made.data_deps.extend(data)
    made.ctrl_deps.extend(ctrl)
    if values:
        made.inputs.values = values
    for key, value in attributes.items():
        add(made, key, value)
    return made


def add(made, key, value):
    attribute = made.attr.add(name=key)
    case, value = value if isinstance(value, tuple) else (usual_case(value), value)
    if case is None:
        return
    if case.endswith("_list"):
        getattr(attribute, case).values.extend(value)
    else:
        setattr(attribute, case, value)


def usual_case(value):
    return {bool: "bool_val", int: "int64_val", str: "string_val", float: "double_val", type(None): None}[type(value)]


def comp(number, micros=5, **rest):
    return node(number, "comp", micros=micros, **rest)


def coll(number, kind="all_reduce", size=1024, **rest):
    return node(number, "coll", comm_type=KINDS[kind], comm_size=size, **rest)


def send(number, peer, size=64, tag=0, **rest):
    return node(number, "send", comm_dst=peer, comm_size=size, comm_tag=tag, **rest)


def recv(number, peer, size=64, tag=0, **rest):
    return node(number, "recv", comm_src=peer, comm_size=size, comm_tag=tag, **rest)


def et(*nodes, metadata=True):
    head = [wire.GlobalMetadata(version="0.0.4")] if metadata else []
    return wire.write_frames([*head, *nodes])


def v1(*nodes):
    return wire.write_frames([wire.NodeV1(**fields) for fields in nodes])


def write_job(folder, *ranks, prefix="job", ending=".et"):
    """One file a rank, each ``ranks`` entry its nodes or its bytes. Returns the prefix's path."""
    for rank, content in enumerate(ranks):
        data = content if isinstance(content, bytes) else et(*content)
        (folder / f"{prefix}.{rank}{ending}").write_bytes(data)
    return str(folder / prefix)
