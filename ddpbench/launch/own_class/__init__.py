"""Read a training script, write the class that makes the script measurable, and try a step of the class."""

from ddpbench.launch.own_class.insertion import NAME, can_guard, inserted, place_of
from ddpbench.launch.own_class.script import Script, package_of, read_script
from ddpbench.launch.own_class.writing import Written, written_class

__all__ = [
    "NAME",
    "Script",
    "Written",
    "can_guard",
    "inserted",
    "package_of",
    "place_of",
    "read_script",
    "written_class",
]
