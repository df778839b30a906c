"""Every variable is checked, and its error names it."""

import logging

import pytest

from plimsoll.controller.settings import Settings, SettingsError

GOOD = {"PLIMSOLL_SIZER_IMAGE": "ghcr.io/plimsoll-dev/sizer:0.1.0"}


def test_defaults() -> None:
    settings = Settings.from_env(GOOD, "host-1")
    assert settings == Settings(
        sizer_image="ghcr.io/plimsoll-dev/sizer:0.1.0",
        sizer_pull_policy="IfNotPresent",
        namespace="plimsoll-system",
        pod_name="host-1",
        namespaces=(),
        health_host="",
        health_port=8080,
        log_level=logging.INFO,
        log_format="json",
        resync_seconds=600,
        learn=True,
    )


def test_everything_set() -> None:
    settings = Settings.from_env(
        {
            **GOOD,
            "PLIMSOLL_SIZER_PULL_POLICY": "Always",
            "POD_NAMESPACE": "ops",
            "POD_NAME": "op-0",
            "PLIMSOLL_NAMESPACES": "b, a,,b",
            "PLIMSOLL_HEALTH_HOST": "127.0.0.1",
            "PLIMSOLL_HEALTH_PORT": "0",
            "PLIMSOLL_LOG_LEVEL": "debug",
            "PLIMSOLL_LOG_FORMAT": "text",
            "PLIMSOLL_RESYNC_SECONDS": "30",
            "PLIMSOLL_LEARN": "off",
        }
    )
    assert settings.namespaces == ("b", "a")
    assert (settings.namespace, settings.pod_name) == ("ops", "op-0")
    assert (settings.health_host, settings.health_port) == ("127.0.0.1", 0)
    assert (settings.log_level, settings.log_format) == (logging.DEBUG, "text")
    assert (settings.sizer_pull_policy, settings.resync_seconds) == ("Always", 30)
    assert not settings.learn


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PLIMSOLL_SIZER_IMAGE", ""),
        ("PLIMSOLL_SIZER_PULL_POLICY", "Sometimes"),
        ("POD_NAMESPACE", "Not_A_Label"),
        ("PLIMSOLL_NAMESPACES", "good,*"),
        ("PLIMSOLL_HEALTH_PORT", "65536"),
        ("PLIMSOLL_HEALTH_PORT", "-1"),
        ("PLIMSOLL_HEALTH_PORT", "http"),
        ("PLIMSOLL_LOG_LEVEL", "loud"),
        ("PLIMSOLL_LEARN", "maybe"),
        ("PLIMSOLL_LOG_FORMAT", "xml"),
        ("PLIMSOLL_RESYNC_SECONDS", "0"),
    ],
)
def test_a_bad_value_is_named(variable: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({**GOOD, variable: value})
    assert variable in str(caught.value)
    assert value.rsplit(",", maxsplit=1)[-1].lower() in str(caught.value).lower()
