"""The operator's settings: one frozen dataclass, read once from the environment."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_FORMATS = ("json", "text")
_ON_OR_OFF = ("on", "off")
_MAX_PORT = 65535


class SettingsError(Exception):
    """A variable is missing or malformed; the message names it, its value and what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """See docs/architecture.md for what each does; the variable is named beside each field."""

    sizer_image: str  # PLIMSOLL_SIZER_IMAGE, required
    sizer_pull_policy: str  # PLIMSOLL_SIZER_PULL_POLICY
    namespace: str  # POD_NAMESPACE: where the Lease lives
    pod_name: str  # POD_NAME
    namespaces: tuple[str, ...]  # PLIMSOLL_NAMESPACES, comma separated; empty: the whole cluster
    health_host: str  # PLIMSOLL_HEALTH_HOST
    health_port: int  # PLIMSOLL_HEALTH_PORT; 0 lets the system choose (tests)
    log_level: int  # PLIMSOLL_LOG_LEVEL
    log_format: str  # PLIMSOLL_LOG_FORMAT
    resync_seconds: float  # PLIMSOLL_RESYNC_SECONDS
    learn: (
        bool  # PLIMSOLL_LEARN: on or off; whether reserves are learned and used, see docs/limits.md
    )

    @classmethod
    def from_env(cls, env: Mapping[str, str], hostname: str = "plimsoll-operator") -> Settings:
        """Read and check the environment.

        Args:
            env: the process environment.
            hostname: stands in for POD_NAME outside a pod.

        Raises:
            SettingsError: naming the variable.
        """
        image = env.get("PLIMSOLL_SIZER_IMAGE", "")
        if not image:
            raise SettingsError(
                "PLIMSOLL_SIZER_IMAGE is not set: name the image of the sizer, "
                "for example ghcr.io/plimsoll-dev/sizer:0.1.0"
            )
        namespaces = tuple(
            dict.fromkeys(
                n.strip() for n in env.get("PLIMSOLL_NAMESPACES", "").split(",") if n.strip()
            )
        )
        for namespace in namespaces:
            _require_label("PLIMSOLL_NAMESPACES", namespace)
        own = env.get("POD_NAMESPACE") or "plimsoll-system"
        _require_label("POD_NAMESPACE", own)
        level = _choice(env, "PLIMSOLL_LOG_LEVEL", _LEVELS, "INFO", upper=True)
        return cls(
            sizer_image=image,
            sizer_pull_policy=_choice(
                env, "PLIMSOLL_SIZER_PULL_POLICY", _PULL_POLICIES, "IfNotPresent"
            ),
            namespace=own,
            pod_name=env.get("POD_NAME") or hostname,
            namespaces=namespaces,
            health_host=env.get("PLIMSOLL_HEALTH_HOST") or "",
            health_port=int(_number(env, "PLIMSOLL_HEALTH_PORT", 8080, most=_MAX_PORT)),
            log_level=logging.getLevelNamesMapping()[level],
            log_format=_choice(env, "PLIMSOLL_LOG_FORMAT", _FORMATS, "json"),
            resync_seconds=_number(env, "PLIMSOLL_RESYNC_SECONDS", 600, least=1),
            learn=_choice(env, "PLIMSOLL_LEARN", _ON_OR_OFF, "on") == "on",
        )


def _require_label(variable: str, value: str) -> None:
    if not _DNS_LABEL.fullmatch(value):
        raise SettingsError(f"{variable}: {value!r} is not a namespace name; use a DNS label")


def _choice(
    env: Mapping[str, str],
    variable: str,
    allowed: tuple[str, ...],
    default: str,
    *,
    upper: bool = False,
) -> str:
    value = env.get(variable) or default
    value = value.upper() if upper else value
    if value not in allowed:
        raise SettingsError(f"{variable}: {value!r} is not one of {', '.join(allowed)}")
    return value


def _number(
    env: Mapping[str, str],
    variable: str,
    default: int,
    *,
    least: int = 0,
    most: int = 1_000_000,
) -> int:
    text = env.get(variable) or str(default)
    if not text.isascii() or not text.isdecimal() or not least <= int(text) <= most:
        raise SettingsError(f"{variable}: {text!r} is not a whole number from {least} to {most}")
    return int(text)
