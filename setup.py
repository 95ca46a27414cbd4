"""Puts `experiments/` of the checkout into the package of a wheel; everything else is in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCE = Path("experiments")
TARGET = Path("ddpbench/experiments")


class BuildWithExperiments(build_py):
    """Copies the experiments, and the files that they name, to where `ddpbench.launch.experiments` finds them.

    An editable install reads them where they are.
    """

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for target, source in self._experiments().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target, preserve_mode=False)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *self._experiments()]

    def get_output_mapping(self) -> dict[str, str]:
        return {**super().get_output_mapping(), **self._experiments()}

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *self._experiments().values()]

    def _experiments(self) -> dict[str, str]:
        """Return the file each copy is made of, by the copy's path in the build folder."""
        if self.editable_mode:
            return {}
        files = sorted(
            path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts
        )
        return {str(Path(self.build_lib) / TARGET / path.relative_to(SOURCE)): str(path) for path in files}


setup(cmdclass={"build_py": BuildWithExperiments})
