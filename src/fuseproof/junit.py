"""Verdicts in JUnit's file, each on the test case that measured what it is about.

pytest has finished its test cases when the verdicts are known, so they are added to the file that it has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

__all__ = ["annotate"]


def annotate(path: Path, said: Mapping[str, Mapping[str, str]]) -> None:
    """Add properties to the test cases of a JUnit file.

    Args:
        path: the file, as pytest has written it.
        said: by test id, the properties' names and values.

    Raises:
        OSError, ElementTree.ParseError: it cannot be read or written.

    """
    tree = ElementTree.parse(path)
    cases = {(case.get("classname"), case.get("name")): case for case in tree.iter("testcase")}
    for test, properties in said.items():
        if (case := cases.get(_address(test))) is None:
            continue
        if (group := case.find("properties")) is None:
            group = ElementTree.Element("properties")
            case.insert(0, group)
        for name, value in properties.items():
            ElementTree.SubElement(group, "property", name=name, value=value)
    tree.write(path, encoding="utf-8", xml_declaration=True)


def _address(test: str) -> tuple[str, str]:
    """Return class name and name of a test in a JUnit file; parameters may hold what separates the others."""
    path, bracket, parameters = test.partition("[")
    *places, name = path.split("::")
    places[0] = places[0].removesuffix(".py").replace("/", ".")
    return ".".join(places), f"{name}{bracket}{parameters}"
