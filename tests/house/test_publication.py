"""What is published about regard agrees with pyproject.toml."""

import re
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import regard

ROOT = Path(__file__).parent.parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
RECIPE = (ROOT / "packaging/conda/recipe.yaml").read_text(encoding="utf-8")
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def spaced(requirement):
    """Return a requirement as conda writes it, with a space before the version."""
    return re.sub(r"(?<![<>=!~ ])([<>=!~])", r" \1", requirement, count=1)


def test_version_license_and_requirements_are_everywhere_the_same():
    assert regard.__version__ == PROJECT["version"]
    assert re.search(r'^  version: "(.*)"$', RECIPE, re.M)[1] == PROJECT["version"]
    assert re.search(r"^version: (.*)$", CITATION, re.M)[1] == PROJECT["version"]
    assert f"## {regard.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^  license: (.*)$", RECIPE, re.M)[1] == PROJECT["license"]
    assert re.search(r"^license: (.*)$", CITATION, re.M)[1] == PROJECT["license"]
    host = re.search(r"^  host:\n((?:    - .*\n)+)", RECIPE, re.M)[1]
    run = re.search(r"^  run:\n((?:    - .*\n)+)", RECIPE, re.M)[1]
    assert {spaced(each) for each in PYPROJECT["build-system"]["requires"]} < {
        *re.findall(r"- (.*)", host)
    }
    needed = {spaced(each) for each in PROJECT["dependencies"]}
    assert {*re.findall(r"- (.*)", run)} == {*needed, f"python {PROJECT['requires-python']}"}


def test_the_description_of_a_release_has_no_relative_link():
    spec = spec_from_file_location("prepare_release", ROOT / ".ci" / "prepare_release.py")
    prepare_release = module_from_spec(spec)
    spec.loader.exec_module(prepare_release)
    text = "[a](docs/start.md#x) ![p](docs/bench.png) [b](https://b.example/c.md) [c](#d)"
    assert prepare_release.with_addresses(text, "https://a.example", "v1") == (
        "[a](https://a.example/blob/v1/docs/start.md#x) "
        "![p](https://a.example/raw/v1/docs/bench.png) [b](https://b.example/c.md) [c](#d)"
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    described = prepare_release.with_addresses(readme, "https://a.example", "v1")
    assert re.findall(r"\]\((?!https://|#)([^)]+)\)", described) == []
