"""Where GENIE's data folders are: ``conf/``, ``faults/`` (roles) and ``playbooks/``.

In a wheel they lie inside the package (``genie/conf``, ``genie/faults_roles``, ``genie/playbooks``); in a checkout
or an editable install they are the top-level folders. Everything that reads them asks here; nothing here creates
or changes a file. Standard library only.
"""

from __future__ import annotations

import os
from pathlib import Path

from genie.errors import ConfigError, EnvironmentUnfit

CONF_PATH_VARIABLE = "GENIE_CONF_PATH"

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parent


def _folder(packaged: str, checkout: str) -> Path:
    inside = _PACKAGE / packaged
    if inside.is_dir():
        return inside
    beside = _CHECKOUT / checkout
    if beside.is_dir():
        return beside
    raise EnvironmentUnfit(
        f"GENIE's folder '{checkout}' is missing: looked at {inside} and {beside}",
        hint="install again: pip install . (or pip install -e .) in a complete checkout",
    )


def conf_dir() -> Path:
    """The Hydra configuration tree, absolute."""
    return _folder("conf", "conf")


def roles_dir() -> Path:
    """The folder of the Ansible fault roles, absolute."""
    return _folder("faults_roles", "faults")


def playbooks_dir() -> Path:
    """The folder of the plays, absolute."""
    return _folder("playbooks", "playbooks")


def user_conf_dirs(extra: tuple[str, ...] = ()) -> tuple[Path, ...]:
    """Folders of the user's own configuration: ``--config-dir`` (``extra``), then those of ``GENIE_CONF_PATH``.

    Raises ConfigError for a folder that is not there.
    """
    named = [(text, "--config-dir") for text in extra]
    named += [(text, CONF_PATH_VARIABLE) for text in os.environ.get(CONF_PATH_VARIABLE, "").split(os.pathsep) if text]
    folders: list[Path] = []
    for text, source in named:
        folder = Path(text).expanduser().resolve()
        if not folder.is_dir():
            raise ConfigError(f"{source} names the folder '{text}', which does not exist")
        if folder not in folders:
            folders.append(folder)
    return tuple(folders)
