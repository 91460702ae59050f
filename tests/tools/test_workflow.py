"""The workflow that publishes a release: pinned actions, no right too many, and names that there are."""

import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_image import MACHINES
from tests.tools.test_release import files_of
from tools.publishing import PARAMETERS

ROOT = Path(__file__).parents[2]
FILE = ROOT / ".github" / "workflows" / "release.yml"
TEXT = FILE.read_text(encoding="utf-8")
WORKFLOW: dict[Any, Any] = yaml.safe_load(TEXT)
JOBS: dict[str, dict[str, Any]] = WORKFLOW["jobs"]
VERSION = "9.9.9"
SIGNED = {"id-token": "write", "attestations": "write"}
RIGHTS = {
    "test": {"contents": "read"},
    "build": {"contents": "read"},
    "image": {"contents": "read", "packages": "write", **SIGNED},
    "chart": {"contents": "read", "packages": "write", **SIGNED},
    "files": {"contents": "write", **SIGNED},
    "pypi": {"id-token": "write"},
}
FIRST = f"#!{sys.executable}\nimport pathlib, sys\n"


def steps(job: str = "") -> Iterator[dict[str, Any]]:
    for name, each in JOBS.items():
        if job in {"", name}:
            yield from each["steps"]


def scripts() -> list[str]:
    return [step["run"] for step in steps() if "run" in step]


def script(job: str, name: str) -> str:
    (found,) = [step["run"] for step in steps(job) if step.get("name") == name]
    return str(found)


# --- Rights ----------------------------------------------------------------------------------------------------------


def test_a_job_has_the_rights_that_it_needs_and_no_other() -> None:
    assert WORKFLOW[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads `on` as true
    assert WORKFLOW["permissions"] == {}
    assert {name: job["permissions"] for name, job in JOBS.items()} == RIGHTS


def test_only_jobs_that_may_but_read_run_code_of_the_repository() -> None:
    """The image is built in BuildKit's containers, which see none of the job's tokens."""
    own = re.compile(r"\b(make|python3?|pip|\.venv|tools|docker)\b")
    running = {name for name in JOBS for step in steps(name) if own.search(step.get("run", ""))}
    assert running == {"test", "build"}
    assert {right for name in running for right in RIGHTS[name].values()} == {"read"}


def test_released_files_are_made_of_packages_with_known_hashes_on_a_machine_that_ran_no_test() -> None:
    text = "\n".join(step.get("run", "") for step in steps("build"))
    (installed,) = re.findall(r"pip install (.*)", text)
    assert {"--require-hashes", "--no-deps", "--requirement requirements-release.lock"} <= {
        each.strip() for each in re.findall(r"--requirement \S+|--\S+", installed)
    }
    assert re.findall(r"^(\S+) -m tools\.\w+", text, re.MULTILINE) == ["packages/bin/python"] * 2
    assert "make" not in text.split()


def test_an_artifact_is_taken_by_its_id_and_no_checkout_leaves_its_token_behind() -> None:
    """Every job of a run may replace an artifact by its name, that of the tests too."""
    taken = [step["with"] for step in steps() if "download-artifact" in step.get("uses", "")]
    assert taken == [{"artifact-ids": "${{ needs.build.outputs.dist }}", "path": "dist"}] * 4
    kept = [step["with"]["persist-credentials"] for step in steps() if "checkout" in step.get("uses", "")]
    assert kept == [False] * 4


def test_every_action_is_pinned_to_a_commit_and_names_its_version() -> None:
    used = re.findall(r"^ *(?:- )?uses: (.*)$", TEXT, re.MULTILINE)
    assert len(used) == sum("uses" in step for step in steps())
    pins: dict[str, tuple[str, ...]] = {}
    for each in used:
        found = re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})  # (v\d+\.\d+\.\d+)", each)
        assert found, each
        assert pins.setdefault(found[1], found.groups()) == found.groups(), "one version of each action"


def test_every_image_that_a_step_runs_is_pinned_to_its_bytes() -> None:
    """Emulation, BuildKit and the program that lists the packages run beside the registry's password.

    Their actions run them by tags that anybody with the publisher's password could move.
    """
    inputs = {"docker/setup-qemu-action": "image", "docker/setup-buildx-action": "driver-opts"}
    inputs["docker/build-push-action"] = "sbom"
    used = {each["uses"].partition("@")[0]: each.get("with", {}) for each in steps() if "uses" in each}
    assert {name for name in used if name.startswith("docker/")} == {*inputs, "docker/login-action"}
    for name, key in inputs.items():
        assert re.search(r"(?:^|=)[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}$", str(used[name].get(key))), name


def test_nothing_from_outside_becomes_part_of_a_script() -> None:
    """A tag's name in `${{ }}` would be run; as a variable it is a value."""
    assert [text for text in scripts() if "${{" in text] == []


# --- Names -----------------------------------------------------------------------------------------------------------


def test_every_target_and_every_module_is_there() -> None:
    text = "\n".join(scripts())
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [name for name in re.findall(r"\bmake (\S+)", text) if not re.search(rf"(?m)^{name}:", makefile)] == []
    modules = {*re.findall(r"python -m (\S+)", text)} - {"venv"}
    assert modules == {"tools.tagged", "tools.release"}
    assert [name for name in modules if not (ROOT / f"{name.replace('.', '/')}.py").exists()] == []


def test_files_are_those_of_a_release() -> None:
    made = {f"dist/{name}" for name in {*files_of(VERSION), "SHA256SUMS"}}
    plain = re.sub(r"\$\{\{ steps\.names\.outputs\.version \}\}|\$VERSION", VERSION, TEXT)
    named = {each.rstrip("\"',)") for each in re.findall(r"\bdist/[^\s\"]+", plain)}
    assert len(named) > 5
    assert [name for name in named if not any(fnmatch(file, name) for file in made)] == []


