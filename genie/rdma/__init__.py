"""RDMA hardware as Python sees it: devices, ports and their addresses, counters, and which rank uses which of them.

`genie.rdma.model` holds the facts and the choice of the GID, `discovery` reads them on this machine (pyverbs, else
sysfs), `remote` on others through a shell, `counters` reads and explains what a port has counted, `rails` gives each
rank its device. Nothing here moves data or changes a device; pyverbs is imported only where a device is really asked.
Importing this costs nothing.
"""
