"""Configuration: precedence, strictness, origins, and messages that name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from antiphon_core.config import (
    BOOT_REFUSED,
    ConfigError,
    Settings,
    load_settings,
    process_environment,
    setting,
    settings_from_command_line,
)
from pydantic import ValidationError


class Engine(Settings):
    rows: int = setting(8, doc="Rows of a batch.", ge=1, le=64)
    share: float = setting(0.9, doc="Share of memory.", gt=0, le=1)


class Demo(Settings):
    model: str = setting("smol", doc="Served model.", scope="drained")
    device: Literal["cpu", "cuda"] = setting("cpu", doc="Device.")
    threads: int | None = setting(None, doc="Threads; none takes all cores.")
    voices: list[str] = setting(doc="Voices.", default_factory=list)
    limits: dict[str, int] = setting(doc="Named limits.", default_factory=dict)
    path: Path | None = setting(None, doc="A file.")
    open_mode: bool = setting(False, doc="No keys.", environment="ANTIPHON_OPEN_MODE")
    token: str = setting("", doc="Secret.", secret=True)
    engine: Engine = setting(doc="Engine.", default_factory=Engine)


class Needy(Settings):
    name: str = setting(doc="Required.")


def load(
    flags: str = "", env: dict[str, str] | None = None, file: Path | None = None, cls: Any = Demo
) -> Any:
    return load_settings(
        cls, section="llm", config_file=file, argv=flags.split(), environ=env or {}
    )


@pytest.fixture
def write(tmp_path: Path):
    def write_file(text: str, name: str = "suite.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_file


def test_precedence_is_default_file_environment_flag(write) -> None:
    file = write('[llm]\nmodel = "file"\ndevice = "cuda"\n[llm.engine]\nrows = 2\nshare = 0.5\n')
    env = {"ANTIPHON_LLM_MODEL": "environment", "ANTIPHON_LLM_ENGINE__ROWS": "3"}
    settings = load("--engine.rows 4", env, file)
    assert (settings.model, settings.device, settings.engine) == (
        "environment",
        "cuda",
        Engine(rows=4, share=0.5),
    )
    assert {name: settings.origin(name).split()[0] for name in Demo.model_fields} == {
        "model": "environment",
        "device": "file",
        **dict.fromkeys(["threads", "voices", "limits", "path", "open_mode", "token"], "default"),
        "engine": "default",
    }
    assert settings.origin("engine.rows") == "flag --engine.rows"
    assert settings.origin("engine.share").startswith("file ")


def test_yaml_and_toml_say_the_same(write) -> None:
    toml = write('[llm]\nvoices = ["a", "b"]\nengine = { rows = 2 }\n[vocoder]\nx = 1\n')
    yaml = write("llm:\n  voices: [a, b]\n  engine: {rows: 2}\nvocoder:\n  x: 1\n", "suite.yaml")
    assert load(file=toml).model_dump() == load(file=yaml).model_dump()
    assert load(file=yaml).engine.rows == 2


def test_a_file_without_the_section_or_empty_gives_defaults(write) -> None:
    assert load(file=write("[gateway]\nport = 1\n")) == Demo()
    assert load(file=write("", "empty.yaml")) == Demo()


@pytest.mark.parametrize(
    ("flags", "env", "field", "value"),
    [
        ("--threads 3", {}, "threads", 3),
        ("--threads none", {}, "threads", None),
        ("--voices a,b", {}, "voices", ["a", "b"]),
        ('--voices ["a","b,c"]', {}, "voices", ["a", "b,c"]),
        ('--limits {"a":1}', {}, "limits", {"a": 1}),
        ("--path /tmp/x", {}, "path", Path("/tmp/x")),
        ("--open-mode", {}, "open_mode", True),
        ("--open_mode --device cuda", {}, "open_mode", True),
        ("--open-mode=false", {"ANTIPHON_OPEN_MODE": "1"}, "open_mode", False),
        ("", {"ANTIPHON_OPEN_MODE": "1"}, "open_mode", True),
        ("", {"ANTIPHON_LLM_VOICES": ""}, "voices", []),
        ("--model=a=b", {}, "model", "a=b"),
        ("--model [x]", {}, "model", "[x]"),
    ],
)
def test_text_becomes_typed_values(flags, env, field, value) -> None:
    assert getattr(load(flags, env), field) == value


@pytest.mark.parametrize(
    ("flags", "env", "expected"),
    [
        ("--modle x", {}, "flag --modle: unknown key 'modle' in [llm]; did you mean 'model'?"),
        ("--engine.row 3", {}, "unknown key 'row' in [llm.engine]; did you mean 'rows'?"),
        ("--zzz 3", {}, "unknown key 'zzz' in [llm]; known: device, engine, limits, model"),
        (
            "",
            {"ANTIPHON_LLM_DEVISE": "cpu"},
            "environment variable ANTIPHON_LLM_DEVISE: unknown key 'devise' in [llm];"
            " did you mean 'device'?",
        ),
        ("", {"ANTIPHON_LLM_ENGINE__ROW": "1"}, "unknown key 'row' in [llm.engine]"),
        ("--model", {}, "flag --model needs a value"),
        ("model x", {}, "unexpected argument 'model'"),
        ("--threads x", {}, "llm.threads: Input should be a valid integer"),
        ("--threads x", {}, "got 'x' (from flag --threads)"),
        ("--engine.rows 0", {}, "llm.engine.rows: Input should be greater than or equal to 1"),
        ("", {"ANTIPHON_LLM_DEVICE": "tpu"}, "(from environment ANTIPHON_LLM_DEVICE)"),
        ("--device tpu", {}, "'cpu' or 'cuda'"),
        ("--engine.share nan", {}, "finite number"),
        ("--limits {a}", {}, "--limits: not valid JSON"),
    ],
)
def test_errors_name_key_section_origin_and_close_matches(flags, env, expected) -> None:
    with pytest.raises(ConfigError) as caught:
        load(flags, env)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("[llm]\nmodle = 1\n", "a.toml", "unknown key 'modle' in [llm]; did you mean 'model'?"),
        ("[llm.engine]\nrow = 1\n", "a.toml", "unknown key 'row' in [llm.engine]"),
        ("[gatway]\nx = 1\n", "a.toml", "unknown section [gatway]; did you mean 'gateway'?"),
        ("llm = 3\n", "a.toml", "[llm] must be a table"),
        ("[llm\n", "a.toml", "a.toml: "),
        ("llm: [", "a.yaml", "a.yaml: "),
        ("- 1\n", "a.yaml", "must hold sections"),
        ("x", "a.ini", "ends in .toml, .yaml or .yml"),
        ("[llm]\nengine = 3\n", "a.toml", "llm.engine: "),
        ("[llm]\ndevice = 'tpu'\n", "a.toml", "a.toml)"),
    ],
)
def test_bad_files_are_clear_errors(write, text, name, expected) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file=write(text, name))
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_missing_field(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the configuration file .*No such file"):
        load(file=tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"llm\.name is required"):
        load(cls=Needy)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        load("--device tpu --threads x")
    assert "llm.device" in str(caught.value)
    assert "llm.threads" in str(caught.value)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        Demo().model = "other"


def test_secrets_are_never_shown() -> None:
    class Keys(Settings):
        key: int = setting(0, doc="A secret number.", secret=True)

    settings = load("--token hush")
    assert "hush" not in repr(settings)
    assert {row.name: row.value for row in settings.values()}["token"] == "***"
    with pytest.raises(ConfigError) as caught:
        load("--key hush", cls=Keys)
    assert "hush" not in str(caught.value)


def test_the_digest_tells_configurations_apart() -> None:
    assert load("--model a").digest() == load("", {"ANTIPHON_LLM_MODEL": "a"}).digest()
    assert load("--model a").digest() != load("--model b").digest()


def test_print_config_shows_value_and_origin(write, capsys) -> None:
    file = write("[llm.engine]\nrows = 2\n")
    argv = ["--config", str(file), "--print-config", "--model", "x", "--token", "hush"]
    with pytest.raises(SystemExit) as caught:
        settings_from_command_line(Demo, section="llm", argv=argv, environ={})
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[llm]"
    assert 'model = "x"  # flag --model' in lines
    assert f"engine.rows = 2  # file {file}" in lines
    assert "engine.share = 0.9  # default" in lines
    assert 'token = "***"  # flag --token' in lines


def test_help_names_every_flag(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        settings_from_command_line(Demo, section="llm", argv=["--help"], environ={})
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "--engine.rows" in out
    assert "Rows of a batch." in out
    assert "--open-mode" in out


def test_a_configuration_error_exits_with_one_line(capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        settings_from_command_line(Demo, section="llm", argv=["--modle", "x"], environ={})
    assert caught.value.code == BOOT_REFUSED == 71
    (line,) = capsys.readouterr().err.splitlines()
    assert "configuration error" in line
    assert "'model'" in line


def test_the_command_line_loads_a_file(write) -> None:
    file = write('[llm]\nmodel = "from file"\n')
    for argv in (["--config", str(file)], [f"--config={file}"]):
        settings = settings_from_command_line(Demo, section="llm", argv=argv, environ={})
        assert settings.model == "from file"


def test_values_are_json_compatible() -> None:
    rows = load("--path /tmp/x").values()
    assert json.loads(json.dumps([row.value for row in rows]))
    assert next(row for row in rows if row.name == "model").scope == "drained"


def test_a_child_environment_extends_ours(monkeypatch) -> None:
    monkeypatch.setenv("ANTIPHON_TEST_PARENT", "1")
    child = process_environment({"ANTIPHON_TEST_CHILD": "2"})
    assert (child["ANTIPHON_TEST_PARENT"], child["ANTIPHON_TEST_CHILD"]) == ("1", "2")
