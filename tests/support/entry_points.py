"""Entry points that a test installs for the processes that it starts."""

from pathlib import Path


def install_entry_point(site: Path, group: str, name: str, value: str) -> Path:
    """Install an entry point below a folder, which is returned, as pip would: processes see it whose path has
    the folder."""
    folder = site / f"{group.replace('.', '_')}_{name}-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    return site
