import configparser
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from producer.commands.demo import examples_file

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("schemas", "sampling", "worker", "producer")


def test_no_other_distribution_owns_our_top_level_names():
    owners = importlib.metadata.packages_distributions()
    for name in NAMES:
        assert set(owners.get(name, ())) <= {"specmill"}, f"{name} also belongs to {owners[name]}"


@pytest.mark.parametrize("name", NAMES)
def test_our_names_are_imported_from_here(name):
    module = __import__(name)
    assert Path(module.__file__).parent == ROOT / name


def test_the_pins_name_no_address_and_no_path():
    text = (ROOT / "requirements" / "constraints.txt").read_text()
    entry = re.compile(r"([a-z0-9.-]+==[\w.+]+( ; [\w '\"=<>!.()]+)?|    --hash=sha256:[0-9a-f]{64})( \\)?")
    strange = [line for line in text.splitlines() if not entry.fullmatch(line)]
    assert strange == []


def test_every_declared_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[\[<>=; ]", line)[0].lower() for line in project["dependencies"] + project["optional-dependencies"]["dev"]}
    pinned = set(re.findall(r"^([a-z0-9.-]+)==", (ROOT / "requirements" / "constraints.txt").read_text(), re.MULTILINE))
    assert declared <= pinned


def test_the_examples_are_found_in_a_checkout():
    assert examples_file() == ROOT / "examples" / "prompts.jsonl"


@pytest.mark.slow
def test_a_wheel_holds_all_that_the_commands_need(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("specmill-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        entry_points = configparser.ConfigParser()
        (name,) = [file for file in files if file.endswith("entry_points.txt")]
        entry_points.read_string(archive.read(name).decode())
        archive.extractall(tmp_path / "site")
    ours = {str(path.relative_to(ROOT)) for package in NAMES for path in (ROOT / package).rglob("*.py")}
    assert ours | {"producer/examples/prompts.jsonl", "worker/heads/smollm2-mtp.safetensors", "worker/heads/smollm2-mtp.md"} <= files
    assert {file.split("/")[0] for file in files if ".dist-info" not in file} == set(NAMES)
    assert any(file.endswith("licenses/LICENSE") for file in files)
    assert entry_points["console_scripts"]["specmill"] == "producer.cli:main"
    # -I: neither this checkout nor the environment may lend a module.
    imports = "from producer.commands.demo import examples_file; print(examples_file())"
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {imports}"
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert Path(found.stdout.strip()) == tmp_path / "site" / "producer" / "examples" / "prompts.jsonl"
