"""The `[tool.fuseproof]` table is read strictly, and whatever is wrong with it is one sentence."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuseproof.config import ConfigError, Settings, load_settings, nearest


def written(folder: Path, text: str | bytes) -> Path:
    """Write a pyproject.toml and return its folder."""
    (folder / "pyproject.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def refusal(folder: Path) -> str:
    """Return the sentence with which the configuration in `folder` is refused, which names its file."""
    with pytest.raises(ConfigError) as caught:
        load_settings(folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'pyproject.toml'}: ")
    assert len(message.splitlines()) == 1
    return message


@pytest.mark.parametrize(
    "text",
    ["", '[project]\nname = "x"\n', "[tool.other]\nhistory = 3\n", "tool = 3\n"],
    ids=["empty-file", "no-tool", "other-tool", "tool-is-no-table"],
)
def test_without_a_table_a_project_is_not_configured(tmp_path: Path, text: str) -> None:
    """The plugin does nothing there."""
    assert load_settings(written(tmp_path, text)) is None


def test_without_a_file_a_project_is_not_configured(tmp_path: Path) -> None:
    """Neither does it where pyproject.toml is missing."""
    assert load_settings(tmp_path) is None


def test_an_empty_table_configures_the_defaults(tmp_path: Path) -> None:
    """The table alone switches fuseproof on."""
    assert Settings() == load_settings(written(tmp_path, "[tool.fuseproof]\n"))


def test_values_replace_defaults(tmp_path: Path) -> None:
    """What the table says wins."""
    found = load_settings(written(tmp_path, '[tool.fuseproof]\nhistory = "numbers/of/ours"\n'))
    assert Settings(history="numbers/of/ours") == found


def test_an_unknown_key_names_the_nearest_known_one(tmp_path: Path) -> None:
    """A typing error is an error, with the word that was meant."""
    message = refusal(written(tmp_path, '[tool.fuseproof]\nhistroy = "x"\n'))
    assert "[tool.fuseproof] has no key 'histroy'; did you mean 'history'?" in message


def test_an_unknown_key_unlike_any_other_lists_those_known(tmp_path: Path) -> None:
    """Where no word is near, all are named."""
    assert "has no key 'zzz'; known: " in refusal(written(tmp_path, "[tool.fuseproof]\nzzz = 1\n"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [("3", "3"), ('""', "''"), ("true", "True"), ('["a"]', "['a']"), ("{ a = 1 }", "{'a': 1}")],
    ids=["number", "empty", "boolean", "list", "table"],
)
def test_a_value_of_the_wrong_type_is_shown(tmp_path: Path, value: str, shown: str) -> None:
    """The key, the value as Python reads it, and what the key takes."""
    message = refusal(written(tmp_path, f"[tool.fuseproof]\nhistory = {value}\n"))
    assert f"[tool.fuseproof] history is {shown}; it takes a non-empty string." in message


def test_a_value_in_the_tables_place_is_refused(tmp_path: Path) -> None:
    """`fuseproof = true` under `[tool]` looks like a switch; it is none."""
    assert "tool.fuseproof is True; it is a table" in refusal(written(tmp_path, "[tool]\nfuseproof = true\n"))


@pytest.mark.parametrize(
    "text", ["[tool.fuseproof\n", b'[tool.fuseproof]\nhistory = "\xff"\n'], ids=["open-bracket", "not-utf-8"]
)
def test_a_file_that_does_not_parse_is_refused(tmp_path: Path, text: str | bytes) -> None:
    """With the parser's own words about the place."""
    assert ": not valid TOML: " in refusal(written(tmp_path, text))


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Not read is not the same as not there."""
    (tmp_path / "pyproject.toml").mkdir()
    assert ": cannot be read: " in refusal(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map("[tool.fuseproof]\nhistory = {}\n".format)))
def test_any_file_is_read_or_refused_in_one_sentence(tmp_path: Path, content: bytes | str) -> None:
    """No content of pyproject.toml ends in another exception than `ConfigError`."""
    folder = written(tmp_path, content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    found: Settings | ConfigError | None
    try:
        found = load_settings(folder)
    except ConfigError as error:
        found = error
    assert found is None or len(str(found).splitlines()) == 1


def test_nearest_helps_with_a_word() -> None:
    """Near words are suggested, others answered with the sorted list."""
    assert nearest("round", ["rounds", "history"]) == "did you mean 'rounds'?"
    assert nearest("zzz", ["rounds", "history"]) == "known: history, rounds."
