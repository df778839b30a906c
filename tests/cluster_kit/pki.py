"""Certificates, tokens and kubeconfigs of one cluster. Elliptic keys: they are made in milliseconds."""

import json
import secrets
from base64 import b64encode
from pathlib import Path

from .process import run

_CURVE = "prime256v1"


def make_authority(folder: Path) -> None:
    """Write ``ca.crt``, ``ca.key`` and the service accounts' ``sa.key`` into ``folder``."""
    _key(folder / "ca.key")
    _key(folder / "sa.key")
    run(
        *("openssl", "req", "-x509", "-new", "-subj", "/CN=plimsoll-test-ca", "-days", "365"),
        *("-key", folder / "ca.key", "-out", folder / "ca.crt"),
    )


def issue(folder: Path, name: str, subject: str, names: tuple[str, ...] = ()) -> None:
    """Write ``NAME.key`` and ``NAME.crt``, signed by the folder's authority.

    Args:
        folder: holds ``ca.crt`` and ``ca.key``.
        name: the files' stem.
        subject: as openssl writes it, ``/O=group/CN=user``.
        names: subject alternative names, ``DNS:...`` or ``IP:...``.
    """
    _key(folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    run("openssl", "req", "-new", "-key", folder / f"{name}.key", "-subj", subject, "-out", request)
    extensions.write_text(f"subjectAltName={','.join(names)}\n" if names else "\n")
    run(
        *("openssl", "x509", "-req", "-in", request, "-days", "365", "-extfile", extensions),
        *("-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-CAcreateserial"),
        *("-out", folder / f"{name}.crt"),
    )
    request.unlink()
    extensions.unlink()


def _key(path: Path) -> None:
    run("openssl", "ecparam", "-name", _CURVE, "-genkey", "-noout", "-out", path)


def tokens(nodes: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Return a random token for each component: name -> (token, the rest of its line in the token file)."""
    users = {
        "admin": "admin,admin,system:masters",
        "kcm": "system:kube-controller-manager,kcm,",
        "scheduler": "system:kube-scheduler,scheduler,",
        "proxy": "system:kube-proxy,proxy,",
        **{f"node.{node}": f"system:node:{node},node.{node},system:nodes" for node in nodes},
    }
    return {name: (secrets.token_hex(16), rest) for name, rest in users.items()}


def token_file(issued: dict[str, tuple[str, str]]) -> str:
    """Return the text of the API server's --token-auth-file."""
    return "".join(f"{token},{rest}\n" for token, rest in issued.values())


def kubeconfig(server: str, authority: bytes, token: str) -> str:
    """Return a kubeconfig as JSON, which is YAML too."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "plimsoll",
            "clusters": [
                {
                    "name": "plimsoll",
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": b64encode(authority).decode(),
                    },
                }
            ],
            "users": [{"name": "plimsoll", "user": {"token": token}}],
            "contexts": [
                {"name": "plimsoll", "context": {"cluster": "plimsoll", "user": "plimsoll"}}
            ],
        },
        indent=1,
    )
