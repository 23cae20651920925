"""An archive of the classes that Kafka loads: with it a broker starts in half of the time.

Java makes it (dynamic class data sharing) when a broker without one stops. At each start Java checks that it
is of this Java and these jars; if not, the classes are loaded from the jars.
"""

import hashlib
import shutil
import uuid
from pathlib import Path


class ClassArchive:
    """The archive of a Java and a folder of jars, stored next to the jars."""

    def __init__(self, java: Path, jars: Path, made: Path) -> None:
        """Describe the archive; without one, a broker makes it in the file `made`."""
        runtime = java.resolve()
        identity = f"{runtime}:{runtime.stat().st_mtime_ns}"
        digest = hashlib.blake2b(identity.encode(), digest_size=4).hexdigest()
        self._kept = jars.with_name(f"{jars.name}-{digest}.jsa")
        self._made = made

    @property
    def uses(self) -> list[str]:
        """Options for a Java that uses the archive, if it exists."""
        return ["-Xlog:cds*=off", f"-XX:SharedArchiveFile={self._kept}"] if self._kept.exists() else []

    @property
    def uses_or_makes(self) -> list[str]:
        """Options for a Java that uses the archive, or makes it when it stops."""
        return self.uses or ["-Xlog:cds*=off", f"-XX:ArchiveClassesAtExit={self._made}"]

    def keep(self) -> None:
        """Store a new archive for later starts, if there is room."""
        arriving = self._kept.with_name(f".{uuid.uuid4().hex}.jsa")
        try:
            if self._made.exists():
                shutil.copyfile(self._made, arriving)
                arriving.replace(self._kept)
        except OSError:
            arriving.unlink(missing_ok=True)  # it only saves time
        finally:
            self._made.unlink(missing_ok=True)
