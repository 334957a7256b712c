"""The Dockerfile and the forge's workflow, which cannot be run here: what they name exists, and their shell reads."""

import re
import subprocess
import tomllib
from typing import Any

import pytest
import yaml

from ponder.commands import VERBS
from ponder.commands.completion import parser_of
from tests.support import ROOT

if not (ROOT / ".github").is_dir():
    pytest.skip("container and workflow: not in a checkout", allow_module_level=True)

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
INSTALL = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))


def instructions() -> list[tuple[str, str]]:
    """Keyword and argument, with continued lines put together."""
    joined = re.sub(r"\\\n", " ", DOCKERFILE)
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(keyword, rest) for keyword, _, rest in (line.partition(" ") for line in lines)]


def test_every_instruction_is_one_and_every_variable_is_declared_before_it_is_used() -> None:
    declared: set[str] = set()
    keywords = [keyword for keyword, _ in instructions()]
    assert keywords[:2] == ["ARG", "FROM"] and keywords[-2:] == ["ENTRYPOINT", "CMD"]
    assert set(keywords) <= {"ARG", "FROM", "ENV", "COPY", "RUN", "USER", "WORKDIR", "EXPOSE", "ENTRYPOINT", "CMD"}
    for keyword, rest in instructions():
        assert set(re.findall(r"\$\{?(\w+)", rest)) <= declared, rest
        if keyword in ("ARG", "ENV"):
            declared |= set(re.findall(r"(\w+)=", rest))
        elif keyword == "FROM":
            declared.clear()  # what was declared before it is not seen after it
        elif keyword == "RUN":
            assert subprocess.run(["sh", "-n", "-c", rest], check=False).returncode == 0, rest
    arguments = dict(rest.split("=", 1) for keyword, rest in instructions() if keyword == "ARG")
    asked = set(re.findall(r"--build-arg (\w+)=", DOCKERFILE + INSTALL))
    assert asked and asked <= set(arguments)
    assert arguments["EXTRAS"] in PROJECT["optional-dependencies"]
    assert arguments["BASE"].removeprefix("python:").split("-")[0] in ("3.11", "3.12", "3.13")


def test_what_it_copies_is_there_and_what_it_needs_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    needed = ["ponder", "tools/hatch_build.py", "pyproject.toml", *PROJECT["license-files"], PROJECT["readme"]]
    assert not any(name.split("/")[0] in ignored for name in needed) and all((ROOT / name).exists() for name in needed)


def test_its_commands_are_read_by_their_verbs() -> None:
    (entry,) = [rest for keyword, rest in instructions() if keyword == "ENTRYPOINT"]
    assert entry == '["ponder"]' and "ponder" in PROJECT["scripts"]
    runs = re.findall(r"docker run (?:.*?) ponder (\w[^\n]*?)(?: {4}\(.*)?$", DOCKERFILE + INSTALL, flags=re.M)
    assert len(runs) >= 5
    for command in runs:
        verb, *words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)]
        assert verb in VERBS
        parser_of(verb).parse_args(words)


def test_the_workflow_runs_the_two_commands_on_every_python_that_is_promised() -> None:
    (path,) = (ROOT / ".github" / "workflows").iterdir()
    workflow: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(workflow[True]) == {"push", "pull_request"}  # YAML reads `on` as yes
    (job,) = workflow["jobs"].values()
    matrix = job["strategy"]["matrix"]
    assert matrix["python"][0] == PROJECT["requires-python"].removeprefix(">=")
    assert matrix["python"] == ["3.11", "3.12", "3.13"] and len(matrix["system"]) >= 2
    assert set(re.findall(r"\$\{\{ matrix\.(\w+) \}\}", path.read_text(encoding="utf-8"))) == set(matrix)
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == ["make quickstart", "make test"] and {each.split()[1] for each in commands} <= TARGETS
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert ci.splitlines()[-1] in commands
