"""The wheel, installed as a user would install it, and a folder in which nothing may be imported."""

import os
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

from schemas.errors import libraries_of_extras
from schemas.interpreters import python_command

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "solvers", "streams", "executors", "infra", "bench")


def build_wheel(folder: Path) -> Path:
    """Build the wheel into a folder."""
    build = [
        sys.executable,
        "-P",
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(folder),
    ]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def install_wheel(folder: Path, *, extras: bool = True) -> Path:
    """Make an environment with the wheel, and with all that this one has but the millrace of this checkout.

    Args:
        folder: for the environment.
        extras: whether it also has the libraries of millrace's extras.

    Returns:
        the `millrace` command of it.
    """
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    wheel = build_wheel(folder)
    pip = python_command("-m", "pip", "--python", str(python), "--disable-pip-version-check")
    install = [*pip, "install", "--quiet", "--no-index", "--no-deps", "--no-compile", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    libraries = folder / "libraries"
    libraries.mkdir()
    left_out = set() if extras else _files_of_extras()
    for file in Path(sysconfig.get_path("purelib")).iterdir():
        # No .pth file, such as that of this checkout, is read in a folder that is only on the path.
        if file.name not in left_out and not file.name.startswith("millrace-"):
            (libraries / file.name).symlink_to(file)
    packages = next(environment.glob("lib/python*/site-packages"))
    (packages / "libraries.pth").write_text(f"{libraries}\n")
    return environment / "bin" / "millrace"


def _files_of_extras() -> set[str]:
    """Folders and files in site-packages of the libraries that come with extras."""
    names = (name for extra, names in libraries_of_extras().items() if extra != "dev" for name in names)
    return {file.parts[0] for name in names for file in metadata.files(name) or ()}


class HostileFolder:
    """A folder with a module of every name that can be imported, each of which notes that it was."""

    def __init__(self, path: Path, **variables: str) -> None:
        self.path = path
        self._variables = variables
        self._imported = path / "imported.txt"
        program = (
            f"with open({str(self._imported)!r}, 'a') as imported:\n"
            "    imported.write(__name__ + '\\n')\n"
            "raise ImportError(f'{__name__} of the working directory is imported')\n"
        )
        path.mkdir()
        for package in PACKAGES:
            (path / package).mkdir()
            (path / package / "__init__.py").write_text(program)
        others = {
            *sys.stdlib_module_names,
            *metadata.packages_distributions(),
            "sitecustomize",
            "usercustomize",
        }
        for name in others - set(PACKAGES):
            if name.isidentifier():
                (path / f"{name}.py").write_text(program)

    @property
    def imported(self) -> list[str]:
        """Its modules that were imported by anybody."""
        return self._imported.read_text().split() if self._imported.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        """Variables of processes in it, without those of the tests."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MILLRACE_", "PYTHON", "COV_"))
        }
        return {**inherited, **self._variables}

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command in it."""
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.path,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
