"""The inference server shivad, as a program that pip installs. "shivad" and "shivactl" are commands
of the environment; program() returns their paths, for code that starts a server from Python.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

__all__ = ["program"]


def program(name: str = "shivad") -> str:
    """The path of shivad or shivactl.

    FileNotFoundError names the places where pip would have put it.
    """
    places = [sysconfig.get_path("scripts")]
    for scheme in sysconfig.get_scheme_names():
        if scheme.startswith(("posix_user", "posix_prefix")):  # pip install --user or --prefix
            places.append(sysconfig.get_path("scripts", scheme))
    places.append(str(Path(__file__).parent.parent / "bin"))  # pip install --target
    for place in places:
        if (path := Path(place) / name).is_file():
            return str(path)
    raise FileNotFoundError(
        f"shivad-server: there is no {name} in {', '.join(dict.fromkeys(places))}: install it again"
    )
