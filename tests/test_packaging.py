"""What the package page and an installation show: links, versions, and what a base needs."""

import re
import tomllib
from pathlib import Path

import bitwright

ROOT = Path(__file__).parents[1]
METADATA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = METADATA["project"]


def test_the_version_stands_in_one_place():
    assert "version" not in PROJECT
    place = ROOT / METADATA["tool"]["hatch"]["version"]["path"]
    assert f'"{bitwright.__version__}"' in place.read_text(encoding="utf-8")
    assert f"## [{bitwright.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_links_of_the_readme_are_absolute_on_the_package_page():
    rules = METADATA["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in rules:
        shown = re.sub(rule["pattern"], rule["replacement"], shown)
    assert "/raw/main/docs/images/front.png)" in shown
    links = re.findall(r"\]\(([^)]+)\)", shown)
    assert len(links) > 10
    assert all(link.startswith(("https://", "#")) for link in links)
    assert "/blob/main/docs/tune.md)" in shown


def test_addresses_are_those_of_the_package_page():
    """Other files need them written out; this is where they would differ."""
    import yaml

    urls = PROJECT["urls"]
    repository, site = urls["Repository"], urls["Documentation"]
    assert urls["Homepage"] == repository
    assert urls["Issues"] == f"{repository}/issues"
    assert urls["Changelog"] == f"{repository}/blob/main/CHANGELOG.md"
    pages = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert f"site_url: {site}\n" in pages and f"link: {repository}," in pages
    assert "repo_url:" not in pages  # pages that have one ask another host for its facts
    rules = METADATA["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]
    places = [rule["replacement"].partition("](")[2] for rule in rules]
    assert places == [f"{repository}/raw/main/\\2)", f"{repository}/blob/main/\\1)"]
    template = ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"
    [link] = yaml.safe_load(template.read_text(encoding="utf-8"))["contact_links"]
    assert link["url"].startswith(repository)


def test_the_citation_and_the_conda_recipe_are_of_this_version_and_its_requirements():
    import yaml

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == bitwright.__version__
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    text = (ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8")
    assert f'{{% set version = "{bitwright.__version__}" %}}' in text
    recipe = yaml.safe_load(re.sub(r"{%.*%}", "", text).replace("{{", "").replace("}}", ""))
    named = {line.replace(" ", "").replace("-", "_") for line in recipe["requirements"]["run"]}
    wanted = {one.replace("-", "_") for one in PROJECT["dependencies"]}
    assert named == wanted | {f"python{PROJECT['requires-python']}"}


def test_an_installation_without_extras_has_nothing_that_only_some_need():
    base = {re.split("[<>=]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert not base & {"numba", "torch", "ray", "pillow", "tokenizers", "av", "gguf"}
    extras = PROJECT["optional-dependencies"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in extras if name not in ("dev", "docs"))


def test_what_is_installed_beside_us_may_be_as_new_as_it_is():
    extras = PROJECT["optional-dependencies"].values()
    requirements = [*PROJECT["dependencies"], *(one for extra in extras for one in extra)]
    assert not [requirement for requirement in requirements if re.search("<|==|~=", requirement)]


def test_the_website_needs_what_its_extra_has():
    lines = (ROOT / "docs" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert lines[1:] == PROJECT["optional-dependencies"]["docs"]


def test_workflows_are_yaml_and_run_what_is_there():
    import yaml

    files = sorted((ROOT / ".github").rglob("*.yml"))
    assert len(files) >= 6
    for file in files:
        assert yaml.safe_load(file.read_text(encoding="utf-8"))
    assert (ROOT / ".ci" / "run").exists()
    assert (ROOT / "SECURITY.md").exists()
