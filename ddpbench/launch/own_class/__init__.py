"""Reads a training script, without importing it, and writes the class that lets it be measured."""

from ddpbench.launch.own_class.insertion import NAME, inserted, place_of
from ddpbench.launch.own_class.script import Script, read_script
from ddpbench.launch.own_class.writing import Written, written_class

__all__ = ["NAME", "Script", "Written", "inserted", "place_of", "read_script", "written_class"]
