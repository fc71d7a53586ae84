"""Everything published about regard, apart from its code, agrees with pyproject.toml."""

import re
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
RECIPE = (ROOT / "packaging/conda/recipe.yaml").read_text(encoding="utf-8")
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def spaced(requirement):
    """Return a requirement as conda writes it, with a space before the version."""
    return re.sub(r"(?<![<>=!~ ])([<>=!~])", r" \1", requirement, count=1)


def test_the_version_is_everywhere_the_same():
    assert re.search(r'^  version: "(.*)"$', RECIPE, re.M)[1] == PROJECT["version"]
    assert re.search(r"^version: (.*)$", CITATION, re.M)[1] == PROJECT["version"]


def test_the_license_and_the_summary_are_everywhere_the_same():
    assert re.search(r"^  license: (.*)$", RECIPE, re.M)[1] == PROJECT["license"]
    assert re.search(r"^license: (.*)$", CITATION, re.M)[1] == PROJECT["license"]
    assert re.search(r"^  summary: (.*)$", RECIPE, re.M)[1] == PROJECT["description"]


def test_the_recipe_needs_what_the_project_needs():
    host = re.search(r"^  host:\n((?:    - .*\n)+)", RECIPE, re.M)[1]
    run = re.search(r"^  run:\n((?:    - .*\n)+)", RECIPE, re.M)[1]
    built_with = {spaced(need) for need in PYPROJECT["build-system"]["requires"]}
    needed = {spaced(need) for need in PROJECT["dependencies"]}
    assert built_with < set(re.findall(r"- (.*)", host))
    assert set(re.findall(r"- (.*)", run)) == {*needed, f"python {PROJECT['requires-python']}"}


def test_classifiers_name_the_versions_that_wheels_are_built_for():
    built = {
        f"3.{match[1]}"
        for name in PYPROJECT["tool"]["cibuildwheel"]["build"]
        if (match := re.fullmatch(r"cp3(\d+)-\*", name))
    }
    prefix = "Programming Language :: Python :: "
    named = {name.removeprefix(prefix) for name in PROJECT["classifiers"]}
    assert built == {name for name in named if re.fullmatch(r"3\.\d+", name)}
    assert PROJECT["requires-python"] == f">={min(built, key=lambda name: int(name[2:]))}"


@pytest.fixture(scope="module")
def prepare_release():
    spec = spec_from_file_location("prepare_release", ROOT / ".ci" / "prepare_release.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_to_files_get_the_address_of_the_repository(prepare_release):
    text = "[a](docs/start.md#x) ![p](docs/bench.png) [b](https://b.example/c.md) [c](#d)"
    assert prepare_release.with_addresses(text, "https://a.example/o/n", "v1") == (
        "[a](https://a.example/o/n/blob/v1/docs/start.md#x) "
        "![p](https://a.example/o/n/raw/v1/docs/bench.png) [b](https://b.example/c.md) [c](#d)"
    )
    with pytest.raises(SystemExit, match=r"docs/none\.md, which is not a file"):
        prepare_release.with_addresses("[a](docs/none.md)", "https://a.example/o/n", "v1")


def test_the_description_of_a_release_has_no_relative_link(prepare_release):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    described = prepare_release.with_addresses(readme, "https://a.example/o/n", "v1")
    targets = re.findall(r"\]\(([^)]+)\)", described)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert not re.search(r"<(img|a) ", described)


def test_a_release_gets_links_beside_its_description(prepare_release):
    links = tomllib.loads(prepare_release.urls("https://a.example/o/n", "v1"))["project"]["urls"]
    assert links.keys() == {"Source", "Documentation", "Changelog", "Issues"}
    assert (ROOT / links["Changelog"].removeprefix("https://a.example/o/n/blob/v1/")).is_file()


def hinted_extras():
    """Return the extras that errors and docstrings tell a user to install."""
    files = [*(ROOT / "python").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    written = re.findall(r'pip install "\.\[([a-z,]+)\]"', text)
    passed = re.findall(r'\b_?needed\([^()]*, "([a-z]+)"\)', text)
    assert written
    assert len(passed) > 10
    return {extra for names in (*written, *passed) for extra in names.split(",")}


def test_hints_name_extras_that_there_are():
    assert hinted_extras() <= PROJECT["optional-dependencies"].keys()


def test_no_command_installs_what_an_index_calls_regard():
    """Nothing is published there, so a package of this name is somebody else's."""
    folders = ("benchmarks", "docs", "examples", "python", "tests")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    files = [*ROOT.glob("*.md"), *(path for path in files if path.suffix in (".md", ".py"))]
    assert len(files) > 500
    found = {
        path.relative_to(ROOT).as_posix()
        for path in files
        if re.search(r"pip install [^\n]*regard\[", path.read_text(encoding="utf-8"))
    }
    assert found == set()
