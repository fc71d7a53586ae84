"""Write the repository's address into the files that a package index shows for a release.

    python .ci/prepare_release.py ADDRESS REVISION

README.md is the description on the package's page, where relative links to files do not work. This
script replaces them with links to the same files at REVISION, and adds the links that are shown
next to the description to pyproject.toml. The release workflow runs it in its checkout before it
builds.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def with_addresses(text: str, address: str, revision: str) -> str:
    """Return Markdown in which links to files are links into the repository."""

    def link(match: re.Match[str]) -> str:
        bang, label, target = match.groups()
        path = target.partition("#")[0]
        if not (ROOT / path).exists():
            sys.exit(f"README.md links to {target}, which is not a file in the repository")
        return f"{bang}[{label}]({address}/{'raw' if bang else 'blob'}/{revision}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)", link, text)


def urls(address: str, revision: str) -> str:
    """Return the table of links for pyproject.toml."""
    links = {
        "Source": address,
        "Documentation": f"{address}/tree/{revision}/docs",
        "Changelog": f"{address}/blob/{revision}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }
    return "[project.urls]\n" + "".join(f'{name} = "{url}"\n' for name, url in links.items()) + "\n"


def main() -> None:
    """Rewrite README.md and pyproject.toml."""
    address, revision = sys.argv[1:]
    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    described = with_addresses(readme.read_text(encoding="utf-8"), address.rstrip("/"), revision)
    readme.write_text(described, encoding="utf-8", newline="\n")
    text = project.read_text(encoding="utf-8")
    before = "[project.optional-dependencies]"
    if text.count(before) != 1 or "[project.urls]" in text:
        sys.exit(f"pyproject.toml must have one table {before} and no [project.urls]")
    text = text.replace(before, urls(address.rstrip("/"), revision) + before)
    project.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
