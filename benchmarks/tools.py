"""The tools of the speed benchmark: what they are called, which versions are compared, and their environments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from protocol import available_cores

HERE = Path(__file__).parent
_TORCH = "torch>=2.6,<2.14"  # what FedArena itself asks for


@dataclass(frozen=True)
class Tool:
    """A tool, the script that measures it, and what its environment is made of; nothing: the present one."""

    label: str
    script: str
    requirements: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)  # of its process


OURS, REFERENCE, FLOWER = "fedarena", "fedarena-reference", "flower"
TOOLS = {
    OURS: Tool("FedArena", "ours_speed.py"),
    REFERENCE: Tool("FedArena, one client at a time", "ours_speed.py", arguments=("--engine", "reference")),
    "pfl": Tool("pfl-research", "peers/pfl_speed.py", ("pfl==0.6.0", _TORCH)),
    # The last version of jax that this version of FedJAX works with, and an older one with which its pmap works, too.
    "fedjax": Tool("FedJAX", "peers/fedjax_speed.py", ("fedjax==0.0.17", "jax==0.5.3", "jaxlib==0.5.3")),
    "fedjax-pmap": Tool(
        "FedJAX, pmap",
        "peers/fedjax_speed.py",
        ("fedjax==0.0.17", "jax==0.4.30", "jaxlib==0.4.30", "dm-haiku==0.0.12"),
        ("--backend", "pmap"),
        {"XLA_FLAGS": f"--xla_force_host_platform_device_count={available_cores()}"},
    ),
    FLOWER: Tool("Flower", "peers/flower_speed.py", ("flwr[simulation]==1.41.0", _TORCH)),
}
PEERS = tuple(name for name, tool in TOOLS.items() if tool.requirements)


def prepare_environment(name: str, folder: Path, say: Callable[[str], None]) -> str:
    """The Python of a tool's environment, which is made below `folder` unless it is there already."""
    tool = TOOLS[name]
    if not tool.requirements:
        return sys.executable
    home = folder / name
    python, stamp = home / "bin" / "python", home / "requirements.txt"
    wanted = "\n".join(tool.requirements) + "\n"
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        say(f"{tool.label}: making {home} with {', '.join(tool.requirements)} (once, takes minutes)")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        install = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", *tool.requirements]
        subprocess.run(install, check=True)
        stamp.write_text(wanted, encoding="utf-8")
    return str(python)
