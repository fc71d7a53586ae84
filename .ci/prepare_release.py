"""Write the repository's address into what a package index shows of a release.

    python .ci/prepare_release.py ADDRESS REVISION

README.md is the description on the package's page, where links to files of the repository lead
nowhere. They are replaced by links to these files at REVISION, and pyproject.toml gets the links
that stand beside the description. The release workflow runs this in its checkout before it builds.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def with_addresses(text: str, address: str, revision: str) -> str:
    """Return Markdown whose links to files are links into the repository."""

    def link(match: re.Match[str]) -> str:
        bang, label, target = match.groups()
        path = target.partition("#")[0]
        if not (ROOT / path).exists():
            sys.exit(f"README.md links to {target}, which is not a file of the repository")
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
    """Rewrite the two files."""
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
