"""Every snippet of the docs is a file that runs, and every link leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(path.parent)},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def squeezed(code):
    """Without blank lines and alignment, so that layout may differ but words may not."""
    return "\n".join(" ".join(line.split()) for line in code.splitlines() if line.strip())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_snippets_are_part_of_an_example(page):
    known = [squeezed(path.read_text()) for path in EXAMPLES]
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        assert any(squeezed(snippet) in code for code in known), f"not in docs/examples:\n{snippet}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_commands_of_the_readme_exist():
    make = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^\s*make (\S+)", (ROOT / "README.md").read_text(), flags=re.MULTILINE):
        assert re.search(rf"^{target}:", make, flags=re.MULTILINE), target
