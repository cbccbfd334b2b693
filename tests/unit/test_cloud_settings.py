"""Settings of the verifier: where they come from, and what is refused."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest

from cloud_verifier.configuration import load_settings
from cloud_verifier.options import MOST, OPTIONS
from cloud_verifier.serve import limits_of
from cloud_verifier.settings import Settings, check_exposure, is_loopback
from specwire.errors import BadRequest


def load(
    flags: dict[str, str | None] | None = None, environment: dict[str, str] | None = None
) -> Settings:
    return load_settings({"model": "m", **(flags or {})}, environment or {}).settings


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "verifier.toml"


def test_the_largest_values_can_be_announced_and_waited_for():
    counts = ("gamma", "sessions", "sessions_per_client", "max_prompt", "requests_per_s", "idle")
    settings = load(dict.fromkeys(counts, str(MOST)))
    announced = limits_of(settings, MOST).to_proto()
    assert (announced.gamma, announced.chain, announced.prompt) == (MOST, 4 * MOST, MOST)
    assert 2 * MOST < threading.TIMEOUT_MAX


def test_defaults():
    assert load() == Settings("m")


def test_every_setting_can_be_written_and_no_option_is_stray():
    assert {o.field for o in OPTIONS} == {f.name for f in dataclasses.fields(Settings)}
    assert len({o.key for o in OPTIONS}) == len(OPTIONS)


def test_a_flag_beats_the_environment_which_beats_the_file(config: Path):
    config.write_text("gamma = 5\nsessions = 6\nidle = 7.5\n")
    loaded = load_settings(
        {"model": "m", "config": str(config), "gamma": "9"},
        {"SPECWIRE_GAMMA": "8", "SPECWIRE_SESSIONS": "8", "OTHER": "x"},
    )
    assert (loaded.settings.gamma, loaded.settings.sessions, loaded.settings.idle_s) == (9, 8, 7.5)
    assert loaded.sources == {
        "model": "--model",
        "gamma": "--gamma",
        "sessions": "SPECWIRE_SESSIONS",
        "idle_s": str(config),
    }


def test_the_file_can_be_named_by_the_environment(config: Path):
    config.write_text('model = "from file"\ninsecure = true\nkv_memory = "4G"\n')
    settings = load_settings({}, {"SPECWIRE_CONFIG": str(config)}).settings
    assert settings == Settings("from file", insecure=True, kv_memory=4 << 30)


def test_paths_in_the_file_are_relative_to_it(config: Path):
    config.write_text('tls_cert = "a/cert.pem"\ntls_key = "/etc/key.pem"\n')
    settings = load({"config": str(config)})
    assert settings.tls_cert == config.parent / "a/cert.pem"
    assert settings.tls_key == Path("/etc/key.pem")


def test_none_switches_off_what_a_weaker_source_has_set(config: Path):
    config.write_text('metrics = 9000\ntokens = "t"\n')
    settings = load({"config": str(config), "metrics": "none"}, {"SPECWIRE_TOKENS": "none"})
    assert settings.metrics is None and settings.tokens is None


def test_an_empty_variable_is_as_good_as_none():
    assert load(environment={"SPECWIRE_METRICS": "", "SPECWIRE_GAMMA": ""}) == Settings("m")


@pytest.mark.parametrize(
    ("text", "value"),
    [("512", 512), ("512M", 512 << 20), ("4G", 4 << 30), ("1.5k", 1536), ("2 GiB", 2 << 30)],
)
def test_bytes(text: str, value: int):
    assert load({"kv_memory": text}).kv_memory == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("9000", "127.0.0.1:9000"), (":9000", "127.0.0.1:9000"), ("0.0.0.0:90", "0.0.0.0:90")],
)
def test_metrics_are_for_this_machine_unless_told_otherwise(text: str, value: str):
    assert load({"metrics": text}).metrics == value


@pytest.mark.parametrize(
    ("key", "text", "cure"),
    [
        ("gamma", "0", "whole number, 1 or more"),
        ("gamma", "4.5", "whole number"),
        ("gamma", "99999999999", "at most 1000000000"),
        ("max_prompt", "99999999999", "at most 1000000000, or none"),
        ("gamma", "none", "whole number"),
        ("idle", "nan", "greater than 0"),
        ("grace", "-1", "0 or more"),
        ("grace", "1e300", "at most 1000000000"),
        ("idle", "inf", "at most 1000000000"),
        ("requests_per_s", "inf", "greater than 0 .*, or none"),
        ("kv_memory", "4X", "512M or 4G"),
        ("message_bytes", "1K", "between 64K and 1G"),
        ("listen", "7710", "HOST:PORT"),
        ("listen", "::1:7710", r"\[::1\]:7710"),
        ("listen", "h:70000", "HOST:PORT"),
        ("metrics", "here", "PORT"),
        ("dtype", "int3", "one of auto"),
        ("backend", "magic", "one of transformers"),
        ("log_format", "xml", "one of text, json"),
        ("otel_endpoint", "127.0.0.1:4317", "URL"),
        ("insecure", "maybe", "true or false"),
        ("device", "", "not empty"),
    ],
)
def test_a_bad_value_names_its_source_and_the_cure(key: str, text: str, cure: str, config: Path):
    flag = "--" + key.replace("_", "-")
    with pytest.raises(BadRequest, match=f"^{flag} is '{text}'; it must be .*{cure}"):
        load({key: text})
    config.write_text(f'{key} = "{text}"\n')
    with pytest.raises(BadRequest, match=f"verifier.toml: {key} is '{text}'; it must be .*{cure}"):
        load({"config": str(config)})
    if text:
        name = "SPECWIRE_" + key.upper()
        with pytest.raises(BadRequest, match=f"^{name} is '{text}'; it must be .*{cure}"):
            load(environment={name: text})


def test_unknown_names_are_refused_with_the_nearest(config: Path):
    config.write_text("gama = 4\n")
    with pytest.raises(BadRequest, match=r"'gama' is no setting \(did you mean gamma\?\)"):
        load({"config": str(config)})
    with pytest.raises(BadRequest, match=r"SPECWIRE_TOKNS .*did you mean SPECWIRE_TOKENS"):
        load(environment={"SPECWIRE_TOKNS": "x"})


def test_variables_of_the_edge_and_of_kubernetes_are_left_alone():
    strangers = {
        "SPECWIRE_TOKEN": "sw_x",
        "SPECWIRE_CACHE": "/c",
        "SPECWIRE_PORT": "tcp://10.0.0.1:7710",
        "SPECWIRE_SERVICE_HOST": "10.0.0.1",
        "SPECWIRE_VERIFIER_PORT_7710_TCP": "tcp://10.0.0.1:7710",
    }
    assert load(environment=strangers) == Settings("m")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"gamma = ", "is no TOML"),
        (b"\xff", "is no UTF-8"),
        (b"gamma = [1]\n", "gamma is a list"),
        (b"[limits]\ngamma = 1\n", "'limits' is no setting"),
    ],
)
def test_a_broken_file_is_refused(config: Path, content: bytes, message: str):
    config.write_bytes(content)
    with pytest.raises(BadRequest, match=message):
        load({"config": str(config)})


def test_a_missing_file_and_a_missing_model_are_refused(config: Path):
    with pytest.raises(BadRequest, match=r"can't read the configuration .*No such file"):
        load({"config": str(config)})
    with pytest.raises(BadRequest, match="no model is set: give --model"):
        load_settings({}, {})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tls_cert": "c"}, "tls_key is not"),
        ({"tls_key": "k"}, "tls_cert is not"),
        ({"tls_client_ca": "a"}, "over TLS only"),
    ],
)
def test_halves_of_tls_are_refused(flags: dict[str, str | None], message: str):
    with pytest.raises(BadRequest, match=message):
        load(flags)


def test_what_is_printed_names_sources_and_no_secret():
    text = load_settings(
        {"model": "m", "tokens": "t.txt"},
        {"SPECWIRE_OTEL_ENDPOINT": "https://user:hunter2@host:4317/?key=hunter3"},
    ).describe()
    assert "model=m (--model)" in text and "tokens=t.txt (--tokens)" in text
    assert "host:4317" in text and "hunter" not in text and "user" not in text
    assert len(text.splitlines()) == 2


# ------------------------------------------------------------------------ exposure

TLS: dict[str, str | None] = {"tls_cert": "c", "tls_key": "k"}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("127.evil.example:1", False),
        ("localhost.example:1", False),
    ],
)
def test_loopback(address: str, expected: bool):
    assert is_loopback(address) is expected


def test_on_loopback_nothing_is_asked_for():
    assert check_exposure(load()) is None


@pytest.mark.parametrize("check", [{"tokens": "t"}, {"tls_client_ca": "a"}])
def test_tls_with_checked_clients_may_listen_anywhere(check: dict[str, str | None]):
    assert check_exposure(load({"listen": "0.0.0.0:1", **TLS, **check})) is None


@pytest.mark.parametrize(
    ("flags", "missing"),
    [
        ({}, "nothing is encrypted and anyone may use it"),
        ({"tokens": "t"}, "nothing is encrypted"),
        (TLS, "anyone may use it"),
    ],
)
def test_anything_less_needs_insecure(flags: dict[str, str | None], missing: str):
    flags = {"listen": "0.0.0.0:1", **flags}
    with pytest.raises(BadRequest, match=rf"but {missing}; set .*--insecure"):
        check_exposure(load(flags))
    warning = check_exposure(load({**flags, "insecure": "true"}))
    assert warning is not None and missing in warning and "\n" not in warning
