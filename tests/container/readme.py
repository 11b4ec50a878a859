"""The commands of README's installation on Kubernetes."""

from tests.kube.cluster import ROOT

_HEADING = "## Install on Kubernetes\n"


def commands() -> list[str]:
    """Each as it is written, a continued one in one piece."""
    _, _, section = (ROOT / "README.md").read_text().partition(_HEADING)
    block = section.split("```")[1]
    return block.replace("\\\n", " ").strip().splitlines()


def build() -> list[str]:
    """The words of the one that builds the image."""
    found = [each for each in commands() if each.startswith("podman build ")]
    return found[0].split()[2:]