def test_the_image_is_built_for_the_machines_of_the_locks() -> None:
    (build,) = [step["with"] for step in steps("image") if "build-push" in step.get("uses", "")]
    names = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}
    assert build["platforms"].split(",") == [names[machine] for machine in MACHINES]
    assert build["provenance"] == "mode=max"
    assert build["sbom"].startswith("generator=docker/buildkit-syft-scanner:")


# --- Scripts ---------------------------------------------------------------------------------------------------------


def test_scripts_are_those_of_bash() -> None:
    assert WORKFLOW["defaults"]["run"]["shell"] == "bash"
    for text in scripts():
        done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), text


class Runner:
    """A folder with the files of a release, and the programs of GitHub's runner that a test makes up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs = folder / "programs"
        self._programs.mkdir()
        (folder / "dist").mkdir()
        for name in files_of(VERSION):
            (folder / "dist" / name).write_text(name, encoding="utf-8")
        names = sorted(files_of(VERSION))
        sums = subprocess.run(["sha256sum", *names], cwd=folder / "dist", capture_output=True, check=True)
        (folder / "dist/SHA256SUMS").write_bytes(sums.stdout)

    def program(self, name: str, body: str) -> None:
        file = self._programs / name
        file.write_text(FIRST + body, encoding="utf-8")
        file.chmod(0o755)

    def run(self, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """As the runner does with `shell: bash`."""
        output = self.folder / "output.txt"
        output.touch()
        environ = {"PATH": f"{self._programs}:/usr/bin:/bin", "GITHUB_OUTPUT": str(output), **variables}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
        return subprocess.run(command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False)

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text(encoding="utf-8")


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.mark.parametrize("job", ["image", "chart"])
def test_names_are_those_of_the_tag_and_of_release_env(runner: Runner, job: str) -> None:
    text = (ROOT / PARAMETERS).read_text(encoding="utf-8").replace("ghcr.io/OWNER", "registry.example:5000/people")
    (runner.folder / PARAMETERS).write_text(text, encoding="utf-8")
    done = runner.run(script(job, "Read what is published, and where"), GITHUB_REF_NAME=f"v{VERSION}")
    assert done.returncode == 0, done.stderr
    assert runner.output.splitlines() == [
        "registry=registry.example:5000/people",
        "host=registry.example:5000",
        f"version={VERSION}",
    ]


DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize("stream", ["stderr", "stdout"], ids=["helm 3", "helm 4"])
def test_the_digest_of_the_chart_is_the_one_that_helm_prints(runner: Runner, stream: str) -> None:
    said = f"Pushed: registry.example/people/gpushare:{VERSION}\\nDigest: {DIGEST}\\n"
    body = f'pathlib.Path("asked.txt").write_text(" ".join(sys.argv[1:]))\nsys.{stream}.write("{said}")\n'
    runner.program("helm", body)
    done = runner.run(script("chart", "Push the chart"), REGISTRY="registry.example/people", VERSION=VERSION)
    assert done.returncode == 0, done.stderr
    assert runner.output == f"digest={DIGEST}\n"
    asked = (runner.folder / "asked.txt").read_text(encoding="utf-8")
    assert asked == f"push dist/gpushare-{VERSION}.tgz oci://registry.example/people"


@pytest.mark.parametrize("body", ["sys.exit(1)", "print('Pushed: something')"], ids=["fails", "says nothing"])
def test_a_chart_that_was_not_pushed_is_not_attested(runner: Runner, body: str) -> None:
    runner.program("helm", body)
    done = runner.run(script("chart", "Push the chart"), REGISTRY="registry.example/people", VERSION=VERSION)
    assert done.returncode == 1
    assert runner.output == ""


def test_the_release_has_every_file_and_the_words_of_the_changelog(runner: Runner) -> None:
    runner.program("gh", 'pathlib.Path("asked.txt").write_text("\\0".join(sys.argv[1:]))\n')
    words = 'More.\n\nWith "quotes" and $HOME.'
    done = runner.run(script("files", "Publish them"), TAG=f"v{VERSION}", NOTES=words)
    assert done.returncode == 0, done.stderr
    asked = (runner.folder / "asked.txt").read_text(encoding="utf-8").split("\0")
    assert asked[:3] == ["release", "create", f"v{VERSION}"]
    assert {name for name in asked if name.startswith("dist/")} == {
        f"dist/{name}" for name in {*files_of(VERSION), "SHA256SUMS"}
    }
    assert asked[-5:] == ["--verify-tag", "--title", f"v{VERSION}", "--notes", words]


def test_a_file_that_changed_on_the_way_is_not_published(runner: Runner) -> None:
    runner.program("gh", 'pathlib.Path("asked.txt").touch()\n')
    (runner.folder / "dist/install.yaml").write_text("changed", encoding="utf-8")
    done = runner.run(script("files", "Publish them"), TAG=f"v{VERSION}", NOTES="All.")
    assert done.returncode == 1
    assert not (runner.folder / "asked.txt").exists()


def test_pull_requests_run_the_commands_of_the_readme_with_no_right_to_write() -> None:
    workflow = yaml.safe_load(FILE.with_name("ci.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    actions = {step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step}
    assert commands == ["make demo ARGS=--once", "make test", "make lowest", "make docs"]
    assert workflow["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in workflow["jobs"].values())
    assert actions <= {step["uses"] for step in steps() if "uses" in step}, "an action that the release does not pin"
